"""A state of an optimizer of which each device has a part."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import tensorflow as tf

from tfunet.inside.of_keras import instead_of_value

# Sums arrays of float64 over all processes.
Sum = Callable[[np.ndarray], np.ndarray]


@final
class SharedSlot:
    """A state of a variable, of which each device has a part.

    Args:
        sum_over: `Backend.sum`.
        path: Its name.
        shape: Of all parts together.

    Attributes:
        parts: Those of the devices of this process: the elements [begin, end), and the variable
            with them.
    """

    # Whether all processes read in one order what they have of the same states.
    _is_gathered = False

    def __init__(self, sum_over: Sum, path: str, shape: Sequence[int], dtype: str) -> None:
        self._sum = sum_over
        self.path, self.shape, self.dtype = path, tuple(shape), dtype
        self.parts: list[tuple[int, int, Any]] = []

    @property
    def value(self) -> tf.Tensor:
        """What this process has of it, (elements,)."""
        flat = [tf.reshape(tf.convert_to_tensor(part), [-1]) for _, _, part in self.parts]
        return tf.concat([tf.zeros(0, self.dtype), *flat], 0)

    def assign(self, value: Any) -> None:
        """Give this process other values of what it has of it, (elements,)."""
        first = 0
        for begin, end, part in self.parts:
            part.assign(tf.reshape(value[first : first + end - begin], part.shape))
            first += end - begin

    @property
    def num_bytes(self) -> int:
        """Bytes of what this process has of it."""
        elements = sum(end - begin for begin, end, _ in self.parts)
        return elements * tf.as_dtype(self.dtype).size

    def own(self) -> np.ndarray:
        """Return what this process has of it among zeros, in float64: those of all add up."""
        wide = np.zeros(math.prod(self.shape))
        for begin, end, part in self.parts:
            wide[begin:end] = np.asarray(tf.convert_to_tensor(part), np.float64).reshape(-1)
        return wide.reshape(self.shape)

    def whole(self) -> np.ndarray:
        """Return all of it; called by all processes together."""
        return self._sum(self.own()).astype(self.dtype)

    def keep_own(self, whole: np.ndarray) -> None:
        """Give this process its parts of another value."""
        flat = whole.astype(self.dtype).reshape(-1)
        for begin, end, part in self.parts:
            part.assign(flat[begin:end].reshape(part.shape))

    def assign_whole(self, value: np.ndarray | None) -> None:
        """Give all processes their parts of a value, which one of them has; by all together."""
        wide = np.zeros(self.shape) if value is None else value.astype(np.float64)
        self.keep_own(self._sum(wide))

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> tf.Tensor:
        """Take the place of the values of the optimizer's own variable."""
        if not SharedSlot._is_gathered:
            raise ValueError(
                f"The state {self.path!r} is shared out among devices, and a callback, metric or "
                "function asks for its value. Leave that out, or leave out zero."
            )
        return tf.constant(self.whole())


@contextmanager
def gathering() -> Iterator[None]:
    """Have states gathered that are read in the block, in the same order in all processes."""
    SharedSlot._is_gathered = True
    try:
        yield
    finally:
        SharedSlot._is_gathered = False


def with_slots(variables: Sequence[Any]) -> list[Any]:
    """Return variables, with what devices share instead of that whose value none of them has."""
    slots = [instead_of_value(variable) for variable in variables]
    return [
        slot if isinstance(slot, SharedSlot) else variable
        for slot, variable in zip(slots, variables, strict=True)
    ]


def are_shared(variables: Sequence[Any]) -> bool:
    """Whether devices share out any of these variables."""
    return any(isinstance(one, SharedSlot) for one in with_slots(variables))


def on_devices(variables: Sequence[Any]) -> list[Any]:
    """Return the variables that devices of this process hold, with the parts of shared states."""
    return [
        each
        for one in with_slots(variables)
        for each in ([part for _, _, part in one.parts] if isinstance(one, SharedSlot) else [one])
    ]
