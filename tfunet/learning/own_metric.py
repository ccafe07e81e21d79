"""Metrics of whole cases that are functions of the user's own. No TensorFlow."""

import inspect
import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfunet.config.case_metrics import (
    OWN,
    CaseMetric,
    case_metrics,
    check_own_name,
    keras_metrics,
)
from tfunet.config.own_code import explain
from tfunet.config.refs import resolve


def load_own(metrics: Iterable[CaseMetric]) -> None:
    """Import the user's functions.

    Raises ValueError for one that does not exist, or cannot be a metric of whole cases.
    """
    for metric in metrics:
        if metric.kind == OWN:
            _check(metric, _function(metric))


def of_cases(names: Iterable[str]) -> tuple[CaseMetric, ...]:
    """Return the metrics of whole cases; imports the user's, as those below do."""
    return tuple(metric for metric in case_metrics(names) if not _is_of_keras(metric))


def of_batches(names: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics of batches: names of Keras's, and references to classes of the user's."""
    own = [metric.ref for metric in case_metrics(names) if _is_of_keras(metric)]
    return (*keras_metrics(names), *own)


def make_own(ref: str) -> Any:
    """Return a metric of batches of the user's.

    Raises ValueError where its class needs options, and for a name that tfunet's scores have.
    """
    kind = resolve("metric", ref, {}, has_arguments=True)
    try:
        metric = kind()
    except (Exception, SystemExit) as error:
        explain(error, f"The metric {ref!r} raised", getattr(kind, "__module__", ""))
        raise
    check_own_name(ref, metric.name)
    return metric


def _is_of_keras(metric: CaseMetric) -> bool:
    if metric.kind != OWN:
        return False
    kind = _function(metric)
    return inspect.isclass(kind) and any(_root(base) == "keras" for base in kind.__mro__)


def _root(thing: Any) -> str:
    """Return the package that a class or function is of."""
    return str(getattr(thing, "__module__", "")).partition(".")[0]


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
    if "keras" in {_root(each) for each in (*kind.__mro__, function)}:
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
        f"returns a number: def {name}(truth, predicted, spacing). For the training batches, "
        "metrics can name a class of keras.metrics, also of your own: 'file.py:Class'."
    )
