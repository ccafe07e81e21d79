"""Sorts the trials of a sweep into families of cells, and compares the cells. Pure.

A study of two backends, 1 and 2 replicas, batches of 4 and 8 a replica and three repeats:

    family "replica_batch=4"       family "replica_batch=8"
    cell           repeats         cell           repeats
    single  x1     1 2 3           single  x1     1 2 3      the baseline
    horovod x2     1 2 3           horovod x2     1 2 3  --> speed-up, paired by repeat
    mirrored x2    1 2 3           mirrored x2    1 2 3
       |                              |
       +--> comparison of horovod and mirrored, of as many replicas
            p-values are adjusted over the comparisons of all families
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfunet.bench.analysis.confidence_intervals import (
    Estimate,
    Verdict,
    adjusted_p_values,
    speed_verdict,
)
from tfunet.bench.analysis.ensemble import Ensemble, ensemble_of
from tfunet.bench.analysis.folds import folds_as_repeats, num_folds
from tfunet.bench.analysis.study_cell import (
    Cell,
    lost_by_repeat,
    score_difference,
    speed_ratio,
    speed_ratios,
)
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.bench.records.ways_of_training import BASELINE, way_of
from tfunet.config.keys import WAY, describe, flat, show, show_setting
from tfunet.machine.cpu_memory import VARIABLES

# These variables are facts of the machine if set by hand, but settings if `cpu_memory` set them.
CAP_SWITCHES = tuple(f"switches.{name}" for name in VARIABLES)
# Settings in which the cells of a family may differ.
SCALED = ("num_replicas", "replica_batch", "global_batch", "seed", "fold")
# With more ways than this, each is shown against the fastest only, not against each other.
SCALINGS = ("weak", "strong")
MAX_PAIRWISE = 3
# More runs than this are counted, not named.
MOST_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class SpeedComparison:
    """How many times as fast `upper` is as `lower`, both with the same number of replicas.

    `adjusted_p` is the p-value of `ratio`, adjusted for all comparisons of speeds, or None.
    """

    upper: Cell
    lower: Cell
    ratio: Estimate
    adjusted_p: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict, adjusted for the number of comparisons."""
        return speed_verdict(self.ratio, self.adjusted_p)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Cells that differ only in backend and number of replicas, so that they can be compared.

    Args:
        scaling: "weak" (fixed batch of each replica) or "strong" (fixed global batch).
        baseline: The way whose one replica is the baseline: "single", or the only one there is.
        comparisons: All pairs of ways with equal numbers of replicas, the faster one first.
    """

    scaling: str
    settings: Mapping[str, Any]
    cells: tuple[Cell, ...]
    baseline: str | None
    comparisons: tuple[SpeedComparison, ...]
    runs: tuple[str, ...] = ()  # The names of its runs, where no study planned them.

    @property
    def title(self) -> str:
        """The settings, or the runs, in one line; empty if there is only one family."""
        if not self.runs or not self.settings:
            return describe(self.settings)
        rest = len(self.runs) - MOST_RUNS
        more = [f"{rest} more"] if rest > 0 else []
        return ", ".join([*self.runs[:MOST_RUNS], *more])

    def label_of(self, cell: Cell) -> str:
        """Return what tells a cell of this family from all others of the report."""
        between = "of" if self.runs else "with"
        return f"{cell.label} {between} {self.title}" if self.title else cell.label

    @property
    def num_folds(self) -> int:
        """Folds that its runs held out; 1 without a cross-validation."""
        return num_folds([trial for cell in self.cells for trial in cell.trials])

    @property
    def ways(self) -> list[str]:
        """The ways of training, in order."""
        return list(dict.fromkeys(cell.way for cell in self.cells))

    @property
    def largest_cells(self) -> list[Cell]:
        """The cell of each way with the most replicas, of those with numbers."""
        by_way: dict[str, Cell] = {}
        for cell in self.cells:
            before = by_way.get(cell.way)
            if cell.results and (before is None or cell.num_replicas > before.num_replicas):
                by_way[cell.way] = cell
        return list(by_way.values())

    @property
    def main_comparisons(self) -> list[SpeedComparison]:
        """The comparisons to show: of many ways, only those with the fastest one."""
        shown = []
        for _, group in itertools.groupby(self.comparisons, lambda pair: pair.upper.num_replicas):
            pairs = list(group)
            labels = {cell.label for pair in pairs for cell in (pair.upper, pair.lower)}
            fastest = max((pair.upper for pair in pairs), key=_median_speed).label
            shown += [
                pair
                for pair in pairs
                if len(labels) <= MAX_PAIRWISE or fastest in (pair.upper.label, pair.lower.label)
            ]
        return shown


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A sweep, ready to be reported: settings and facts of the machine that are equal for all
    trials, and those that differ, with their values or the number of trials of each value.

    A sweep of samples is an ensemble instead of families.
    """

    sweep: SweepRecord
    families: tuple[Family, ...]
    ensemble: Ensemble | None
    varying: Mapping[str, Sequence[str]]
    fixed: Mapping[str, Any]
    environment: Mapping[str, Any]
    environment_differences: Mapping[str, Mapping[str, int]]

    @property
    def num_comparisons(self) -> int:
        """Number of ratios of speeds with a verdict; p-values are adjusted for it."""
        pairs = [pair for family in self.families for pair in family.comparisons]
        return sum(pair.adjusted_p is not None for pair in pairs)

    @property
    def not_done(self) -> list[TrialRecord]:
        """Trials without numbers."""
        return [trial for trial in self.sweep.trials if trial.result is None]

    @property
    def lone_run(self) -> TrialRecord | None:
        """The trial of a report on one run; None for others."""
        trials = self.sweep.trials
        is_alone = len(trials) == 1 and not self.sweep.skipped
        return trials[0] if is_alone and not self.sweep.samples else None

    @property
    def array_score(self) -> str:
        """The main score of runs on arrays; "" where cases have masks, or numbers to predict."""
        return next((name for cell in self._cells for name in cell.scores), "")

    @property
    def _cells(self) -> list[Cell]:
        return [cell for family in self.families for cell in family.cells]

    @property
    def num_unfinished(self) -> int:
        """Trials that the same command would run or go on with."""
        states = ("waiting", "running", "interrupted")
        return sum(trial.state in states for trial in self.sweep.trials)


