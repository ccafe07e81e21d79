"""Sentences on a sweep: what it found, and what weakens that. Pure."""

from collections.abc import Iterator, Sequence

from tfunet.bench.analysis.dice_target import DiceTarget
from tfunet.bench.analysis.lost_efficiency import mean_lost
from tfunet.bench.analysis.scaling_laws import fit, is_serial_share
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family, Summary
from tfunet.bench.analysis.volume_scaling import volume_scaling
from tfunet.bench.records.proofs import not_proved
from tfunet.bench.records.run_tables import read_steps
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report.number_text import (
    decimals,
    interval_text,
    p_text,
    significant,
    verdict_text,
)
from tfunet.bench.study.machine_noise import unsteadiness, was_quiet
from tfunet.learning.divergence import warning
from tfunet.learning.student_t import CONFIDENCE, MIN_INTERVAL
from tfunet.process.terminal import counted

# Steps that reach a smaller share of the speed on data in memory wait for their data.
LEAST_SHARE = 0.9
MAX_NAMES = 5
DICE_DIGITS = 3
# So many ways are named with their time to a score.
MOST_IN_TIME = 4

Targets = Sequence[tuple[Family, DiceTarget]]
UNSTEADY = "Not to be relied on, because the machine was not quiet. Measured was:"


def findings(
    summary: Summary, targets: Targets = (), *, has_caution: bool = True
) -> dict[str, list[str]]:
    """Return the findings of the sweep as sentences, by heading.

    Args:
        targets: The families with the Dice whose cost is told.
        has_caution: Whether those on speed begin with a sentence if the machine was not quiet.
    """
    # As the answer says, with the numbers.
    caution = [UNSTEADY] if has_caution and was_quiet(summary.sweep.noise) is False else []
    parts = {
        "Speed": _comparisons,
        "Scaling": _speed_ups,
        "Lost efficiency": _lost,
        "Scores": _scores,
    }
    by_heading = {}
    for heading, sentences in parts.items():
        for family in summary.families:
            title = f"{heading} with {family.title}" if family.title else heading
            if lines := list(sentences(family)):
                by_heading[title] = lines if heading == "Scores" else [*caution, *lines]
    for family, target in targets:
        title = f"Time to a score with {family.title}" if family.title else "Time to a score"
        if lines := list(_time_to_score(family, target)):
            by_heading[title] = [*caution, *lines]
    if lines := list(_volumes(summary)):
        by_heading["Weak scaling in space"] = [*caution, *lines]
    return by_heading


def doubts(summary: Summary) -> list[str]:
    """Return sentences on what weakens the findings."""
    return [
        *_missing_trials(summary),
        *not_proved(summary.sweep.trials),
        *_diverged(summary),
        *(f"A file of the records is wrong. {fault}." for fault in summary.sweep.faults),
        *_warm_up(summary),
        *_environment(summary),
        *_samples(summary),
        *_copies(summary),
        *_cores(summary),
        *_input(summary),
        *_changed_replicas(summary),
        *_repeats(summary),
        *_noise(summary),
    ]


def _comparisons(family: Family) -> Iterator[str]:
    for comparison in family.main_comparisons:
        upper, ratio = comparison.upper, comparison.ratio
        yield (
            f"{upper.way} at {counted(upper.num_replicas, 'replica')} is {ratio.value:.2f} times "
            f"as fast as {comparison.lower.way} {verdict_text(ratio, comparison.adjusted_p)}."
        )


def _speed_ups(family: Family) -> Iterator[str]:
    for way in family.ways:
        cells = [cell for cell in family.cells if cell.way == way and cell.num_replicas > 1]
        parts = [_speed_up(cell) for cell in cells if cell.speed_up is not None]
        if parts:
            baseline = f"one replica of {family.baseline}" if family.baseline else "its one replica"
            yield f"{way}, against {baseline}, {family.scaling} scaling: {'; '.join(parts)}."
            yield from _law(family, cells)


