"""The tables of a report on a sweep: rows of texts, and rows of unrounded numbers."""

from typing import Any

from tfunet.bench.analysis.case_metric_means import (
    by_repeat,
    case_means,
    metric_names,
)
from tfunet.bench.analysis.confidence_intervals import Spread, difference, mean
from tfunet.bench.analysis.dice_target import DiceTarget, Reached
from tfunet.bench.analysis.lost_efficiency import mean_lost
from tfunet.bench.analysis.scaling_laws import is_serial_share, serial_share
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family, SpeedComparison, Summary
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.records.ways_of_training import way_of
from tfunet.bench.report import number_text as texts
from tfunet.config.case_metrics import is_share
from tfunet.config.keys import describe
from tfunet.process.terminal import counted

MEAN = "mean (95 % interval)"


def summary_rows(family: Family) -> list[dict[str, str]]:
    """Return a row for each cell: medians over the repeats, with the lowest and highest value."""
    regions = list(dict.fromkeys(region for cell in family.cells for region in cell.regions))
    targets = list(dict.fromkeys(target for cell in family.cells for target in cell.targets))
    names = list(dict.fromkeys(name for cell in family.cells for name in cell.scores))
    has_device = any(cell.device_bytes for cell in family.cells)
    has_share = any(cell.synthetic_share for cell in family.cells)
    # The IoU of a single region is no mean.
    has_miou = len(regions) > 1 and any(cell.miou for cell in family.cells)
    rows = []
    for cell in family.cells:
        has_baseline = cell.is_baseline and cell.results
        row = {
            **_names(cell),
            "repeats": _repeats(cell),
            f"{'samples' if names else 'images'}/s": texts.spread_text(cell.images_per_second, 1),
            "speed-up": "1 (baseline)" if has_baseline else texts.estimate_text(cell.speed_up),
            "efficiency": texts.NONE if cell.efficiency is None else f"{cell.efficiency:.2f}",
        }
        if has_share:
            row["of bound"] = texts.spread_text(cell.synthetic_share, 2)
        row |= {f"Dice {region}": texts.spread_text(cell.dice(region), 3) for region in regions}
        if has_miou:
            row["mIoU"] = texts.spread_text(cell.miou, 3)
        row |= {f"MAE {target}": texts.spread_text(cell.mae(target), 3) for target in targets}
        for name in names:
            score = cell.score(name)
            row[name] = texts.spread_text(score, texts.decimals(score.median) if score else 3)
        row["memory (GiB)"] = texts.gibibytes(cell.resident_bytes)
        if has_device:
            row["device memory (GiB)"] = texts.gibibytes(cell.device_bytes)
        rows.append(row)
    return rows


def family_metrics(family: Family) -> list[str]:
    """Return the metrics of whole cases that runs of a family ask for."""
    trials = [trial for cell in family.cells for trial in cell.done]
    return list(dict.fromkeys(name for trial in trials for name in metric_names(trial.folder)))


def metric_rows(family: Family) -> list[dict[str, str]]:
    """Return a row for each metric of whole cases, region and cell: medians over the repeats, and
    with enough of them means with intervals, and differences from the baseline.

    With folds, whose mean is what is asked for, Dice is among the metrics.
    """
    has_folds = family.num_folds > 1
    baseline = next((cell for cell in family.cells if cell.is_baseline and cell.results), None)
    baseline = baseline if family.baseline is not None else None
    rows, has_interval = [], has_folds
    of_arrays = dict.fromkeys(name for cell in family.cells for name in cell.scores)
    regions = dict.fromkeys(region for cell in family.cells for region in cell.regions)
    for metric in [*of_arrays, *(["Dice"] if has_folds else []), *family_metrics(family)]:
        for region in [""] if metric in of_arrays else regions:
            reference = by_repeat(baseline, metric, region) if baseline is not None else {}
            for cell in family.cells:
                values = by_repeat(cell, metric, region)
                if not values:
                    continue
                has_share = is_share(metric)
                estimate = mean(values)
                digits = texts.decimals(estimate.value) if metric in of_arrays else 3
                has_interval = has_interval or estimate.has_interval
                row = {
                    **_names(cell),
                    **({"region": region} if regions else {}),
                    "metric": metric,
                    "median": _metric_text(cell, metric, region, list(values.values()), digits),
                    MEAN: texts.estimate_text(
                        estimate.within(0, 1) if has_share else estimate, digits
                    ),
                }
                if baseline is not None:
                    by = difference(values, reference) if reference and cell != baseline else None
                    by = by.within(-1, 1) if by is not None and has_share else by
                    heading = f"difference from {baseline.label} (95 % interval)"
                    row[heading] = texts.estimate_text(by, digits, sign="+")
                rows.append(row)
    # Without intervals, means say no more than medians; a column of the baseline compares nothing.
    kept = [
        name
        for name in (rows[0] if rows else ())
        if {row[name] for row in rows} != {texts.NONE}
        and (has_interval or not name.endswith("(95 % interval)"))
    ]
    return [{name: row[name] for name in kept} for row in rows]


