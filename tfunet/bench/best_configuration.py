"""Finds out how to predict best, by the held-out cases of a study: `tfunet best`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.bench.analysis.cleaned_cases import (
    ComparedCase,
    Removal,
    choose_cleaning,
    compare,
    mean_dice,
    paired,
)
from tfunet.bench.analysis.confidence_intervals import Estimate
from tfunet.bench.analysis.sweep_summary import differing_keys
from tfunet.bench.records.sweep_record import TrialRecord, read_sweep
from tfunet.config.keys import describe, flat
from tfunet.config.run import RunConfig
from tfunet.data.source import DataSource
from tfunet.prediction.best_file import Best, write_best
from tfunet.prediction.cleaning import Cleaning
from tfunet.process.terminal import columns, counted, lines_of
from tfunet.record import RunFolder

# What differs between runs of one configuration.
NOT_OF_CONFIGURATION = ("fold", "seed")


@final
@dataclass(frozen=True, kw_only=True)
class ConfigurationRuns:
    """The runs of one configuration: its folds and repeats.

    Args:
        runs: The cases that each run held out.
    """

    name: str
    runs: Mapping[Path, tuple[str, ...]]

    @property
    def cases(self) -> frozenset[str]:
        """The cases that were held out."""
        return frozenset(case for cases in self.runs.values() for case in cases)

    def runs_without(self, case: str) -> tuple[Path, ...]:
        """Return the runs that held out a case."""
        return tuple(run for run, cases in self.runs.items() if case in cases)


@final
@dataclass(frozen=True, kw_only=True)
class PredictionWay:
    """A way to predict: the configurations that predict together, and whether with mirrors."""

    configurations: tuple[int, ...]
    mirror: bool


@final
@dataclass(kw_only=True)
class WaysCompared:
    """What a study says about ways to predict.

    Args:
        names: Names of the configurations.
        cases: Predictions against the masks in each way; in the same order of cases.
        alone: Mean Dice (cases, regions) of single runs, for each way in which several runs predict
            a case.
        label_names: A name for each label.
        notes: What the user must know.
        has_background: Whether there is a label that removed components get.
    """

    names: tuple[str, ...]
    regions: tuple[str, ...]
    cases: Mapping[PredictionWay, Sequence[ComparedCase]]
    alone: Mapping[PredictionWay, np.ndarray]
    label_names: Mapping[int, str]
    notes: tuple[str, ...] = ()
    has_background: bool = True
    cleaning: Cleaning = field(init=False)
    trials: list[Removal] = field(init=False)

    def __post_init__(self) -> None:
        self.ways = sorted(self.cases, key=lambda way: -self._means(way).mean())
        self.cleaning, self.trials = Cleaning(), []
        if self.has_background:
            self.cleaning, self.trials = choose_cleaning(self.cases[self.best])

    @property
    def best(self) -> PredictionWay:
        """The way with the highest mean Dice."""
        return self.ways[0]

    def _means(self, way: PredictionWay) -> np.ndarray:
        return mean_dice(self.cases[way], Cleaning()).mean(0)

    def _ahead(self, other: np.ndarray) -> Estimate:
        """Return how far the best way is ahead, over cases, of another's Dice."""
        return paired(mean_dice(self.cases[self.best], Cleaning()), other)

    def name_of(self, way: PredictionWay) -> str:
        """Return a way in words."""
        together = " + ".join(self.names[number] for number in way.configurations)
        return f"{together}, mirrored" if way.mirror else together

    def evidence(self) -> dict[str, Any]:
        """Return the scores of all ways, and what each removal was worth, as JSON types."""
        ways = []
        for name, dice, ahead in self._rows():
            means = dict(zip(self.regions, dice.mean(0).tolist(), strict=True))
            interval = ahead and [ahead.value, ahead.low, ahead.high]
            ways.append({"way": name, "dice": means, "best_is_ahead_by": interval})
        trials = [
            {**asdict(trial), "gain": [trial.gain.value, trial.gain.low, trial.gain.high]}
            for trial in self.trials
        ]
        cases = len(self.cases[self.best])
        return {"way": self.name_of(self.best), "cases": cases, "ways": ways, "removals": trials}

    def _rows(self) -> Iterator[tuple[str, np.ndarray, Estimate | None]]:
        """Give each way and its runs alone: name, Dice, how far the best is ahead; best first."""
        for way in self.ways:
            dice = mean_dice(self.cases[way], Cleaning())
            yield self.name_of(way), dice, None if way == self.best else self._ahead(dice)
        for way, dice in self.alone.items():
            yield f"{self.name_of(way)}, each run alone", dice, self._ahead(dice)

    def text(self) -> str:
        """Return the comparison for a terminal."""
        rows = [["way", *(f"Dice {region}" for region in self.regions), "best is ahead by"]]
        for name, dice, ahead in self._rows():
            by = "-" if ahead is None else _interval(ahead)
            rows.append([name, *(f"{mean:.3f}" for mean in dice.mean(0)), by])
        lines = [*columns(rows), ""]
        kept = [trial for trial in self.trials if trial.is_kept]
        for trial in kept:
            name = f"class {self.label_names[trial.label]}"
            lines.append(
                f"Of {name} only {_rule(trial.rule)} kept: mean Dice {_interval(trial.gain)}, "
                f"{counted(trial.better, 'case')} better, {trial.worse} worse."
            )
        if not self.has_background:
            lines.append("No components are removed: without a background each pixel has a class.")
        elif not kept:
            lines.append("Removing small components does not help.")
        return "\n".join([*lines, *self.notes])


