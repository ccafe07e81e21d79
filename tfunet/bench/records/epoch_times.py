"""When each epoch of a run began and ended, from its record."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfunet.files.table import read_rows
from tfunet.record import RunFolder


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """The times of an epoch, from 1, in seconds: Unix times if `began` is one.

    `steps` are those of the run up to the epoch's end; `scores` are val_loss, Dice and IoU by the
    names of epochs.csv, empty without evaluation.
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
    """
    try:
        result = RunFolder(folder).read_result() or {}
    except ValueError:
        result = {}
    began = [(int(step), float(at)) for step, at in result.get("began_unix_seconds") or ()]
    rows = read_rows(folder / "epochs.csv")
    if began and rows and int(rows[0]["steps"]) < began[0][0]:
        began = []
    return [_epoch(row, began) for row in rows]


def _epoch(row: Mapping[str, str], attempts: Sequence[tuple[int, float]]) -> EpochTimes:
    scored = ("val_loss", "dice_", "iou_")
    began = max(
        (attempt for attempt in attempts if attempt[0] <= int(row["steps"])), default=(1, 0.0)
    )[1]
    end = began + float(row["elapsed_seconds"])
    evaluation_begin = end - float(row["evaluation_seconds"])
    return EpochTimes(
        epoch=int(row["epoch"]),
        steps=int(row["steps"]),
        began=began,
        training_begin=evaluation_begin - float(row["training_seconds"]),
        training_end=evaluation_begin,
        evaluation_begin=evaluation_begin,
        end=end,
        scores={
            name: float(value) for name, value in row.items() if name.startswith(scored) and value
        },
    )
