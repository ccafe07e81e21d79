"""What callbacks of Keras may monitor: names of scores, and which way is better. No TensorFlow."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfunet.config.case_metrics import (
    EPOCH_SCORES,
    INSTANCE_DIFFERENCE,
    OWN,
    PLAIN,
    SEGMENTS,
    TOLERANT,
    case_metrics,
    keras_metrics,
    own_metrics,
)
from tfunet.config.run_keys import OptimizationKeys
from tfunet.config.words import near_match

# Callbacks of Keras with `monitor` and `mode`.
MONITORS = ("EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau")
LESS_IS_BETTER = ("loss", "mae", "hd", "hd95", "assd", *SEGMENTS)
# What comes before the name of a metric in training and in validation.
SIDES = ("", "val_")
# Signed: neither way is better.
NEITHER = ("volume_difference", INSTANCE_DIFFERENCE)
MORE_IS_BETTER = tuple(name for name in PLAIN if name not in (*LESS_IS_BETTER, *NEITHER))
# Scores of the pixels of all validation cases together.
OF_DATASET = ("dataset_dice", "dataset_iou")


def with_mode(callback: Mapping[str, Any]) -> dict[str, Any]:
    """Return a callback's table with the mode of what it monitors, where Keras cannot know it."""
    mode = mode_of(str(callback.get("monitor", "")))
    if (
        callback.get("name") not in MONITORS
        or mode is None
        or callback.get("mode", "auto") != "auto"
    ):
        return dict(callback)
    return {**callback, "mode": mode}


def check_monitors(
    keys: OptimizationKeys,
    regions: Iterable[str],
    targets: Iterable[str],
    *,
    has_own_logs: bool,
    has_arrays: bool = False,
) -> None:
    """Raise ValueError for a callback that can do nothing, or sets what a schedule sets.

    Keras warns after each epoch that it lacks what is monitored, or raises when the callback acts.

    Args:
        keys: With callbacks and metrics.
        regions: Regions that are scored.
        targets: Numbers that are predicted.
        has_own_logs: Whether code of the user's own may add scores.
        has_arrays: Whether samples are arrays, which metrics of Keras score.
    """
    has_schedule = keys.warmup_epochs or keys.decay_epochs or keys.learning_rate_schedule
    if has_schedule and any(table.get("name") == "ReduceLROnPlateau" for table in keys.callbacks):
        raise ValueError(
            "The callback ReduceLROnPlateau excludes warmup_epochs, decay_epochs and "
            "learning_rate_schedule: with them, each step has its learning rate. Leave out one of "
            "the two."
        )
    known: tuple[str, ...] = ("loss", "learning_rate", "val_loss")
    if has_arrays:
        known += tuple(f"{side}{name}" for name in keras_metrics(keys.metrics) for side in SIDES)
    else:
        known += _scores(keys.metrics, tuple(regions), tuple(targets))
    adds_others = has_own_logs or any(":" in str(table.get("name")) for table in keys.callbacks)
    for table in keys.callbacks:
        monitor = table.get("monitor", "val_loss")
        if table.get("name") not in MONITORS:
            continue
        if not isinstance(monitor, str):
            raise ValueError(f"monitor of {table['name']} must be a text, got {monitor!r}.")
        is_of_batches = (has_arrays and own_metrics(keys.metrics)) or (
            not (has_arrays or monitor.startswith("val_"))
            and (keras_metrics(keys.metrics) or own_metrics(keys.metrics))
        )
        if monitor not in known and not adds_others and not is_of_batches:
            raise ValueError(
                f"{table['name']} monitors {monitor!r}, which no epoch has."
                f"{near_match(monitor, known)} Known: {', '.join(known)}."
            )
        unknown = [metric.name for metric in case_metrics(keys.metrics) if metric.kind == OWN]
        is_signed = mode_of(monitor) is None and _is_one_of(
            monitor.removeprefix("val_"), (*NEITHER, *unknown)
        )
        if is_signed and table.get("mode", "auto") == "auto":
            raise ValueError(
                f"{table['name']} monitors {monitor!r}, of which neither more nor less is known to "
                'be better. Give mode = "min" or mode = "max".'
            )


def _scores(
    metrics: Iterable[str], regions: Sequence[str], targets: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of what Keras callbacks see after an epoch, but for metrics of Keras."""
    kinds = ["mae"] if targets else [*EPOCH_SCORES]
    kinds += [metric.name for metric in case_metrics(metrics)]
    parts = ("", *(f"_{name}" for name in targets or regions))
    scores = dict.fromkeys(f"val_{kind}{part}" for kind in kinds for part in parts)
    return tuple(scores)


def mode_of(monitor: str) -> str | None:
    """Return "min" or "max" for a score of validation cases; None where it is not known."""
    score = monitor.removeprefix("val_")
    if score == monitor:
        return None

    if _is_one_of(score, LESS_IS_BETTER):
        return "min"
    return "max" if _is_one_of(score, (*MORE_IS_BETTER, *OF_DATASET, TOLERANT)) else None


def _is_one_of(score: str, kinds: Iterable[str]) -> bool:
    """Return whether a score is of one of the kinds, as a mean or of one region."""
    return any(score == kind or score.startswith((f"{kind}_", f"{kind}@")) for kind in kinds)
