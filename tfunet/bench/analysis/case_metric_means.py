"""Means of the metrics of whole cases (cases.csv) over the cases of a run. Pure but for reading."""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.records.run_tables import CASES, number_or_nan, read_table
from tfunet.bench.records.ways_of_training import by_repeat as trials_by_repeat
from tfunet.files.typed import RecordError, column_names
from tfunet.record import CASE_COLUMNS


@dataclass(frozen=True, kw_only=True)
class CaseMean:
    """The mean of a metric over the cases in which it is defined; NaN if there is none."""

    value: float
    num_defined: int
    num_cases: int


def metric_names(run: Path) -> tuple[str, ...]:
    """Return the metrics of whole cases that a run has recorded."""
    with contextlib.suppress(RecordError):
        return tuple(n for n in column_names(run / "cases.csv") if n not in CASE_COLUMNS)
    return ()


def case_means(run: Path, names: tuple[str, ...]) -> dict[tuple[str, str], CaseMean]:
    """Return the mean of each (metric, region) of a run's last evaluation."""
    means = {}
    for key, several in _values(run, names).items():
        defined = [value for value in several.values() if not math.isnan(value)]
        means[key] = CaseMean(
            value=float(np.mean(defined)) if defined else math.nan,
            num_defined=len(defined),
            num_cases=len(several),
        )
    return means


def by_case(run: Path, name: str, region: str) -> dict[str, float]:
    """Return a metric of the cases of a run's last evaluation in which it is defined."""
    values = _values(run, (name,)).get((name, region), {})
    return {case: value for case, value in values.items() if not math.isnan(value)}


def _values(run: Path, names: tuple[str, ...]) -> dict[tuple[str, str], dict[str, float]]:
    table = read_table(run / "cases.csv", CASES | dict.fromkeys(names, number_or_nan))
    last = max(table["epoch"], default=0)
    values: dict[tuple[str, str], dict[str, float]] = {}
    for at, (epoch, case, region) in enumerate(
        zip(table["epoch"], table["case"], table["region"], strict=True)
    ):
        if epoch == last:
            for name in names:
                values.setdefault((name, region), {})[case] = table[name][at]
    return values


def by_repeat(cell: Cell, name: str, region: str) -> dict[int, float]:
    """Return the mean of a metric over cases of each repeat in which a case defines it; of "Dice"
    and of scores of arrays as the run itself has it.
    """
    if name in cell.scores:
        return trials_by_repeat(cell.done, lambda result: result.value_of(name))
    if name == "Dice":
        return trials_by_repeat(cell.done, lambda result: result.dice.get(region))
    means = {}
    for trial in cell.done:
        if name in metric_names(trial.folder):
            mean = case_means(trial.folder, (name,)).get((name, region))
            if mean is not None and mean.num_defined:
                means[trial.repeat] = mean.value
    return means