def summarise(sweep: SweepRecord) -> Summary:
    """Return the summary of a sweep's trials, less those whose settings cannot be read."""
    trials = sorted(sweep.readable, key=lambda trial: trial.cell)
    families = [
        family if sweep.is_study else replace(family, runs=_names_of_runs(family))
        for family in families_of(trials)
    ]
    rows = [{**flat(vars(trial.config)), "seed": None} for trial in trials]
    keys = list(dict.fromkeys(key for row in rows for key in row if key != "seed"))
    values = {
        key: list(dict.fromkeys(show_setting(key, row.get(key)) for row in rows)) for key in keys
    }
    environment, differences = shared_environment(sweep.trials)
    return Summary(
        sweep=sweep,
        # Every sample would be a family of its own, with nothing to compare in it.
        families=() if sweep.samples else _judged(families),
        ensemble=ensemble_of(sweep),
        varying={key: values[key] for key in keys if len(values[key]) > 1},
        fixed={key: rows[0].get(key) for key in keys if len(values[key]) == 1},
        environment=environment,
        environment_differences=differences,
    )


def families_of(trials: Sequence[TrialRecord]) -> list[Family]:
    """Sort trials into families; a cell with one replica can be in several of them.

    Folds are repeats of a cell.
    """
    trials = folds_as_repeats(trials)
    groups: dict[tuple[str, str, int], list[TrialRecord]] = {}
    for trial in trials:
        if trial.config.num_replicas > 1:
            groups.setdefault(_key(trial, trial.scaling), []).append(trial)
    for trial in trials:
        if trial.config.num_replicas == 1:
            keys = [key for scaling in SCALINGS if (key := _key(trial, scaling)) in groups]
            for key in keys or [_key(trial, trial.scaling)]:
                groups.setdefault(key, []).append(trial)
    rows = [_family_settings(members[0], key[1]) for key, members in groups.items()]
    differing = differing_keys(rows)
    return [
        _family(members, scaling, {key: row.get(key) for key in differing})
        for ((_, scaling, _), members), row in zip(groups.items(), rows, strict=True)
    ]


def differing_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not shown the same in all rows."""
    every = dict.fromkeys(key for row in rows for key in row)
    return [key for key in every if len({show(row.get(key)) for row in rows}) > 1]


def _names_of_runs(family: Family) -> tuple[str, ...]:
    return tuple(trial.id for cell in family.cells for trial in cell.trials)


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the cells of a family in groups of equal numbers of replicas."""
    return [list(group) for _, group in itertools.groupby(cells, lambda cell: cell.num_replicas)]


def _key(trial: TrialRecord, scaling: str) -> tuple[str, str, int]:
    values = _settings(trial)
    rest = {key: value for key, value in values.items() if key not in (*WAY, *SCALED)}
    return repr(rest), scaling, values[_fixed_batch(scaling)]


def _settings(trial: TrialRecord) -> dict[str, Any]:
    settings = dict(vars(trial.config))
    if settings["swap_disk"] is not None:
        settings["swap_disk"] = "on disk"  # The folder differs from machine to machine.
    return settings


def _fixed_batch(scaling: str) -> str:
    return "global_batch" if scaling == "strong" else "replica_batch"