def _speed_up(cell: Cell) -> str:
    if cell.speed_up is None:
        return cell.label
    return (
        f"{cell.num_replicas} replicas are {cell.speed_up.value:.2f} times as fast "
        f"({interval_text(cell.speed_up)}), efficiency {cell.efficiency:.2f}"
    )


def _law(family: Family, cells: Sequence[Cell]) -> Iterator[str]:
    speed_ups = {cell.num_replicas: cell.speed_up.value for cell in cells if cell.speed_up}
    law = fit(speed_ups, family.scaling)
    if law is None or not is_serial_share(law.share):
        return
    limit = "" if law.limit is None else f", which allows at most {law.limit:.3g} times"
    yield (
        f"{cells[0].way} follows {law.law}'s law with a serial share of {law.share:.3f}{limit}; "
        f"its speed-ups are up to {law.miss:.1%} away from it."
    )


def _time_to_score(family: Family, target: DiceTarget) -> Iterator[str]:
    """Yield who was there first: faster steps are no use to who needs more of them."""
    seconds = {label: reached.seconds for label, reached in target.reached.items()}
    ranked = sorted(seconds, key=lambda label: seconds[label].median)[:MOST_IN_TIME]
    if len(ranked) < 2:
        return
    first, *others = ranked
    rest = "; ".join(
        f"{label} {significant(seconds[label])} s, "
        f"{seconds[label].median / seconds[first].median:.2f} times as long"
        for label in others
    )
    yield (
        f"{first} is the first at a Dice of {target.dice:g}, after {significant(seconds[first])} s "
        f"of training; {rest}. These are medians [lowest, highest]; chance is not told apart."
    )


def _volumes(summary: Summary) -> Iterator[str]:
    for scaling in volume_scaling(summary.families):
        upper, lower, efficiency = scaling.upper, scaling.lower, scaling.efficiency
        large, small = (
            " x ".join(map(str, cell.trials[0].config.patch or ())) for cell in (upper, lower)
        )
        yield (
            f"{upper.label} on samples of {large} does {efficiency.value * scaling.num_parts:.2f} "
            f"times the voxels a second of {lower.label} on {small}, with {scaling.num_parts} "
            f"times its devices: efficiency {efficiency.value:.2f} ({interval_text(efficiency)})."
        )


def _lost(family: Family) -> Iterator[str]:
    for cell in family.cells:
        if cell.lost:
            lost = mean_lost(cell.lost)
            parts = sorted(lost.parts.items(), key=lambda part: -part[1])
            shares = ", ".join(f"{name} {share:.1%}" for name, share in parts)
            yield (
                f"{cell.way} at {cell.num_replicas} replicas loses {lost.total:.1%} of its time: "
                f"{shares}."
            )


def _scores(family: Family) -> Iterator[str]:
    scored = [cell for cell in family.cells if cell.main_score is not None]
    others = [cell for cell in scored if cell.score_difference and not cell.is_baseline]
    baseline = next((cell for cell in scored if cell.is_baseline), None)
    # Without a common baseline, the differences of cells cannot be compared.
    if family.baseline is None or baseline is None or baseline.main_score is None or not others:
        return
    score = baseline.main_score
    digits = decimals(score.median)
    median, low, high = (f"{each:.{digits}f}" for each in (score.median, score.low, score.high))
    name, better = _main_score(baseline)
    reference = f"the {name} of {baseline.label} ({median}, {low} to {high}{better})"
    apart = [cell for cell in others if _differs(cell)]
    same = [cell for cell in others if not _differs(cell)]
    if apart:
        shown = (_difference_text(cell, digits) for cell in apart)
        yield f"Different from {reference}: {'; '.join(shown)}."
    if same:
        largest = max(same, key=_distance)
        can_tell = any(cell.score_p is not None for cell in same)
        names = ", ".join(cell.label for cell in same)
        told = names if apart or len(same) < MAX_NAMES else f"all {len(same)} others"
        if all(_is_same(cell, digits) for cell in same):
            digits_words = "three digits" if digits == DICE_DIGITS else f"{digits} decimals"
            yield f"The same to {digits_words} as {reference}: {told}."
        else:
            yield (
                f"{'Not distinguishable' if can_tell else 'Too few repeats to tell'} from "
                f"{reference}: {told}. Largest difference: {_difference_text(largest, digits)}."
            )
    steps = sorted({result.steps for cell in scored for result in cell.results if result.steps})
    if len(steps) > 1:
        yield (
            f"The runs took different numbers of optimizer steps ({steps[0]} to {steps[-1]}), so "
            "their scores may differ."
        )


