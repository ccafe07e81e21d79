"""What the trials of an ensemble are ranked by. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import final

from tfunet.bench.records.epoch_times import EpochTimes
from tfunet.bench.records.trial_result import Result
from tfunet.config.case_metrics import case_metrics, keras_metrics
from tfunet.config.monitors import mode_of
from tfunet.config.words import near_match

DIRECTIONS = ("maximize", "minimize")


@final
@dataclass(frozen=True)
class Objective:
    """A number by which trials are ranked.

    Args:
        of_result: Returns it for a finished run; None if the run does not have it.
        direction: In which it is better; "" if that is not known.
        of_epoch: Returns it for an epoch; None if no epoch has it.
    """

    of_result: Callable[[Result], float | None]
    direction: str
    of_epoch: Callable[[EpochTimes], float | None] | None = None


def _mean_mae(epoch: EpochTimes) -> float | None:
    errors = [value for name, value in epoch.scores.items() if name.startswith("mae_")]
    return fmean(errors) if errors else None


OBJECTIVES = {
    "val_dice": Objective(
        lambda result: result.mean_dice, "maximize", lambda epoch: epoch.mean_dice
    ),
    "val_mae": Objective(
        lambda result: fmean(result.mae.values()) if result.mae else None, "minimize", _mean_mae
    ),
    "val_loss": Objective(
        lambda result: result.val_loss, "minimize", lambda epoch: epoch.scores.get("val_loss")
    ),
    "loss": Objective(lambda result: result.loss, "minimize"),
    "images_per_second": Objective(lambda result: result.images_per_second, "maximize"),
}


def objective_of(name: str) -> Objective:
    """Return an objective by its name: one of those above, or a metric that callbacks see."""
    direction = {"min": "minimize", "max": "maximize", None: ""}[mode_of(name)]
    of_metric = Objective(
        lambda result: result.metrics.get(name), direction, lambda epoch: epoch.scores.get(name)
    )
    return OBJECTIVES.get(name, of_metric)


def check_objective(name: str, metrics: Iterable[str]) -> None:
    """Raise ValueError for an objective that a run with these metrics does not have."""
    metrics = tuple(metrics)
    own = [f"val_{metric.name}" for metric in case_metrics(metrics)]
    of_keras = keras_metrics(metrics)
    known = (*OBJECTIVES, *own, *of_keras, *(f"val_{metric}" for metric in of_keras))
    is_of_region = name.startswith(tuple(f"{metric}_" for metric in own))
    # A class of one's own has the name that it gives itself.
    may_be_own = not name.startswith("val_") and any(":" in metric for metric in metrics)
    if name not in known and not is_of_region and not may_be_own:
        raise ValueError(
            f"Unknown objective {name!r} in [search].{near_match(name, known)} Known: "
            f"{', '.join(known)}. A metric of whole cases that metrics= names can be one, such as "
            "'val_hd95'."
        )
