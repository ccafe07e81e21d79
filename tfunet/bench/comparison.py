"""Turns trials into what a report shows: cells with their spread, speed-up and comparisons."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfunet.backend import ONE_PROCESS
from tfunet.bench.collect import Result, SweepRecord, TrialRecord
from tfunet.bench.settings import describe, flat, show
from tfunet.bench.stats import Estimate, Spread, difference, efficiency, ratio, spread

# What distinguishes the ways of training that are compared, and what only scales with them.
WAY = ("backend", "backend_options", "processes")
SCALED = ("num_replicas", "replica_batch", "global_batch", "seed")
BASELINE = "single"
PHASES = ("start", "first step", "steady steps", "evaluation", "saving")
# With more ways than this, each is compared with the fastest only, not each with each.
MAX_PAIRWISE = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All repeats of one combination of settings.

    Args:
        way: Backend with its options: what is compared, and never drawn as one line with another.
        trials: All of them; `done` are those whose numbers count.
        speed_up: Images per second over those of the baseline; None without one.
        speed_up_repeats: The same of every repeat: over the baseline's of that repeat where it
            has one, else over its median.
        dice_difference: Mean Dice less that of the baseline; None without one.
    """

    way: str
    num_replicas: int
    replica_batch: int
    global_batch: int
    trials: tuple[TrialRecord, ...]
    is_baseline: bool
    speed_up: Estimate | None
    speed_up_repeats: tuple[float, ...]
    dice_difference: Estimate | None

    @property
    def label(self) -> str:
        """Way and replicas: "horovod x2"."""
        return f"{self.way} x{self.num_replicas}"

    @property
    def done(self) -> tuple[TrialRecord, ...]:
        """The trials that ended with all their checks true."""
        return tuple(trial for trial in self.trials if trial.result is not None)

    @property
    def results(self) -> tuple[Result, ...]:
        """Their results."""
        return tuple(trial.result for trial in self.trials if trial.result is not None)

    @property
    def images_per_second(self) -> Spread | None:
        """Of all replicas together, over steady steps."""
        return _spread(result.images_per_second for result in self.results)

    @property
    def efficiency(self) -> float | None:
        """Speed-up per replica."""
        return None if self.speed_up is None else efficiency(self.speed_up.value, self.num_replicas)

    @property
    def resident_bytes(self) -> Spread | None:
        """Peak resident memory, summed over the processes."""
        return _spread(sum(one.peak_resident_bytes) or None for one in self.results)

    @property
    def device_bytes(self) -> Spread | None:
        """Peak device memory of the process that needed most."""
        return _spread(max(one.peak_device_bytes, default=None) for one in self.results)

    @property
    def regions(self) -> list[str]:
        """Names of the regions that were scored."""
        return list(dict.fromkeys(region for result in self.results for region in result.dice))

    def dice(self, region: str) -> Spread | None:
        """Return the mean Dice over cases, over the repeats."""
        return _spread(one.dice.get(region) for one in self.results)

    def iou(self, region: str) -> Spread | None:
        """Return the mean IoU over cases, over the repeats."""
        return _spread(one.iou.get(region) for one in self.results)

    @property
    def mean_dice(self) -> Spread | None:
        """Mean over regions of `dice`, over the repeats."""
        return _spread(one.mean_dice for one in self.results)

    @property
    def phases(self) -> dict[str, float] | None:
        """Median seconds of each phase of a run; None without results."""
        rows = [_phases(result) for result in self.results]
        if not rows:
            return None
        return {name: spread([row[name] for row in rows]).median for name in PHASES}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How many times as fast `upper` is as `lower`, both with the same number of replicas."""

    upper: Cell
    lower: Cell
    ratio: Estimate


@dataclass(frozen=True, kw_only=True)
class Family:
    """Cells that differ in backend and number of replicas only, so that they can be compared.

    Args:
        scaling: "weak" (a fixed batch for each replica) or "strong" (a fixed global batch).
        settings: In what the family differs from the other ones of the sweep.
        cells: Sorted by number of replicas.
        baseline: One replica of the single-device backend, else of the only way that has one.
    """

    scaling: str
    settings: Mapping[str, Any]
    cells: tuple[Cell, ...]
    baseline: str | None

    @property
    def title(self) -> str:
        """The settings in one line; empty where there is only one family."""
        return describe(self.settings)

    @property
    def ways(self) -> list[str]:
        """The ways of training, in order."""
        return list(dict.fromkeys(cell.way for cell in self.cells))

    @property
    def comparisons(self) -> list[Comparison]:
        """Ways against each other at equal numbers of replicas, the faster one first."""
        found = []
        for _, group in itertools.groupby(self.cells, lambda cell: cell.num_replicas):
            found += _compare([cell for cell in group if cell.results])
        return found


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A sweep, ready to be shown.

    Args:
        varying: Settings that differ between trials, with their values.
        fixed: Settings that are the same in all.
        environment: Facts of the machine that are the same for all trials.
        environment_differences: Those that differ, with the number of trials of each value.
    """

    sweep: SweepRecord
    families: tuple[Family, ...]
    varying: Mapping[str, Sequence[str]]
    fixed: Mapping[str, Any]
    environment: Mapping[str, Any]
    environment_differences: Mapping[str, Mapping[str, int]]

    @property
    def not_done(self) -> list[TrialRecord]:
        """Trials without numbers, each with its reason."""
        return [trial for trial in self.sweep.trials if trial.result is None]


