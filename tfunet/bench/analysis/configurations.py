"""Compares the scores of configurations: models, losses and other settings of training. Pure but
for reading cases.csv.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tfunet.bench.analysis.case_dice import dice_by_case, truth_by_case
from tfunet.bench.analysis.case_metric_means import by_case, by_repeat, metric_names
from tfunet.bench.analysis.confidence_intervals import (
    Estimate,
    adjusted_p_values,
    difference,
    mean,
)
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.records.ways_of_training import by_repeat as trials_by_repeat
from tfunet.config.keys import MAY_CHANGE, WAY, describe, flat, show

# Settings that change neither the network nor its training; ways of training have a name of their
# own.
NEUTRAL = frozenset((*MAY_CHANGE, *WAY, "swap", "metrics", "seed", "fold"))
# The mean over several regions.
MEAN = "mean"
# The score of all validation cases together; its mean over regions is the mIoU.
DATASET_IOU = "dataset IoU"
# More cells are compared with the best one only.
MOST_PAIRED = 100


@dataclass(frozen=True, kw_only=True)
class Score:
    """A metric of a region, or the mean of the main one over regions.

    Args:
        mean: Over the repeats.
        from_best: The difference from the best configuration; None for the best itself.
        adjusted_p: p-value of `from_best`, adjusted for all pairs of configurations, or None.
        from_best_over_cases: The same as `from_best`, over the cases instead of the repeats.
    """

    metric: str
    region: str
    mean: Estimate
    from_best: Estimate | None = None
    adjusted_p: float | None = None
    from_best_over_cases: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The runs of one configuration.

    Args:
        settings: Those in which it differs from the others; none if only the way of training does.
        scores: First the one by which it is ranked.
    """

    settings: Mapping[str, Any]
    cell: Cell
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Two or more configurations that were validated on the same masks, the best first.

    Args:
        shared: Settings that tell them from the configurations of other rankings.
        label: Way and number of replicas of all of them; empty if they differ in these.
        num_cases: Validation cases of the best.
    """

    shared: Mapping[str, Any]
    configurations: tuple[Configuration, ...]
    label: str
    num_cases: int

    def name_of(self, configuration: Configuration) -> str:
        """Return a configuration in words."""
        settings = configuration.settings.get("run") or describe(configuration.settings)
        if self.label:
            return settings
        return " with ".join(filter(None, (configuration.cell.label, settings)))


def rankings(families: Sequence[Family]) -> tuple[tuple[Ranking, ...], bool]:
    """Return the rankings of the configurations of a report, and whether there are several
    configurations at all.

    Where every family has a cell of one way and number of replicas, these cells are compared: the
    first such cells, which are those of the baseline. A tournament compares its populations itself.
    """
    chosen = list(_chosen(families))
    settings = _differing([_settings(family, cell) for family, cell in chosen])
    labels = {cell.label for _, cell in chosen}
    groups: list[tuple[dict[int, Any], list[Configuration]]] = []
    for (_, cell), its in zip(chosen, settings, strict=True):
        masks = {trial.repeat: truth_by_case(trial.folder) for trial in cell.done}
        alike = (members for other, members in groups if _have_same_masks(masks, other))
        members = next(alike, None)
        if members is None:
            groups.append((masks, members := []))
        members.append(Configuration(settings=its, cell=cell))
    found = [
        _rank(masks, members, next(iter(labels)) if len(labels) == 1 else "")
        for masks, members in groups
        if len(members) > 1
    ]
    return tuple(found), len(chosen) > 1


def _chosen(families: Sequence[Family]) -> Iterator[tuple[Family, Cell]]:
    """Yield one cell of each configuration that has a Dice, if this can be, of the same label."""
    scored = {
        number: cells
        for number, family in enumerate(families)
        if (cells := [cell for cell in family.cells if cell.mean_dice is not None])
        and not any(trial.config.tournament for cell in cells for trial in cell.trials)
    }
    labels = [[cell.label for cell in cells] for cells in scored.values()]
    common = [label for label in labels[0] if all(label in its for its in labels)] if labels else []
    seen = set()
    for number, cells in scored.items():
        for cell in cells:
            if len(scored) > 1 and common and cell.label != common[0]:
                continue
            # Settings that change no score make no configuration, nor does a second family.
            key = (cell.label, repr(_settings(families[number], cell)))
            if key not in seen:
                seen.add(key)
                yield families[number], cell


def _settings(family: Family, cell: Cell) -> dict[str, Any]:
    settings = flat(vars(cell.trials[0].config))
    kept = {k: value for k, value in settings.items() if k.partition(".")[0] not in NEUTRAL}
    return {"run": family.title, **kept} if family.runs else kept


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return of each row what is not the same in all; of runs that no study planned, the names."""
    keys = [
        key
        for key in dict.fromkeys(key for row in rows for key in row)
        if len({show(row.get(key)) for row in rows}) > 1
    ]
    keys = ["run"] if "run" in keys else keys
    return [{key: row.get(key) for key in keys} for row in rows]