def find_best(study: Path, *, mirror: bool = False) -> tuple[WaysCompared, Path]:
    """Compare all ways to predict with the runs of a study, and write best.json there.

    Raises ValueError for a study without finished runs, or whose runs do not fit together.
    """
    configurations, notes = _configurations(read_sweep(study).readable)
    comparison = _compare(configurations, notes, mirror=mirror)
    best = Best(
        runs=tuple(run for at in comparison.best.configurations for run in configurations[at].runs),
        mirror=comparison.best.mirror,
        cleaning=comparison.cleaning,
        label_names=comparison.label_names,
    )
    return comparison, write_best(study, best, comparison.evidence())


def _configurations(
    trials: Iterable[TrialRecord],
) -> tuple[list[ConfigurationRuns], tuple[str, ...]]:
    """Return the configurations that held out every case, and a line for each of the others."""
    groups: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        settings = {
            key: value
            for key, value in asdict(trial.config).items()
            if key not in NOT_OF_CONFIGURATION
        }
        groups.setdefault(repr(sorted(settings.items())), []).append(trial)
    names = _names([members[0].config for members in groups.values()])
    every: list[ConfigurationRuns] = []
    for name, members in zip(names, groups.values(), strict=True):
        runs = {
            trial.folder: tuple((RunFolder(trial.folder).read_split() or {})["validation"])
            for trial in members
            if trial.state == "done"
        }
        every.append(ConfigurationRuns(name=name, runs=runs))
    cases = frozenset().union(*(configuration.cases for configuration in every))
    if not cases:
        raise ValueError("The study has no finished run. Run it: tfunet sweep run STUDY.toml")
    whole = [configuration for configuration in every if configuration.cases == cases]
    notes = tuple(
        f"Left out: {configuration.name}. {len(cases - configuration.cases)} of {len(cases)} cases "
        "were held out by none of its finished runs."
        for configuration in every
        if configuration.cases != cases
    )
    if not whole:
        raise ValueError(
            f"No configuration of the study has held out all {len(cases)} cases. Let its runs "
            "finish, or give all of them the same folds."
        )
    return whole, notes


def _names(configs: Sequence[RunConfig]) -> list[str]:
    """Return what tells each configuration apart from the others, in words."""
    settings = [flat(asdict(config)) for config in configs]
    keys = [key for key in differing_keys(settings) if key not in NOT_OF_CONFIGURATION]
    return [
        describe({key: each[key] for key in keys if key in each}) or config.model
        for each, config in zip(settings, configs, strict=True)
    ]