def _family_settings(trial: TrialRecord, scaling: str) -> dict[str, Any]:
    settings = flat(_settings(trial))
    kept = {
        key: value
        for key, value in settings.items()
        if key.partition(".")[0] not in (*WAY, *SCALED)
    }
    return {**kept, "scaling": scaling, _fixed_batch(scaling): settings[_fixed_batch(scaling)]}


def _family(trials: Sequence[TrialRecord], scaling: str, settings: Mapping[str, Any]) -> Family:
    groups: dict[tuple[str, int], list[TrialRecord]] = {}
    for trial in trials:
        groups.setdefault((way_of(trial), trial.config.num_replicas), []).append(trial)
    # The baseline comes first, the others as in the study.
    names = sorted(dict.fromkeys(way for way, _ in groups), key=lambda way: way != BASELINE)
    order = sorted(groups, key=lambda key: (key[1], names.index(key[0])))
    # A sample that is split over devices is no baseline: there is more than one.
    with_one = [
        way for way, count in order if count == 1 and groups[way, count][0].config.num_devices == 1
    ]
    has_single = BASELINE in with_one
    baseline = BASELINE if has_single else (with_one[0] if len(with_one) == 1 else None)
    cells = []
    for way, num_replicas in order:
        members = groups[way, num_replicas]
        config = members[0].config
        has_baseline = baseline is not None or config.num_devices == num_replicas
        reference = groups.get((baseline or way, 1), []) if has_baseline else []
        cells.append(
            Cell(
                way=way,
                num_replicas=num_replicas,
                replica_batch=config.replica_batch or 0,
                global_batch=config.global_batch or 0,
                trials=tuple(sorted(members, key=lambda trial: trial.repeat)),
                is_baseline=config.num_devices == 1 and way == (baseline or way),
                speed_up=speed_ratio(members, reference),
                speed_up_repeats=speed_ratios(members, reference),
                score_difference=score_difference(members, reference),
                lost=lost_by_repeat(members, reference, scaling),
            )
        )
    return Family(
        scaling=scaling,
        settings=settings,
        cells=tuple(cells),
        baseline=baseline,
        comparisons=tuple(
            pair
            for group in groups_of(cells)
            for pair in _compare([cell for cell in group if cell.results])
        ),
    )


def _compare(cells: Sequence[Cell]) -> list[SpeedComparison]:
    ranked = sorted(cells, key=_median_speed, reverse=True)
    comparisons = []
    for upper, lower in itertools.combinations(ranked, 2):
        times = speed_ratio(upper.trials, lower.trials)
        if times is not None:
            # Medians and paired repeats can rank two cells differently.
            if times.value < 1 and (turned := speed_ratio(lower.trials, upper.trials)) is not None:
                upper, lower, times = lower, upper, turned
            comparisons.append(SpeedComparison(upper=upper, lower=lower, ratio=times))
    return comparisons


def _median_speed(cell: Cell) -> float:
    return cell.images_per_second.median if cell.images_per_second else 0.0


def _judged(families: Sequence[Family]) -> tuple[Family, ...]:
    """Return the families with p-values, adjusted over all speeds and over all scores.

    Pairs that are not shown count too, because the fastest way is only known afterwards. Speeds and
    scores answer different questions, so they are adjusted apart.
    """
    pairs = [pair for family in families for pair in family.comparisons]
    speeds = iter(adjusted_p_values([pair.ratio for pair in pairs]))
    scores = iter(
        adjusted_p_values(
            [_score_difference(family, cell) for family in families for cell in family.cells]
        )
    )
    return tuple(
        replace(
            family,
            comparisons=tuple(
                replace(pair, adjusted_p=next(speeds)) for pair in family.comparisons
            ),
            cells=tuple(replace(cell, score_p=next(scores)) for cell in family.cells),
        )
        for family in families
    )


def _score_difference(family: Family, cell: Cell) -> Estimate | None:
    # Without a common baseline, the differences of cells cannot be compared.
    return None if cell.is_baseline or family.baseline is None else cell.score_difference


def shared_environment(
    trials: Iterable[TrialRecord],
) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Return facts that are equal in all trials, and the others with a count of each value."""
    known = [
        {key: value for key, value in trial.environment.items() if _is_fact(key, trial)}
        for trial in trials
        if trial.environment
    ]
    same: dict[str, Any] = {}
    different: dict[str, dict[str, int]] = {}
    for key in dict.fromkeys(key for environment in known for key in environment):
        counts = Counter(str(environment.get(key, "-")) for environment in known)
        if len(counts) > 1:
            different[key] = counts
        else:
            same[key] = known[0].get(key)
    return same, different


def _is_fact(key: str, trial: TrialRecord) -> bool:
    """Whether `key` is a fact of the machine, not a setting or a number of the trial."""
    if trial.config.cpu_memory is not None and key in CAP_SWITCHES:
        return False
    return key != "cores" and not key.startswith("slurm.")
