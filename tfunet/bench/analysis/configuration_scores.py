"""The scores of cells that are compared: by repeat, their means, and how far the best is ahead."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.case_metric_means import by_case, by_repeat
from tfunet.bench.analysis.confidence_intervals import (
    Estimate,
    adjusted_p_values,
    difference,
    mean,
)
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.records.ways_of_training import by_repeat as trials_by_repeat

# The mean over several regions.
MEAN = "mean"
# The score of all validation cases together; its mean over regions is the mIoU.
DATASET_IOU = "dataset IoU"
# The mean absolute error of a predicted number, of which less is better.
ERROR = "MAE"
SPEED = "images/s"
# More cells are compared with the best one only.
MOST_PAIRED = 100


@dataclass(frozen=True, kw_only=True)
class Score:
    """A metric of a region, or the mean of the main one over regions.

    Args:
        mode: Which way is better, "max" or "min".
        mean: Over the repeats.
        from_best: The difference from the best configuration; None for the best itself.
        adjusted_p: p-value of `from_best`, adjusted for all pairs of configurations, or None.
        from_best_over_cases: The same as `from_best`, over the cases instead of the repeats.
    """

    metric: str
    region: str
    mean: Estimate
    mode: str = "max"
    from_best: Estimate | None = None
    adjusted_p: float | None = None
    from_best_over_cases: Estimate | None = None


def scores_of_cells(
    cells: Sequence[Cell], questions: Sequence[tuple[str, str]]
) -> Iterator[list[Score]]:
    """Yield the scores of each cell; p-values are adjusted for all questions and pairs of cells.

    Pairs without the best count too, because the best is only known afterwards. With many cells
    they are only counted, which makes p-values no smaller: the pairs grow with the square.
    """
    compared = judged(
        [[values_by_repeat(cell, *question) for cell in cells] for question in questions]
    )
    for at, cell in enumerate(cells):
        yield [
            replace(
                score,
                metric=metric,
                region=region,
                mode=mode_of_score(metric, cells),
                from_best_over_cases=_over_cases(cell, cells[0], metric, region) if at else None,
            )
            for (metric, region), scores in zip(questions, compared, strict=True)
            if (score := scores[at]) is not None
        ]


def judged(values: Sequence[Sequence[Mapping[int, float]]]) -> list[list[Score | None]]:
    """Return the scores of each question, from the values by repeat of its members, the best first;
    None for a member without values.
    """
    estimates: dict[tuple[int, int, int], Estimate] = {}
    num_left_out = 0
    for number, members in enumerate(values):
        is_many = len(members) > MOST_PAIRED
        of_best = [(0, at) for at in range(1, len(members))]
        pairs = of_best if is_many else list(itertools.combinations(range(len(members)), 2))
        num_left_out += math.comb(len(members), 2) - len(pairs)
        estimates |= {
            (number, upper, lower): difference(members[lower], members[upper])
            for upper, lower in pairs
            if members[lower] and members[upper]
        }
    adjusted = adjusted_p_values(list(estimates.values()), num_others=num_left_out)
    p_values = dict(zip(estimates, adjusted, strict=True))
    return [
        [
            Score(
                metric="",
                region="",
                mean=mean(repeats),
                from_best=estimates.get((number, 0, at)),
                adjusted_p=p_values.get((number, 0, at)),
            )
            if repeats
            else None
            for at, repeats in enumerate(members)
        ]
        for number, members in enumerate(values)
    ]


def main_score(cells: Sequence[Cell]) -> tuple[str, str]:
    """Return the score by which cells are ranked, and its region or target: Dice, or the dataset
    IoU if all runs show it; of numbers the error of the first; of arrays their main score.
    """
    regions = cells[0].regions
    if cells[0].scores:
        return next(iter(cells[0].scores)), ""
    if not regions:
        return ERROR, next(iter(cells[0].targets), "")
    region = MEAN if len(regions) > 1 else regions[0]
    wanted = all(trial.config.epoch_score == "dataset_iou" for cell in cells for trial in cell.done)
    is_known = all(result.dataset_iou for cell in cells for result in cell.results)
    return DATASET_IOU if wanted and is_known else "Dice", region


def values_by_repeat(cell: Cell, metric: str, region: str) -> dict[int, float]:
    """Return a score of each repeat that has it, or the speed."""
    if metric == SPEED:
        return cell.speeds
    if metric == DATASET_IOU:
        return trials_by_repeat(
            cell.done,
            lambda result: result.miou if region == MEAN else result.dataset_iou.get(region),
        )
    if metric == ERROR:
        return trials_by_repeat(cell.done, lambda result: result.mae.get(region))
    if region == MEAN:
        return trials_by_repeat(cell.done, lambda result: result.mean_dice)
    return by_repeat(cell, metric, region)


def _over_cases(cell: Cell, best: Cell, metric: str, region: str) -> Estimate | None:
    """Return the difference over cases, each with its mean over the runs that validated it.

    A score of all cases together has none, nor has an error.
    """
    if metric in (DATASET_IOU, ERROR) or metric in cell.scores:
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


def mean_by_repeat(several: Sequence[Mapping[int, float]]) -> dict[int, float]:
    common = set.intersection(*(set(repeats) for repeats in several))
    return {number: fmean(repeats[number] for repeats in several) for number in sorted(common)}


def mode_of_score(metric: str, cells: Sequence[Cell]) -> str:
    """Return "min" where less of a score is better, and "max" of others."""
    return "min" if metric == ERROR else cells[0].scores.get(metric) or "max"


def rank_key(mode: str, repeats: Mapping[int, float]) -> float:
    """Return what sorts the best first."""
    return mean(repeats).value * (1 if mode == "min" else -1)