def _metric_text(cell: Cell, metric: str, region: str, values: list[float], digits: int) -> str:
    """Return the median of runs, and in how many of their cases a metric is defined."""
    text = texts.values_text(values, digits)
    if metric in cell.scores:
        return text
    runs = [case_means(trial.folder, metric_names(trial.folder)) for trial in cell.done]
    means = [run[metric, region] for run in runs if (metric, region) in run]
    known, cases = (
        sum(getattr(mean, name) for mean in means) for name in ("num_defined", "num_cases")
    )
    return text if known == cases else f"{text} in {known} of {cases} cases"


def cost_rows(family: Family, target: DiceTarget) -> list[dict[str, str]]:
    """Return a row for each cell: serial share, cost of a run, and effort to reach a Dice."""
    has_energy = any(cell.energy_joules for cell in family.cells)
    rows = []
    for cell in family.cells:
        row = {
            **_names(cell),
            "serial share": _share_text(family, cell),
            "device-hours a run": texts.significant(cell.device_hours),
        }
        if has_energy:
            row["energy a run (Wh)"] = texts.significant(
                cell.energy_joules and cell.energy_joules.scaled(1 / 3600)
            )
            row["J a sample"] = texts.significant(cell.joules_per_sample)
        if target.dice is not None:
            effort = target.reached.get(cell.label)
            row |= {
                f"samples to Dice {target.dice:g}": texts.significant(
                    effort.samples if effort else None
                ),
                "seconds": texts.significant(effort.seconds if effort else None),
                "device-hours": texts.significant(effort.device_hours if effort else None),
                "reached": _reached_text(effort, len(cell.results)),
            }
        rows.append(row)
    return rows


def lost_rows(family: Family) -> list[dict[str, str]]:
    """Return the parts of the lost efficiency, a row for each cell that measured it."""
    rows = []
    lost = [(cell, mean_lost(cell.lost)) for cell in family.cells if cell.lost]
    # Only where samples are shared, borders are exchanged.
    names = list(dict.fromkeys(name for _, parts in lost for name in parts.parts))
    for cell, parts in lost:
        bandwidth = cell.bus_bytes_per_second
        rows.append(
            {
                **_names(cell),
                "lost efficiency": f"{parts.total:.3f}",
                **{
                    name: f"{parts.parts[name]:+.3f}" if name in parts.parts else texts.NONE
                    for name in names
                },
                "average alone (ms)": texts.significant(
                    cell.average_seconds and cell.average_seconds.scaled(1000)
                ),
                "bus GB/s": texts.NONE
                if bandwidth is None
                else texts.three_digits(bandwidth.median / 1e9),
            }
        )
    return rows