def _main_score(cell: Cell) -> tuple[str, str]:
    """Return the name of a cell's main score, and which way it is better, in words."""
    for name, mode in cell.scores.items():
        return name, f"; {'more' if mode == 'max' else 'less'} is better"
    return "mean Dice", ""


def _distance(cell: Cell) -> float:
    return abs(cell.score_difference.value) if cell.score_difference else 0.0


def _is_same(cell: Cell, digits: int) -> bool:
    """Whether the scores are equal in every repeat, as far as they are shown."""
    by = cell.score_difference
    ends = (by.value, by.low, by.high) if by is not None and by.has_interval else ()
    return bool(ends) and max(map(abs, ends)) < 0.5 * 10**-digits


def _differs(cell: Cell) -> bool:
    return cell.score_p is not None and cell.score_p < 1 - CONFIDENCE


def _difference_text(cell: Cell, digits: int) -> str:
    estimate = cell.score_difference
    if estimate is None:
        return cell.label
    estimate = estimate if cell.scores else estimate.within(-1, 1)
    interval = interval_text(estimate, digits)
    return f"{cell.label} {estimate.value:+.{digits}f} ({interval}{p_text(cell.score_p)})"


def _missing_trials(summary: Summary) -> Iterator[str]:
    missing = [trial for trial in summary.not_done if trial.state != "profiled"]
    if missing and summary.lone_run is None:
        failed = sum(trial.state == "failed" for trial in missing)
        yield (
            f"{len(missing)} of {len(summary.sweep.trials)} trials have no numbers ({failed} "
            "failed), and their times are not used. The table of trials has the reasons."
        )


def _diverged(summary: Summary) -> Iterator[str]:
    for trial in _done(summary):
        losses = read_steps(trial.folder)["loss"]
        last = trial.result.loss if trial.result is not None else None
        if last is not None and losses and (words := warning(losses[0], last)):
            yield f"{trial.id}: {words}"


def _warm_up(summary: Summary) -> Iterator[str]:
    results = [trial.result for trial in summary.sweep.trials if trial.result is not None]
    older = sum(result.warm_up_steps is None for result in results)
    if older:
        yield (
            f"{older} of {len(results)} trials are older records, whose speeds include the "
            "warm-up (the first, slower steps)."
        )


def _environment(summary: Summary) -> Iterator[str]:
    different = summary.environment_differences
    if different:
        yield (
            f"Trials ran in different environments: {', '.join(different)} differ. Times of "
            "different machines or versions must not be compared."
        )
    if summary.environment.get("git.modified") is True:
        yield "The code had changes that were not committed to git."


def _samples(summary: Summary) -> Iterator[str]:
    for family in summary.families:
        groups: dict[tuple[int, int], dict[str, list[str]]] = {}
        folds: dict[int, int] = {}
        for cell in family.cells:
            for trial in cell.done:
                folds[trial.repeat] = trial.config.fold
                if trial.result is not None and trial.result.samples_hash:
                    hashes = groups.setdefault((cell.global_batch, trial.repeat), {})
                    hashes.setdefault(trial.result.samples_hash, []).append(cell.label)
        for (global_batch, repeat), hashes in groups.items():
            most, *rest = sorted(hashes.values(), key=len, reverse=True)
            if rest:
                fold = f" (fold {folds[repeat]})" if family.num_folds > 1 else ""
                yield (
                    f"In repeat {repeat}{fold} with global_batch={global_batch}, "
                    f"{', '.join(label for labels in rest for label in labels)} did not train on "
                    f"the same samples in the same order as {most[0]}."
                )


