"""Takes the states of optimizers, and weights, off the device, while a model trains.

"none"      all stay
"state"     states of optimizers leave, and gradients as they are made; the host updates
"weights"   weights leave, too, and come to the device to be read
"auto"      as much of this as leaves a quarter of the budget to activations
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.inside import of_optimizers
from tfunet.inside.of_keras import has_value, trained_by
from tfunet.state.home import bring_back, home_of, made_at_home, send_home, updating
from tfunet.state.slots import slots_of
from tfunet.state.update import HostUpdate
from tfunet.swap.plan.leaving import Leaving, chosen
from tfunet.swap.storage.rows import Rows


@final
@dataclass(frozen=True)
class Left:
    """What left the device: bytes."""

    weights: int = 0
    states: int = 0


@final
class Away:
    """What leaves the device of a model's weights and its optimizers' states.

    Args:
        model: A built model. Variables without a value are those of other stages.
        leaving: What leaves; see the module.
        budget_bytes: Device memory for training.
        least_bytes: Smaller weights stay, with their states.
        rows: Where it goes.
        build: Builds its optimizer; by default for all weights that are trained.

    Attributes:
        left: What left.
        has_more: Whether more weights or states could leave.
    """

    def __init__(
        self,
        model: keras.Model,
        leaving: Leaving,
        budget_bytes: int,
        least_bytes: int,
        rows: Rows,
        build: Callable[[], None] | None = None,
    ) -> None:
        self.model, self._rows, self._least_bytes = model, rows, least_bytes
        self._undo = contextlib.ExitStack()
        self.left = Left()
        applied = optimizers_of(model)
        # An optimizer that scales losses has another one within it, which does the work.
        optimizers = [leaf for each in applied for leaf in of_optimizers.leaves(each)]
        build = build or partial(_build, model)
        variables = [each for each in model.variables if has_value(each)]
        if leaving == "auto":
            is_stage = len(variables) < len(model.variables)
            leaving = _chosen(variables, optimizers, budget_bytes, is_stage=is_stage)
        for variable in variables:
            is_home = home_of(variable) is not None
            leaves = leaving == "weights" and variable.trainable and self._is_large(variable)
            if leaves and not is_home:
                send_home(variable, rows)
            elif is_home and not leaves:
                with model.distribute_strategy.scope():
                    bring_back(variable)
        has_large = any(self._is_large(each) for each in variables if each.trainable)
        self.has_more = has_large and leaving != "weights"
        if leaving == "none" or not has_large:
            build()
            return
        for optimizer in optimizers:
            self._send_states(optimizer)
        build()
        for optimizer in optimizers:
            if optimizer.built:
                update = HostUpdate(optimizer, rows)
                self._undo.enter_context(of_optimizers.applying_by(optimizer, update.apply))
        for optimizer in applied:
            if not any(optimizer is each for each in optimizers):
                self._undo.enter_context(of_optimizers.bounded(optimizer, updating))
        states = [slot for each in optimizers if each.built for slot in each.variables]
        self.left = Left(weights=_bytes_off(variables), states=_bytes_off(states))

    def end(self) -> None:
        """Let the optimizers update as ever. What left stays where it is, and can be read."""
        self._undo.close()

    def _is_large(self, variable: Any) -> bool:
        # A bias comes between two ops that TensorFlow may run as one, which would wait for itself.
        return len(variable.shape) > 1 and _bytes_of(variable) >= self._least_bytes

    def _send_states(self, optimizer: keras.Optimizer) -> None:
        """Send the states of an optimizer off the device: those that it has, or will have."""
        if optimizer.built:
            for variable, slots in zip(trained_by(optimizer), slots_of(optimizer), strict=True):
                for slot in slots if self._is_large(variable) else ():
                    if home_of(slot) is None:
                        send_home(slot, self._rows)
            return

        def add(before: Any, reference: Any, **options: Any) -> Any:
            if reference is None or not self._is_large(reference):
                return before(**options)
            # A step of the user's own may build its optimizer.
            with tf.init_scope(), made_at_home(self._rows, 0):
                return before(**options)

        self._undo.enter_context(of_optimizers.adding(optimizer, add))


def optimizers_of(model: keras.Model) -> list[keras.Optimizer]:
    """Return a model's optimizers: the one that it was compiled with, and those that it holds."""
    held = [getattr(model, "optimizer", None), *vars(model).values()]
    found: list[keras.Optimizer] = []
    for each in held:
        is_new = isinstance(each, keras.Optimizer) and not any(each is one for one in found)
        if is_new:
            found.append(each)
    return found


def _chosen(
    variables: Sequence[Any],
    optimizers: Sequence[keras.Optimizer],
    budget_bytes: int,
    *,
    is_stage: bool,
) -> Leaving:
    """Return what leaves so that the rest takes no more than a share of the budget."""
    trained = [_bytes_of(each) for each in variables if each.trainable]
    return chosen(
        weight_bytes=sum(map(_bytes_of, variables)),
        trained_bytes=sum(trained),
        # A stage adds up the gradients of its micro-batches before any of them leaves.
        together_bytes=sum(trained) if is_stage else max(trained, default=0),
        slots=max((of_optimizers.num_slots(each) for each in optimizers), default=0),
        budget_bytes=budget_bytes,
    )


def _build(model: keras.Model) -> None:
    """Make the variables of a model's optimizer, which the first step would make otherwise, and
    TensorFlow would trace the step twice."""
    optimizer = getattr(model, "optimizer", None)  # A model that is not compiled has none.
    if model.built and optimizer and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def _bytes_of(variable: Any) -> int:
    return int(np.prod(tuple(variable.shape), dtype=np.int64)) * tf.as_dtype(variable.dtype).size


def _bytes_off(variables: Iterable[Any]) -> int:
    return sum(_bytes_of(each) for each in variables if home_of(each) is not None)
