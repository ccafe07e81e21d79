"""When each epoch of a run began and ended, from its record."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfunet.files.typed import (
    RecordError,
    amount,
    column_names,
    number_or_none,
    typed_rows,
    whole,
)
from tfunet.record import RunFolder, scored

SECONDS = ("training_seconds", "evaluation_seconds", "elapsed_seconds")


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """The times of an epoch, from 1, in seconds: Unix times if `began` is one.

    `steps` are those of the run up to the epoch's end; `scores` are val_loss, Dice, IoU, those
    of the data set, mean absolute errors and metrics by the names of epochs.csv; those that an
    epoch does not have are left out.
    """

    epoch: int
    steps: int
    began: float
    training_begin: float
    training_end: float
    evaluation_begin: float
    end: float
    scores: Mapping[str, float]

    @property
    def mean_dice(self) -> float | None:
        """Mean over regions; None without evaluation."""
        dice = [value for name, value in self.scores.items() if name.startswith("dice_")]
        return statistics.fmean(dice) if dice else None


def epoch_times(folder: Path) -> list[EpochTimes]:
    """Return the epochs of the run in `folder`, each by the clock of the attempt that ended it.

    Times count from 0 if the record has no Unix times: if the run is not done, or older than they.
    Raises RecordError if epochs.csv has a wrong value.
    """
    try:
        result = RunFolder(folder).read_result() or {}
    except RecordError:
        result = {}
    began = [(step, at) for step, at in result.get("began_unix_seconds") or ()]
    path = folder / "epochs.csv"
    scores = scored(column_names(path))
    kinds: dict[str, Callable[[str], Any]] = dict.fromkeys(scores, number_or_none)
    kinds |= {"epoch": whole, "steps": whole} | dict.fromkeys(SECONDS, amount)
    rows = list(typed_rows(path, kinds))
    if began and rows and rows[0]["steps"] < began[0][0]:
        began = []
    return [_epoch(row, scores, began) for row in rows]


def _epoch(
    row: Mapping[str, Any], scores: Sequence[str], attempts: Sequence[tuple[int, float]]
) -> EpochTimes:
    began = max((attempt for attempt in attempts if attempt[0] <= row["steps"]), default=(1, 0.0))[
        1
    ]
    end = began + row["elapsed_seconds"]
    evaluation_begin = end - row["evaluation_seconds"]
    return EpochTimes(
        epoch=row["epoch"],
        steps=row["steps"],
        began=began,
        training_begin=evaluation_begin - row["training_seconds"],
        training_end=evaluation_begin,
        evaluation_begin=evaluation_begin,
        end=end,
        scores={name: row[name] for name in scores if row[name] is not None},
    )
