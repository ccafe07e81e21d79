"""What the trials of an ensemble are ranked by. Pure."""

from collections.abc import Callable, Mapping
from statistics import fmean

from tfunet.bench.records.epoch_times import EpochTimes
from tfunet.bench.records.trial_result import Result

DIRECTIONS = ("maximize", "minimize")
# Objectives by name: the number of a result, and which direction is better.
OBJECTIVES: Mapping[str, tuple[Callable[[Result], float | None], str]] = {
    "val_dice": (lambda result: result.mean_dice, "maximize"),
    "val_mae": (lambda result: fmean(result.mae.values()) if result.mae else None, "minimize"),
    "val_loss": (lambda result: result.val_loss, "minimize"),
    "loss": (lambda result: result.loss, "minimize"),
    "images_per_second": (lambda result: result.images_per_second, "maximize"),
}


def _mean_mae(epoch: EpochTimes) -> float | None:
    errors = [value for name, value in epoch.scores.items() if name.startswith("mae_")]
    return fmean(errors) if errors else None


# Those that are known after each evaluation.
OF_EPOCHS: Mapping[str, Callable[[EpochTimes], float | None]] = {
    "val_dice": lambda epoch: epoch.mean_dice,
    "val_mae": _mean_mae,
    "val_loss": lambda epoch: epoch.scores.get("val_loss"),
}
