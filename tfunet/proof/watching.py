"""The outputs of layers while a step runs, to name the first one that differs."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import keras
import numpy as np

from tfunet.inside.of_keras import all_layers
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import Part
from tfunet.training.traced_device import traced_device


def operations_of(model: keras.Model) -> list[Any]:
    """Return the layers and operations of a model, in the same order for each copy of it."""
    layers = all_layers(model, include_self=False)
    others = [one for one in getattr(model, "operations", []) if one not in layers]
    return [*layers, *others]


@final
class Watched:
    """What layers gave in a step, on one device of this process.

    Attributes:
        outputs: By the number of the layer, one for each call.
    """

    def __init__(self, model: keras.Model, device: int | None) -> None:
        self._numbers = {id(one): number for number, one in enumerate(operations_of(model))}
        self._device = device
        self.outputs: dict[int, list[np.ndarray]] = {}

    def note(self, operation: Any, output: Any) -> None:
        """Keep the output of an operation of the model, if it is one tensor."""
        number = self._numbers.get(id(operation))
        is_other = self._device is not None and traced_device() != self._device
        if number is not None and not is_other and getattr(output, "shape", None) is not None:
            self.outputs.setdefault(number, []).append(np.asarray(output))


@contextlib.contextmanager
def watching(watched: Watched, *, in_parts: bool) -> Iterator[None]:
    """Note what layers give in the block, which runs op by op; `in_parts` with split samples."""
    if in_parts:
        with _replaced(SplitNetwork, "called", lambda original: _noting_parts(watched, original)):
            yield
        return
    inside = threading.local()  # A layer's call goes on to that of operations.
    with (
        _replaced(keras.layers.Layer, "__call__", lambda given: _noting(watched, given, inside)),
        _replaced(keras.Operation, "__call__", lambda given: _noting(watched, given, inside)),
    ):
        yield


@contextlib.contextmanager
def _replaced(
    kind: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    before = vars(kind)[name]
    setattr(kind, name, make(before))
    try:
        yield
    finally:
        setattr(kind, name, before)


def _noting_parts(watched: Watched, original: Callable[..., Any]) -> Callable[..., Any]:
    def called(
        split: SplitNetwork, op: Any, args: Any, kwargs: Any, group: Any, training: bool
    ) -> Any:
        made = original(split, op, args, kwargs, group, training)
        # All devices of the group put the whole together, at the same place in their order.
        whole = made.without_margin().whole(group) if isinstance(made, Part) else made
        watched.note(op, whole)
        return made

    return called


def _noting(
    watched: Watched, original: Callable[..., Any], inside: threading.local
) -> Callable[..., Any]:
    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        is_inner = getattr(inside, "operation", None) is operation
        before, inside.operation = getattr(inside, "operation", None), operation
        try:
            made = original(operation, *args, **kwargs)
        finally:
            inside.operation = before
        if not is_inner:
            watched.note(operation, made)
        return made

    return call


def first_difference(
    parts: Watched,
    whole: Watched,
    rows: Sequence[slice],
    differ: Callable[[np.ndarray, np.ndarray], bool],
    order: Sequence[int],
    num_steps: int,
) -> int | None:
    """Return the number of the first layer, in `order`, whose output differs on this device.

    `rows` are the samples of each of its passes.
    """
    for number in order:
        calls, made = whole.outputs[number], parts.outputs.get(number, [])
        if len(made) != len(calls) * len(rows):
            continue
        each = len(calls) // num_steps  # In a step, or in one of its passes.
        for at, output in enumerate(made):
            step, rest = divmod(at, each * len(rows))
            turn, call = divmod(rest, each)
            expected = calls[step * each + call]
            if expected.ndim and expected.shape[0] > max(one.stop for one in rows) - 1:
                expected = expected[rows[turn]]
            if output.shape == expected.shape and differ(output, expected):
                return number
    return None