def _copies(summary: Summary) -> Iterator[str]:
    for family in summary.families:
        for cell in family.cells:
            weights: dict[tuple[int, str], list[str]] = {}
            for trial in cell.done:
                if trial.result is not None and trial.result.weights_hash:
                    key = (trial.config.seed, trial.result.weights_hash)
                    weights.setdefault(key, []).append(trial.id)
            for names in weights.values():
                if len(names) > 1:
                    yield (
                        f"{', '.join(names)} have the same settings and seed, and ended with the "
                        "same weights: they are repeats of a speed, but their scores are one, not "
                        f"{len(names)}."
                    )


def _cores(summary: Summary) -> Iterator[str]:
    counts = {trial.config.num_replicas for trial in _done(summary)}
    open_share = any(trial.config.cores_per_replica is None for trial in _done(summary))
    has_gpus = any(trial.environment.get("gpus") for trial in _done(summary))
    if len(counts) > 1 and open_share and not has_gpus:
        yield (
            "cores_per_replica is not set, so fewer replicas had more CPU cores each, which makes "
            "every speed-up look smaller. Set it in [base] of the study."
        )
    if any(trial.config.share_cores for trial in _done(summary)):
        yield (
            "share_cores is set: where there were fewer CPU cores than devices, devices took turns "
            "on them, and a step took longer than with a core for each."
        )


def _input(summary: Summary) -> Iterator[str]:
    for family in summary.families:
        for cell in family.cells:
            share = cell.synthetic_share
            if share is not None and share.median < LEAST_SHARE:
                label = family.label_of(cell)
                less = "larger batches" if cell.scores else "less augmentation"
                yield (
                    f"{label} waits for its input: its steps reach {share.median:.2f} of the "
                    f"speed on data in memory. Give it more CPU cores, or {less}."
                )


def _changed_replicas(summary: Summary) -> Iterator[str]:
    for trial in summary.sweep.trials:
        parts = trial.result.replicas_from_step if trial.result is not None else ()
        if len(parts) > 1:
            shown = ", then ".join(f"{count} from step {step}" for step, count in parts)
            yield (
                f"{trial.id} was stopped, and went on with another number of replicas ({shown}): "
                "its images/s are those of the last part, its cost and memory those of all parts."
            )


def _repeats(summary: Summary) -> Iterator[str]:
    if not summary.sweep.is_study:
        return  # Nobody asked for repeats.
    counts = [
        len(cell.results) for family in summary.families for cell in family.cells if cell.results
    ]
    fewest = min(counts, default=0)
    if 0 < fewest < MIN_INTERVAL and summary.num_unfinished:
        yield (
            f"Some cells have only {counted(fewest, 'good repeat')}, too few for an interval, and "
            f"{counted(summary.num_unfinished, 'trial')} of {len(summary.sweep.trials)} have not "
            "ended. Run the study to its end with the same command: it runs only these."
        )
    elif 0 < fewest < MIN_INTERVAL:
        yield (
            f"Some cells have only {counted(fewest, 'good repeat')}, too few for an interval. Give "
            f"the study repeats = {MIN_INTERVAL} or more and run it again: it runs only the new "
            "trials."
        )


def _noise(summary: Summary) -> Iterator[str]:
    spread, change = unsteadiness(summary.sweep.noise)
    if spread:
        yield (
            f"The machine was not quiet: the time of a fixed computation varied by {spread:.0%} "
            "(10th to 90th percentile)."
        )
    if change:
        yield (
            f"The machine's speed changed by {change:.0%} between the beginning and the end of the "
            "sweep."
        )


def _done(summary: Summary) -> list[TrialRecord]:
    return [trial for trial in summary.sweep.trials if trial.result is not None]
