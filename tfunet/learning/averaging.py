"""Averages gradients over replicas inside the optimizer's `apply`, for every backend."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.timing.stamps import Note, timed

Average = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


@final
class Switch:
    """A backend's average, which is left out of what is traced in `off`; `note` is told of each."""

    def __init__(self, average: Average, note: Note | None = None) -> None:
        self._average = average
        self._note = note
        self._is_off = False

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the mean over replicas, or the gradients as they are."""
        if self._is_off:
            return list(gradients)
        return timed("all-reduce", self._note, self._average, list(gradients))

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Leave the average out of what is traced in the block."""
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False


def averaging(
    optimizer: keras.Optimizer, average: Average, accumulation: int = 1
) -> keras.Optimizer:
    """Return a twin of `optimizer` that averages gradients over replicas before it uses them.

    The average comes first: clipping, weight decay and the finite check of a loss-scale
    optimizer then see what one device with the global batch would see. Keras under tf.distribute
    clips each replica's gradients before they are summed, so its result depends on the number of
    replicas.

    With `accumulation`, `apply` must be called that many times in one traced step. The gradients
    of the calls are averaged; only the last call communicates and updates.

    Args:
        optimizer: Not yet built. Its class and configuration stay, also in a saved model.
    """
    original = type(optimizer)
    calls = threading.local()  # MirroredStrategy traces each replica in a thread of its own.

    class Averaging(original):  # type: ignore[misc, valid-type]  # a class known at run time
        def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            pending = getattr(calls, "gradients", [])
            pending.append(list(grads))
            if len(pending) < accumulation:
                calls.gradients = pending
                return
            calls.gradients = []
            super().apply(average_present(_mean(pending), average), trainable_variables)

        def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
            return grads_and_vars

    # A saved model names the user's class, so that it loads without tfunet.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Averaging, name, getattr(original, name))
    return Averaging.from_config(optimizer.get_config())


def average_present(gradients: Sequence[Any], average: Average) -> list[Any]:
    """Average the gradients that exist; None (a variable the loss does not reach) stays."""
    present = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    averaged = iter(average(present))
    return [None if gradient is None else next(averaged) for gradient in gradients]


def _mean(passes: Sequence[Sequence[Any]]) -> list[Any]:
    if len(passes) == 1:
        return list(passes[0])
    return [
        None if any(part is None for part in parts) else tf.add_n(list(parts)) / len(passes)
        for parts in zip(*passes, strict=True)
    ]