def trial_row(trial: TrialRecord, array_score: str = "") -> dict[str, str]:
    """Return a trial as texts; `array_score` is the main score where trials are on arrays."""
    result = trial.result
    speed = "samples/s" if array_score else "images/s"
    scores = [array_score] if array_score else ["Dice", "mIoU"]
    row = {
        "trial": trial.id,
        "backend": way_of(trial),
        "replicas": str(trial.config.num_replicas),
        "repeat": str(trial.repeat),
        "state": trial.state,
        **dict.fromkeys(("proved", speed, *scores, "seconds"), texts.NONE),
        "reason": trial.reason,
    }
    if result is not None:
        if result.is_proved is not None:
            row["proved"] = "yes" if result.is_proved else "no"
        row[speed] = f"{result.images_per_second:.1f}"
        if array_score:
            row[array_score] = _number(result.main_score, texts.decimals(result.main_score or 0))
        else:
            row |= {"Dice": _number(result.mean_dice, 3), "mIoU": _number(result.miou, 3)}
        row["seconds"] = _number(result.elapsed_seconds, 1)
    return row


def trial_facts(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial with settings, reason and unrounded numbers, for programs."""
    result = trial.result
    facts: dict[str, Any] = {
        "trial": trial.id,
        "state": trial.state,
        "reason": trial.reason,
        "repeat": trial.repeat,
        "seed": trial.config.seed,
        "scaling": trial.scaling,
        **trial.settings,
        "replica_batch": trial.config.replica_batch,
        "global_batch": trial.config.global_batch,
    }
    if result is not None:
        numbers = dict(vars(result))
        apart = ("checks", "samples_hash", "weights_hash", "num_replicas", "replicas_from_step")
        for name in apart:
            numbers.pop(name)
        for name in ("crossing_seconds", "mean_alone_seconds", "bubble_seconds"):
            if numbers[name] is None:  # Only networks in stages have it.
                del numbers[name]
        for score in ("dice", "iou", "mae", "dataset_dice", "dataset_iou"):
            numbers.update({f"{score}_{key}": value for key, value in numbers.pop(score).items()})
        for name, value in numbers.pop("metrics").items():
            numbers[f"metric_{name}" if name in {**facts, **numbers} else name] = value
        for name in ("peak_resident_bytes", "peak_device_bytes"):
            numbers[name] = " ".join(map(str, numbers[name]))
        facts |= numbers
    return facts


def cell_facts(family: Family, cell: Cell, target: DiceTarget) -> dict[str, Any]:
    """Return a cell with unrounded numbers, for programs."""
    facts: dict[str, Any] = {
        "scaling": family.scaling,
        **family.settings,
        "backend": cell.way,
        "num_replicas": cell.num_replicas,
        "replica_batch": cell.replica_batch,
        "global_batch": cell.global_batch,
        "repeats_done": len(cell.done),
        "repeats": len(cell.trials),
    }
    facts |= _spreads(cell, "images_per_second", "synthetic_share")
    if cell.speed_up is not None:
        facts |= {
            "speed_up": cell.speed_up.value,
            **texts.interval_facts("speed_up", cell.speed_up),
            "efficiency": cell.efficiency,
            **share_facts(family, cell),
        }
    if cell.lost:
        facts |= {f"lost_{name}": value for name, value in mean_lost(cell.lost).parts.items()}
    facts |= _spreads(cell, "average_seconds", "bus_bytes_per_second")
    for region in cell.regions:
        facts |= _spread_facts(f"dice_{region}", cell.dice(region))
        facts |= _spread_facts(f"iou_{region}", cell.iou(region))
    facts |= _spread_facts("miou", cell.miou)
    for name in cell.targets:
        facts |= _spread_facts(f"mae_{name}", cell.mae(name))
    for name in cell.metrics:
        facts |= _spread_facts(name, cell.metric(name))
    facts |= _spread_facts("peak_resident_bytes", cell.resident_bytes)
    facts |= _spread_facts("peak_device_bytes", cell.device_bytes)
    facts |= _spreads(cell, "device_hours", "energy_joules", "joules_per_sample")
    effort = target.reached.get(cell.label)
    if target.dice is not None:
        facts |= {"target_dice": target.dice, "reached": effort.num_reached if effort else 0}
    if effort is not None:
        for name in ("samples", "seconds", "device_hours"):
            facts |= _spread_facts(f"{name}_to_target", getattr(effort, name))
    return facts


def comparison_facts(family: Family, comparison: SpeedComparison) -> dict[str, Any]:
    """Return a comparison of speeds with unrounded numbers, for programs."""
    return {
        **family.settings,
        "num_replicas": comparison.upper.num_replicas,
        "upper": comparison.upper.way,
        "lower": comparison.lower.way,
        "ratio": comparison.ratio.value,
        **texts.interval_facts("ratio", comparison.ratio),
        "repeats": comparison.ratio.repeats,
        "paired": comparison.ratio.paired,
        "p": comparison.ratio.p_value() if comparison.ratio.has_interval else None,
        "adjusted_p": comparison.adjusted_p,
        "verdict": comparison.verdict,
    }


def share_facts(family: Family, cell: Cell) -> dict[str, float | None]:
    """Return a cell's serial share with its interval; empty without one."""
    speed_up = cell.speed_up
    if speed_up is None or cell.num_devices < 2:
        return {}

    def share(value: float) -> float:
        return serial_share(value, cell.num_devices, family.scaling)

    # A higher speed-up is a lower serial share: the ends of the interval change places.
    return {
        "serial_share": share(speed_up.value),
        "serial_share_low": share(speed_up.high) if speed_up.has_interval else None,
        "serial_share_high": share(speed_up.low) if speed_up.has_interval else None,
    }


def family_heading(family: Family) -> str:
    """Return the heading of a family's tables: its settings, scaling and baseline."""
    settings = (
        family.title
        if family.runs
        else describe({key: value for key, value in family.settings.items() if key != "scaling"})
    )
    terms = _terms(family)
    if family.num_folds > 1:
        terms += f"; {family.num_folds} folds, which count as repeats"
    return f"{settings}: {terms}" if settings else terms[:1].upper() + terms[1:]


def _terms(family: Family) -> str:
    """Return what is fixed in a family, and what its speed-ups are against."""
    cells = family.cells
    baseline = (
        f"speed-up against one replica of {family.baseline}"
        if family.baseline
        else "speed-up of each backend against its own single replica"
    )
    if len({cell.num_replicas for cell in cells}) > 1:
        fixed = "replica_batch" if family.scaling == "weak" else "global_batch"
        return f"{family.scaling} scaling (fixed {fixed}); {baseline}"
    # Nothing scales: both batches are fixed.
    batches = f"replica_batch={cells[0].replica_batch}, global_batch={cells[0].global_batch}"
    replicas = counted(cells[0].num_replicas, "replica")
    if family.baseline is None or len(cells) == 1:
        baseline = "no scaling can be told without runs of other numbers of replicas"
    return f"{replicas}, {batches}; {baseline}"


def skipped_rows(summary: Summary) -> list[dict[str, str]]:
    """Return a row for each cell that the plan skipped."""
    return [
        {"cell": describe(cell.get("settings", {})), "reason": str(cell.get("reason", ""))}
        for cell in summary.sweep.skipped
    ]


def _repeats(cell: Cell) -> str:
    done, planned = len(cell.done), len(cell.trials)
    return str(done) if done == planned else f"{done} of {planned}"


def _names(cell: Cell) -> dict[str, str]:
    return {"backend": cell.way, "replicas": str(cell.num_replicas)}


def _share_text(family: Family, cell: Cell) -> str:
    shares = share_facts(family, cell)
    if not shares or not is_serial_share(shares["serial_share"] or 0.0):
        return texts.NONE
    share, *ends = shares.values()
    known = [min(max(end, 0.0), 1.0) for end in ends if end is not None]
    return f"{share:.3f}" + (f" ({known[0]:.3f} to {known[1]:.3f})" if known else "")


def _reached_text(effort: Reached | None, num_repeats: int) -> str:
    return f"{effort.num_reached} of {effort.num_repeats}" if effort else f"0 of {num_repeats}"


def _spreads(cell: Cell, *names: str) -> dict[str, float]:
    facts: dict[str, float] = {}
    for name in names:
        facts |= _spread_facts(name, getattr(cell, name))
    return facts


def _spread_facts(name: str, spread: Spread | None) -> dict[str, float]:
    if spread is None:
        return {}
    return {name: spread.median, f"{name}_low": spread.low, f"{name}_high": spread.high}


def _number(value: float | None, digits: int) -> str:
    return texts.NONE if value is None else f"{value:.{digits}f}"
