"""Metrics of whole cases that are functions of the user's own. No TensorFlow."""

import inspect
import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfunet.config.case_metrics import OWN, CaseMetric
from tfunet.config.own_code import explain
from tfunet.config.refs import resolve


def load_own(metrics: Iterable[CaseMetric]) -> None:
    """Import the user's functions.

    Raises ValueError for one that does not exist, or cannot be a metric of whole cases.
    """
    for metric in metrics:
        if metric.kind == OWN:
            _check(metric, _function(metric))


def measure_own(
    metric: CaseMetric, truth: np.ndarray, predicted: np.ndarray, spacing: tuple[float, ...]
) -> float:
    """Return what a user's function returns for a region of a case; NaN where that is not finite.

    Raises ValueError for an error in it, and for what is no number.
    """
    function = _function(metric)
    try:
        value = function(truth.copy(), predicted.copy(), spacing)
    except (Exception, SystemExit) as error:
        file = getattr(function, "__globals__", {}).get("__file__", "")
        explain(error, f"The metric {metric.ref!r} raised", file)
        raise
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if value is None:
        return math.nan
    if not isinstance(value, numbers.Real | np.bool_):
        raise ValueError(
            f"The metric {metric.ref!r} must return a number, or None where it is not defined. It "
            f"returned {value!r:.80} ({type(value).__name__})."
        )
    return float(value) if math.isfinite(value) else math.nan


def _function(metric: CaseMetric) -> Any:
    return resolve("metric", metric.ref, {}, has_arguments=True)


def _check(metric: CaseMetric, function: Any) -> None:
    """Raise ValueError for a class, for what is of Keras, and for other arguments."""
    kind = function if inspect.isclass(function) else type(function)
    roots = {str(getattr(each, "__module__", "")).partition(".")[0] for each in kind.__mro__}
    roots.add(str(getattr(function, "__module__", "")).partition(".")[0])
    if "keras" in roots:
        is_what = "is a metric of Keras, which sees batches"
    elif inspect.isclass(function):
        is_what = "is a class"
    else:
        try:
            inspect.signature(function).bind(None, None, None)
            return
        except TypeError as error:
            is_what = f"cannot be called with (truth, predicted, spacing): {error}"
    name = metric.ref.rpartition(":")[2]
    raise ValueError(
        f"The metric {metric.ref!r} {is_what}. Write a function of a region of a whole case that "
        f"returns a number: def {name}(truth, predicted, spacing). Of the training batches, "
        "metrics can name those that keras.metrics has, such as 'accuracy'."
    )
