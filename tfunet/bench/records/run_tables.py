"""Reads the tables that a run writes: steps, epochs, cases and rounds. Never writes."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.config.tournament import HYPERPARAMETERS
from tfunet.files.typed import (
    RecordError,
    amount,
    column_names,
    number,
    number_or_none,
    typed_rows,
    whole,
)
from tfunet.learning.confusion import CONFUSION
from tfunet.population.pedigree import Played

# Names of the classes, and voxels by true and by predicted class.
Confusion = tuple[list[str], list[list[float]]]
Kinds = dict[str, Callable[[str], Any]]
STEPS: Kinds = {"step": whole, "seconds": amount, "loss": number, "traced": whole}
EPOCHS: Kinds = {"steps": whole, "training_seconds": amount}
# Hyperparameters that have a column only where they change.
OTHERS = tuple(name for name in HYPERPARAMETERS if name != "learning_rate")
# Columns of epochs.csv that hold no numbers.
TEXTS = ("weights_hash", "samples_hash", "dropped_samples")
COUNTS = ("true_positive", "false_positive", "false_negative")
CASES: Kinds = {"epoch": whole, "case": str, "region": str, **dict.fromkeys(COUNTS, amount)}


def read_steps(folder: Path) -> dict[str, list[float]]:
    """Return step, seconds, loss and traced (0 or 1) of every optimizer step; may be empty."""
    return read_table(folder / "steps.csv", STEPS)


def read_cases(folder: Path) -> dict[str, list[Any]]:
    """Return epoch, region and counts of the last evaluation, for each case and region."""
    table = read_table(folder / "cases.csv", CASES)
    last = max(table["epoch"], default=0)
    keep = [at for at, epoch in enumerate(table["epoch"]) if epoch == last]
    return {name: [column[at] for at in keep] for name, column in table.items()}


def read_confusion(folder: Path) -> Confusion | None:
    """Return the confusion matrix of the last evaluation; None if it is missing or wrong."""
    with contextlib.suppress(RecordError):
        return _confusion(folder)
    return None


def _confusion(folder: Path) -> Confusion | None:
    path = folder / CONFUSION
    _, *names = column_names(path) or [""]
    rows = list(typed_rows(path, {"true": str, **dict.fromkeys(names, amount)}))
    if len(set(names)) < len(names) or [row["true"] for row in rows] != names:
        raise RecordError(path, "its rows are not named as its columns")
    return (names, [[row[name] for name in names] for row in rows]) if names else None


def read_epochs(folder: Path, regions: Sequence[str]) -> dict[str, list[float]]:
    """Return steps, seconds of training and mean Dice of every epoch; NaN without evaluation."""
    dice = [f"dice_{region}" for region in regions]
    table = read_table(folder / "epochs.csv", EPOCHS | dict.fromkeys(dice, number_or_nan))
    scores = zip(*(table[name] for name in dice), strict=True) if dice else ()
    return {
        "steps": table["steps"] if dice else [],
        "seconds": table["training_seconds"] if dice else [],
        "dice": [sum(row) / len(row) for row in scores],
    }


def read_history(folder: Path) -> dict[str, list[Any]]:
    """Return the columns of epochs.csv that hold numbers; None for a value that was not taken."""
    path = folder / "epochs.csv"
    return read_table(path, {name: _number for name in column_names(path) if name not in TEXTS})


def _number(text: str) -> float | int | None:
    return int(text) if text.isdecimal() else number_or_none(text)


def read_rounds(folder: Path) -> list[Played]:
    """Return the rounds of a tournament that a trainer has played, up to the first wrong row."""
    kinds = _round_kinds(folder)
    names = [name for name in OTHERS if name in kinds]
    table = read_table(folder / "rounds.csv", kinds)
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    return [Played(hyperparameters={name: row.pop(name) for name in names}, **row) for row in rows]


def _round_kinds(folder: Path) -> Kinds:
    """Return the kinds of the columns of rounds.csv, with those of further hyperparameters."""
    columns: list[str] = []
    with contextlib.suppress(RecordError):
        columns = column_names(folder / "rounds.csv")
    return {**ROUNDS, **{name: number for name in OTHERS if name in columns}}


def _whole_or_none(text: str) -> int | None:
    return whole(text) if text else None


ROUNDS: Kinds = {
    "round": whole,
    "step": whole,
    "partner": _whole_or_none,
    "own_score": number,
    "partner_score": number_or_none,
    "model_of": whole,
    "reason": str,
    "learning_rate": number,
    "training_seconds": amount,
    "round_seconds": amount,
    "waited_seconds": amount,
}


def read_table(path: Path, kinds: Mapping[str, Callable[[str], Any]]) -> dict[str, list[Any]]:
    """Return columns of a CSV file up to the first wrong row; empty columns without a file.

    `table_faults` says which row that is.
    """
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    with contextlib.suppress(RecordError):
        for row in typed_rows(path, kinds):
            for name, value in row.items():
                columns[name].append(value)
    return columns


def table_faults(folder: Path) -> list[str]:
    """Return what is wrong in the tables of a run: file, line and column of the first wrong row."""
    faults = []
    tables = {
        "steps.csv": STEPS,
        "epochs.csv": EPOCHS,
        "cases.csv": CASES,
        "rounds.csv": _round_kinds(folder),
    }
    for name, kinds in tables.items():
        try:
            for _ in typed_rows(folder / name, kinds):
                pass
        except RecordError as error:
            faults.append(error.row)
    try:
        _confusion(folder)
    except RecordError as error:
        faults.append(error.row)
    return faults


def number_or_nan(text: str) -> float:
    """Return a number of a CSV file; NaN for an empty field."""
    value = number_or_none(text)
    return math.nan if value is None else value
