"""Keras metrics of logits: by their defaults, most of them take probabilities."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras

from tfunet.config.case_metrics import unknown_metric

ACCURACY = ("accuracy", "acc")
# Options that say from which value on a pixel is foreground. For logits this is 0.
THRESHOLDS = ("threshold", "thresholds")

# They take the class with the largest value.
BY_LARGEST = (keras.metrics.F1Score, keras.metrics.FBetaScore)


def of_logits(names: Sequence[str], num_logits: int | None) -> list[Any]:
    """Return metrics that take logits, under the names that users gave.

    Args:
        names: Names of Keras metrics.
        num_logits: Logits of a voxel; None if it is not known.

    Raises ValueError for unknown names, and for metrics that need options.
    """
    return [_of_logits(name, num_logits) for name in names]


def _of_logits(name: str, num_logits: int | None) -> Any:
    if name.lower() in ACCURACY:  # Keras chooses by shapes.
        return keras.metrics.BinaryAccuracy(name=name, threshold=0.0) if num_logits == 1 else name
    if num_logits == 1 and name.lower().startswith("sparse"):
        raise ValueError(
            f"The metric {name!r} needs a logit for each class, and the model gives one. Name "
            "'accuracy' or 'AUC'."
        )
    try:
        found = keras.metrics.get(name)
    except ValueError as error:
        known = [key for key in vars(keras.metrics) if not key.startswith("_")]
        raise unknown_metric(name, known) from error
    except TypeError as error:
        raise ValueError(
            f"The metric {name!r} needs options, which metrics= cannot give ({error}). Metrics of "
            "whole cases, such as 'dice' and 'iou', need none."
        ) from error
    kind = type(found) if isinstance(found, keras.Metric) else found
    options = _for_logits(kind)
    if not options:
        return name
    if kind is found:  # A function.
        return keras.metrics.MeanMetricWrapper(found, name=name, **options)
    return kind(name=name, **options)


def _for_logits(kind: Any) -> dict[str, Any]:
    """Return the options with which a metric takes logits; none where it needs none."""
    parameters = inspect.signature(kind).parameters
    if "from_logits" in parameters:
        return {"from_logits": True}
    return {key: 0.0 for key in THRESHOLDS if key in parameters and kind not in BY_LARGEST}