def summarise(sweep: SweepRecord) -> Summary:
    """Return the summary of a sweep's trials."""
    trials = sorted(sweep.trials, key=lambda trial: trial.cell)
    rows = [{**flat(vars(trial.config)), "seed": None} for trial in trials]
    keys = list(dict.fromkeys(key for row in rows for key in row if key != "seed"))
    values = {key: list(dict.fromkeys(show(row.get(key)) for row in rows)) for key in keys}
    environment, differences = _environment(sweep.trials)
    return Summary(
        sweep=sweep,
        families=tuple(_families(trials)),
        varying={key: values[key] for key in keys if len(values[key]) > 1},
        fixed={key: rows[0].get(key) for key in keys if len(values[key]) == 1},
        environment=environment,
        environment_differences=differences,
    )


def way_of(trial: TrialRecord) -> str:
    """Return the name of a trial's way of training: backend, options and processes if given."""
    config = trial.config
    parts = [config.backend]
    parts += [f"{key}={show(value)}" for key, value in sorted(config.backend_options.items())]
    # A process for each replica, where there are several, is what comes without being asked for.
    usual = config.backend in ONE_PROCESS or config.processes == config.num_replicas > 1
    if config.processes is not None and not usual:
        parts.append(f"processes={config.processes}")
    return " ".join(parts)


def _families(trials: Sequence[TrialRecord]) -> list[Family]:
    """Sort trials into families; a cell with one replica is the baseline of several of them."""
    groups: dict[tuple[str, str, int], list[TrialRecord]] = {}
    for trial in trials:
        if trial.config.num_replicas > 1:
            groups.setdefault(_key(trial, trial.scaling), []).append(trial)
    for trial in trials:
        if trial.config.num_replicas == 1:
            keys = [key for key in groups if key == _key(trial, key[1])]
            for key in keys or [_key(trial, trial.scaling)]:
                groups.setdefault(key, []).append(trial)
    rows = [_family_settings(members[0], key[1]) for key, members in groups.items()]
    differing = [
        key
        for key in dict.fromkeys(key for row in rows for key in row)
        if len({show(row.get(key)) for row in rows}) > 1
    ]
    return [
        _family(members, scaling, {key: row.get(key) for key in differing})
        for ((_, scaling, _), members), row in zip(groups.items(), rows, strict=True)
    ]


def _key(trial: TrialRecord, scaling: str) -> tuple[str, str, int]:
    values = vars(trial.config)
    rest = {key: value for key, value in values.items() if key not in (*WAY, *SCALED)}
    return repr(rest), scaling, values[_fixed_batch(scaling)]


def _fixed_batch(scaling: str) -> str:
    return "global_batch" if scaling == "strong" else "replica_batch"


