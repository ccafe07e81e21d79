"""Reads the tables that a run writes: steps.csv, epochs.csv, cases.csv. Never writes."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.files.table import read_rows


def read_steps(folder: Path) -> dict[str, list[float]]:
    """Return step, seconds, loss and traced (0 or 1) of every optimizer step; may be empty."""
    kinds: dict[str, Callable[[str], float]] = {"step": int, "seconds": float, "loss": float}
    return read_table(folder / "steps.csv", {**kinds, "traced": int})


def read_cases(folder: Path) -> dict[str, list[Any]]:
    """Return epoch, region and counts of the last evaluation, for each case and region."""
    counts = ("true_positive", "false_positive", "false_negative")
    kinds: dict[str, Callable[[str], Any]] = {"epoch": int, "case": str, "region": str}
    table = read_table(folder / "cases.csv", {**kinds, **dict.fromkeys(counts, float)})
    last = max(table["epoch"], default=0)
    keep = [at for at, epoch in enumerate(table["epoch"]) if epoch == last]
    return {name: [column[at] for at in keep] for name, column in table.items()}


def read_epochs(folder: Path, regions: Sequence[str]) -> dict[str, list[float]]:
    """Return steps, seconds of training and mean Dice of every epoch; NaN without evaluation."""
    dice = [f"dice_{region}" for region in regions]
    kinds: dict[str, Callable[[str], float]] = {"steps": int, "training_seconds": float}
    table = read_table(folder / "epochs.csv", kinds | dict.fromkeys(dice, _number))
    scores = zip(*(table[name] for name in dice), strict=True) if dice else ()
    return {
        "steps": table["steps"] if dice else [],
        "seconds": table["training_seconds"] if dice else [],
        "dice": [sum(row) / len(row) for row in scores],
    }


def read_table(path: Path, kinds: Mapping[str, Callable[[str], Any]]) -> dict[str, list[Any]]:
    """Return columns of a CSV file up to the first torn row; empty columns without a file."""
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    for row in read_rows(path):
        try:
            values = {name: kind(row[name]) for name, kind in kinds.items()}
        except (KeyError, TypeError, ValueError):
            break
        for name, value in values.items():
            columns[name].append(value)
    return columns


def _number(text: str) -> float:
    return float(text) if text else math.nan