def _have_same_masks(one: Mapping[int, Any], other: Mapping[int, Any]) -> bool:
    common = one.keys() & other.keys()
    return bool(common) and all(one[repeat] == other[repeat] for repeat in common)


def _rank(
    masks: Mapping[int, Mapping[str, Any]], members: Sequence[Configuration], label: str
) -> Ranking:
    regions = members[0].cell.regions
    first = _main_metric([each.cell for each in members])
    main = (first, MEAN if len(regions) > 1 else regions[0])
    members = sorted(members, key=lambda each: -mean(_repeats(each.cell, *main)).value)
    # In what all agree is said once, above them.
    own = _differing([each.settings for each in members])
    metrics = dict.fromkeys(
        name for each in members for trial in each.cell.done for name in metric_names(trial.config)
    )
    others = [
        (metric, region)
        for metric in dict.fromkeys((first, "Dice", *metrics))
        for region in regions
        if (metric, region) != main
    ]
    scores: list[list[Score]] = [[] for _ in members]
    # That by which they are ranked, and all else, answer different questions.
    for questions in ([main], others):
        for several, row in zip(_scores([m.cell for m in members], questions), scores, strict=True):
            row += several
    return Ranking(
        shared={k: v for k, v in members[0].settings.items() if k not in own[0]},
        configurations=tuple(
            Configuration(settings=settings, cell=each.cell, scores=tuple(row))
            for settings, each, row in zip(own, members, scores, strict=True)
        ),
        label=label,
        num_cases=len({case for truth in masks.values() for case in truth}),
    )


def _scores(cells: Sequence[Cell], questions: Sequence[tuple[str, str]]) -> Iterator[list[Score]]:
    """Yield the scores of each cell; p-values are adjusted for all questions and pairs of cells.

    Pairs without the best count too, because the best is only known afterwards. Of many cells they
    are only counted, which makes p-values no smaller: the pairs grow with the square.
    """
    values = [[_repeats(cell, *question) for cell in cells] for question in questions]
    is_many = len(cells) > MOST_PAIRED
    others = ((0, at) for at in range(1, len(cells)))
    pairs = list(others if is_many else itertools.combinations(range(len(cells)), 2))
    estimates = {
        (number, upper, lower): difference(its[lower], its[upper])
        for number, its in enumerate(values)
        for upper, lower in pairs
        if its[lower] and its[upper]
    }
    num_left_out = len(questions) * (math.comb(len(cells), 2) - len(pairs))
    adjusted = adjusted_p_values(list(estimates.values()), num_others=num_left_out)
    p_values = dict(zip(estimates, adjusted, strict=True))
    for at, cell in enumerate(cells):
        yield [
            Score(
                metric=metric,
                region=region,
                mean=mean(values[number][at]),
                from_best=estimates.get((number, 0, at)),
                adjusted_p=p_values.get((number, 0, at)),
                from_best_over_cases=_over_cases(cell, cells[0], metric, region) if at else None,
            )
            for number, (metric, region) in enumerate(questions)
            if values[number][at]
        ]


def _main_metric(cells: Sequence[Cell]) -> str:
    """Return the score by which cells are ranked: Dice, unless all runs show the dataset IoU."""
    wanted = all(trial.config.epoch_score == "dataset_iou" for cell in cells for trial in cell.done)
    is_known = all(result.dataset_iou for cell in cells for result in cell.results)
    return DATASET_IOU if wanted and is_known else "Dice"


def _repeats(cell: Cell, metric: str, region: str) -> dict[int, float]:
    if metric == DATASET_IOU:
        return trials_by_repeat(
            cell.done,
            lambda result: result.miou if region == MEAN else result.dataset_iou.get(region),
        )
    if region == MEAN:
        return trials_by_repeat(cell.done, lambda result: result.mean_dice)
    return by_repeat(cell, metric, region)


def _over_cases(cell: Cell, best: Cell, metric: str, region: str) -> Estimate | None:
    """Return the difference over cases, each with its mean over the runs that validated it.

    A score of all cases together has none.
    """
    if metric == DATASET_IOU:
        return None
    own, others = (_cases(each, metric, region) for each in (cell, best))
    return difference(own, others) if own and others else None


def _cases(cell: Cell, metric: str, region: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for trial in cell.done:
        if metric != "Dice":
            of_run = by_case(trial.folder, metric, region)
        else:
            of_run = {
                case: fmean(dice.values()) if region == MEAN else dice[region]
                for case, dice in dice_by_case(trial.folder).items()
                if region in (MEAN, *dice)
            }
        for case, value in of_run.items():
            values.setdefault(case, []).append(value)
    return {case: fmean(several) for case, several in values.items()}