def _family_settings(trial: TrialRecord, scaling: str) -> dict[str, Any]:
    settings = flat(vars(trial.config))
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
    # Single first, for it is what the others are measured by; else as in the study.
    names = sorted(dict.fromkeys(way for way, _ in groups), key=lambda way: way != BASELINE)
    order = sorted(groups, key=lambda key: (key[1], names.index(key[0])))
    with_one = [way for way, count in order if count == 1]
    has_single = BASELINE in with_one
    baseline = BASELINE if has_single else (with_one[0] if len(with_one) == 1 else None)
    cells = []
    for way, num_replicas in order:
        members = groups[way, num_replicas]
        reference = groups.get((baseline or way, 1), [])
        config = members[0].config
        cells.append(
            Cell(
                way=way,
                num_replicas=num_replicas,
                replica_batch=config.replica_batch or 0,
                global_batch=config.global_batch or 0,
                trials=tuple(sorted(members, key=lambda trial: trial.repeat)),
                is_baseline=num_replicas == 1 and way == (baseline or way),
                speed_up=_ratio(members, reference),
                speed_up_repeats=_repeat_ratios(members, reference),
                dice_difference=_dice_difference(members, reference),
            )
        )
    return Family(scaling=scaling, settings=settings, cells=tuple(cells), baseline=baseline)


def _compare(cells: Sequence[Cell]) -> list[Comparison]:
    def speed(cell: Cell) -> float:
        found = cell.images_per_second
        return -found.median if found else 0.0

    ranked = sorted(cells, key=speed)
    pairs = list(itertools.combinations(ranked, 2))
    if len(ranked) > MAX_PAIRWISE:
        pairs = [(ranked[0], other) for other in ranked[1:]]
    found = []
    for upper, lower in pairs:
        times = _ratio(upper.trials, lower.trials)
        if times is not None:
            # Medians can rank two cells one way and the repeats, pair by pair, the other way.
            if times.value < 1 and (turned := _ratio(lower.trials, upper.trials)) is not None:
                upper, lower, times = lower, upper, turned
            found.append(Comparison(upper=upper, lower=lower, ratio=times))
    return found


def _ratio(upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]) -> Estimate | None:
    top, bottom = _by_repeat(upper, _images_per_second), _by_repeat(lower, _images_per_second)
    return ratio(top, bottom) if top and bottom else None


def _repeat_ratios(upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]) -> tuple[float, ...]:
    top, bottom = _by_repeat(upper, _images_per_second), _by_repeat(lower, _images_per_second)
    if not bottom:
        return ()
    typical = spread(list(bottom.values())).median
    return tuple(value / bottom.get(repeat, typical) for repeat, value in top.items())


def _dice_difference(upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]) -> Estimate | None:
    top, bottom = _by_repeat(upper, _mean_dice), _by_repeat(lower, _mean_dice)
    return difference(top, bottom) if top and bottom else None


def _by_repeat(
    trials: Iterable[TrialRecord], value: Callable[[Result], float | None]
) -> dict[int, float]:
    found = {trial.repeat: value(trial.result) for trial in trials if trial.result is not None}
    return {repeat: one for repeat, one in found.items() if one is not None}


def _images_per_second(result: Result) -> float:
    return result.images_per_second


def _mean_dice(result: Result) -> float | None:
    return result.mean_dice


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [float(value) for value in values if value is not None]
    return spread(known) if known else None


def _phases(result: Result) -> dict[str, float]:
    first = result.first_step_seconds or 0.0
    return {
        "start": result.start_seconds or 0.0,
        "first step": first,
        # training_seconds holds the first step too.
        "steady steps": max(0.0, (result.training_seconds or 0.0) - first),
        "evaluation": result.evaluation_seconds or 0.0,
        "saving": result.saving_seconds or 0.0,
    }


def _environment(
    trials: Sequence[TrialRecord],
) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Return facts that all trials share, and those that differ with their numbers of trials."""
    # The cores of a run follow from its settings; job numbers differ always.
    known = [
        {
            key: value
            for key, value in trial.environment.items()
            if key != "cores" and not key.startswith("slurm.")
        }
        for trial in trials
        if trial.environment
    ]
    same: dict[str, Any] = {}
    different: dict[str, dict[str, int]] = {}
    for key in dict.fromkeys(key for one in known for key in one):
        counts: dict[str, int] = {}
        for one in known:
            text = str(one.get(key, "-"))
            counts[text] = counts.get(text, 0) + 1
        if len(counts) > 1:
            different[key] = counts
        else:
            same[key] = known[0].get(key)
    return same, different
