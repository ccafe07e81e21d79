"""Runs an optimizer of Keras on slices of variables, one after the other.

    gradient, value, states   ->   Keras's own update   ->   value, states

Optimizers that work element by element take any slice of a variable. Others, such as Lamb, whose
step depends on the norm of a variable, take whole variables only (`slots.granularity`).
"""

from collections.abc import Sequence
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.inside import of_optimizers


@final
class SlicedOptimizer:
    """An optimizer like another one, for one slice of one variable at a time.

    The slice and its states pass through variables of TensorFlow, which take over the memory of
    what they are given, and hold the last slice until the next. So the step is the same as that of
    whole variables, to the bit: TensorFlow rearranges no sums across a variable that is written
    and read.

    Args:
        optimizer: A built optimizer of Keras, which scales no loss.
        like: The variable. What depends on its name, such as weight decay, is as for all of it.

    Attributes:
        num_slots: How many states it keeps of each element.

    Raises ValueError for an optimizer that cannot be made again from its configuration.
    """

    def __init__(self, optimizer: keras.Optimizer, like: Any) -> None:
        self._slots: list[Any] = []

        def add(before: Any, reference: Any, **options: Any) -> Any:
            if reference is None:
                return before(**options)
            self._slots.append(of_optimizers.of_any_length(self._slice))
            return self._slots[-1]

        with tf.init_scope():
            self._slice = of_optimizers.of_any_length(like)
            made = of_optimizers.remade(optimizer)
            with of_optimizers.adding(made, add):
                made.build([self._slice])
        of_optimizers.share_counters(made, optimizer)
        of_optimizers.share_exclusions(made, self._slice, optimizer, like)
        self._optimizer = made
        self.num_slots = len(self._slots)
        # States that belong to no variable: each slice finds them as they were before the step.
        own, theirs = (of_optimizers.own_numbers(each) for each in (made, optimizer))
        self._common = [(own[name], theirs[name]) for name in own]

    def update(
        self, gradient: tf.Tensor | None, value: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the new value of the slice, and its new states; called in a graph.

        The gradient is clipped already (`inside.of_keras.clipping_of`). Without one, as of a frozen
        weight, only averages of weights change.
        """
        self._slice.value.assign(value)
        for slot, given in zip(self._slots, slots, strict=True):
            slot.value.assign(given)
        for own, theirs in self._common:
            own.assign(theirs)
        given = [] if gradient is None else [self._slice]
        of_optimizers.apply_clipped(self._optimizer, [gradient] * len(given), given)
        return tf.convert_to_tensor(self._slice), [*map(tf.convert_to_tensor, self._slots)]

    def end_step(self) -> None:
        """Give the optimizer its states that belong to no variable, after the last slice."""
        for own, theirs in self._common:
            theirs.assign(own)