def _compare(
    configurations: Sequence[ConfigurationRuns], notes: tuple[str, ...], *, mirror: bool
) -> WaysCompared:
    from tfunet.prediction.ensemble import load_members
    from tfunet.prediction.held_out import HeldOut

    first = [next(iter(configuration.runs)) for configuration in configurations]
    load_members(first)  # Says what does not fit together.
    networks: dict[tuple[int, bool], HeldOut] = {
        (number, flag): HeldOut(tuple(configuration.runs), mirror=flag)
        for flag in ((False, True) if mirror else (False,))
        for number, configuration in enumerate(configurations)
    }
    source = networks[0, False].source
    labels_of = networks[0, False].first.network.outputs.most_probable
    ways = _ways([networks[at, False].first.network.patch for at in range(len(first))], mirror)
    cases: dict[PredictionWay, list[ComparedCase]] = {way: [] for way in ways}
    alone: dict[PredictionWay, list[np.ndarray]] = {}
    # Cases with the same runs one after the other: a network is loaded once.
    held_out = sorted(configurations[0].cases, key=configurations[0].runs_without)
    for done, case in enumerate(held_out):
        print(
            lines_of(f"Predicting held-out case {done + 1} of {len(held_out)}: {case}"), flush=True
        )
        means = {}
        for (number, flag), network in networks.items():
            runs = configurations[number].runs_without(case)
            image, mask = network.source.read(network.source.case_ids.index(case))
            each = network.probabilities(image, runs)
            means[number, flag] = np.mean(each, 0, dtype=np.float32)
            if len(runs) > 1:
                of_runs = [
                    _compare_case(labels_of(probabilities), mask, source).dice(Cleaning())
                    for probabilities in each
                ]
                way = PredictionWay(configurations=(number,), mirror=flag)
                alone.setdefault(way, []).append(np.mean(of_runs, 0))
        for way in ways:
            together = [means[at, way.mirror] for at in way.configurations]
            mean = np.mean(together, 0, dtype=np.float32)
            cases[way].append(_compare_case(labels_of(mean), mask, source))
    return WaysCompared(
        names=tuple(configuration.name for configuration in configurations),
        regions=tuple(source.regions),
        cases=cases,
        # Elsewhere some cases have one run only, and the means would be over other cases.
        alone={way: np.stack(dice) for way, dice in alone.items() if len(dice) == len(held_out)},
        notes=notes,
        label_names=source.label_names(),
        has_background=source.has_background,
    )


def _compare_case(labels: np.ndarray, mask: np.ndarray, source: DataSource) -> ComparedCase:
    """Return predicted labels against a mask."""
    if source.ignored is not None:
        labels[mask == source.ignored] = 0
    return compare(labels, mask, tuple(source.regions.values()), source.num_classes)


def _ways(patches: Sequence[tuple[int, ...]], mirror: bool) -> list[PredictionWay]:
    """Return each configuration, each pair with one patch, and all of them, if they have one."""
    numbers = range(len(patches))
    groups: list[tuple[int, ...]] = [(number,) for number in numbers]
    groups += [pair for pair in combinations(numbers, 2) if patches[pair[0]] == patches[pair[1]]]
    if len(patches) > 2 and len(set(patches)) == 1:
        groups.append(tuple(numbers))
    flags = (False, True) if mirror else (False,)
    return [PredictionWay(configurations=group, mirror=flag) for flag in flags for group in groups]


def _rule(rule: str) -> str:
    if rule == "largest":
        return "the largest component is"
    return f"components of {rule} voxels are"


def _interval(estimate: Estimate) -> str:
    if not estimate.has_interval:
        return f"{estimate.value:+.4f}"
    return f"{estimate.value:+.4f} ({estimate.low:+.4f} to {estimate.high:+.4f})"
