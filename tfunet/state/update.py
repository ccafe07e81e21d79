"""Updates variables off the device: on the host, in one pass over gradients, weights and states.

    rows of gradients, weights, states  ->  chunk by chunk, Keras's own update  ->  the same rows

A chunk stays in the processor's cache while the ops of the update run, so that each number comes
from memory once and goes back once. TensorFlow runs each op on all cores of the process.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.graph.step import GRADIENT_LEAVES, HOST_UPDATE, WEIGHT_READ
from tfunet.inside import of_optimizers
from tfunet.inside.of_keras import clipping_of, trained_by, variable_key
from tfunet.state.home import home_of, updating
from tfunet.state.slices import SlicedOptimizer
from tfunet.state.slots import granularity, slots_of
from tfunet.swap.storage.rows import Row, Rows
from tfunet.timing.stamps import unordered

# Numbers of a chunk: a MiB of each row, whole blocks of a disk.
CHUNK = 2**18


class _Cut(NamedTuple):
    """A variable whose update runs in chunks."""

    variable: Any
    sliced: SlicedOptimizer
    gradient: Row
    value: Row  # The variable's own; where the device has that, what passes through the host.
    slots: Sequence[Row]


@final
class HostUpdate:
    """The update of an optimizer whose states, or some of them, are off the device.

    What works element by element runs in chunks on the host. For other optimizers, for those that
    add up the gradients of several steps, and for variables that are on the device with all their
    states, Keras's own update runs as ever; what is off the device comes for it, variable by
    variable.

    Args:
        optimizer: A built optimizer, not one that scales losses.
        rows: Makes rows for gradients.
    """

    def __init__(self, optimizer: keras.Optimizer, rows: Rows) -> None:
        self._optimizer = optimizer
        trained = trained_by(optimizer)
        slots = dict(zip((self._key(each) for each in trained), slots_of(optimizer), strict=True))
        self._cuts: dict[str, _Cut] = {}
        # Weights that decay are updated in another way, and a chunk has numbers of one type.
        kinds: dict[tuple[bool, str], SlicedOptimizer] = {}
        if optimizer.gradient_accumulation_steps or granularity(optimizer) == "variable":
            return
        for variable in trained:
            key, home = self._key(variable), home_of(variable)
            homes = [home_of(slot) for slot in slots[key]]
            states = [each.row for each in homes if each is not None]
            if len(states) == len(homes) and (states or home is not None):
                shape, dtype = tuple(variable.shape), str(variable.dtype)
                value = rows.make(shape, dtype) if home is None else home.row
                kind = of_optimizers.decays(optimizer, variable), dtype
                if kind not in kinds:
                    kinds[kind] = SlicedOptimizer(optimizer, variable)
                gradient = rows.make(shape, dtype)
                self._cuts[key] = _Cut(variable, kinds[kind], gradient, value, states)

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
        """Take the place of what an optimizer does with its gradients.

        The host updates in chunks in a graph only.
        """
        if not self._cuts or tf.executing_eagerly():
            of_optimizers.apply(self._optimizer, gradients, variables)
            return
        self._check_reached(variables)
        gradients = clipping_of(self._optimizer)(list(gradients))
        pairs = list(zip(gradients, variables, strict=True))
        cut = [(g, self._cuts[self._key(v)]) for g, v in pairs if self._is_cut(g, v)]
        kept = [(g, v) for g, v in pairs if not self._is_cut(g, v)]
        left = [_leave(gradient, each) for gradient, each in cut]
        with updating(variables):
            if kept:
                numbers = of_optimizers.own_numbers(self._optimizer).values()
                before = [(number, tf.identity(number)) for number in numbers if cut]
                with of_optimizers.only_training(self._optimizer, [v for _, v in kept]):
                    of_optimizers.apply_clipped(
                        self._optimizer, *map(list, zip(*kept, strict=True))
                    )
                for number, value in before:  # The chunks change it, too, once for all.
                    number.assign(value)
            if cut:
                self._apply_in_chunks([each for _, each in cut], left)

    def _check_reached(self, variables: Sequence[Any]) -> None:
        """Raise ValueError for a weight off the device whose gradient a function keeps."""
        given = {self._key(variable) for variable in variables}
        for variable in trained_by(self._optimizer):
            home, is_given = home_of(variable), self._key(variable) in given
            if home is not None and not is_given and home.is_read_by_function():
                raise ValueError(
                    f"The weight {variable.path!r} is off the device, and a tf.function of a "
                    "layer's own reads it, so that it has no gradient. Leave out @tf.function, "
                    "or keep weights on the device: weights='none' (swap_weights)."
                )

    def _apply_in_chunks(self, cuts: Sequence[_Cut], left: Sequence[tf.Operation]) -> None:
        waits, used = list(left), {id(cut.sliced): cut.sliced for cut in cuts}
        for sliced in used.values():
            with tf.control_dependencies(waits):
                waits = [_in_chunks(sliced, [cut for cut in cuts if cut.sliced is sliced])]
        with tf.control_dependencies(waits):
            sliced.end_step()
        for cut in cuts:
            if home_of(cut.variable) is None:
                with tf.control_dependencies(waits):
                    waits = [_come_back(cut)]

    def _is_cut(self, gradient: Any, variable: Any) -> bool:
        # Keras squares the parts of a gradient of some rows, an embedding's, one by one.
        return self._key(variable) in self._cuts and isinstance(gradient, tf.Tensor)

    def _key(self, variable: Any) -> str:
        return variable_key(self._optimizer, variable)


def _leave(gradient: tf.Tensor, cut: _Cut) -> tf.Operation:
    """Write a gradient, and a weight of the device, to the host."""

    def write(gradient: np.ndarray, *value: np.ndarray) -> np.ndarray:
        cut.gradient.write(0, gradient.reshape(-1))
        for each in value:
            cut.value.write(0, each.reshape(-1))
        return np.zeros((), np.int32)

    given = [gradient]
    if home_of(cut.variable) is None:
        given.append(tf.convert_to_tensor(cut.variable))
    left = tf.numpy_function(write, given, tf.int32, name=GRADIENT_LEAVES)
    return unordered(left.op)


def _in_chunks(sliced: SlicedOptimizer, cuts: Sequence[_Cut]) -> tf.Operation:
    """Update the rows of variables chunk by chunk; return what is done then."""
    table = [
        (cut, first, min(first + CHUNK, cut.value.size))
        for cut in cuts
        for first in range(0, cut.value.size, CHUNK)
    ]
    kind = tf.as_dtype(cuts[0].value.dtype)

    def get(at: np.ndarray) -> list[np.ndarray]:
        cut, first, last = table[at]
        return [row.read(first, last) for row in (cut.gradient, cut.value, *cut.slots)]

    def put(at: np.ndarray, *new: np.ndarray) -> np.ndarray:
        cut, first, _ = table[at]
        for row, numbers in zip((cut.value, *cut.slots), new, strict=True):
            row.write(first, numbers)
        return np.zeros((), np.int32)

    def body(at: tf.Tensor) -> list[tf.Tensor]:
        given = tf.numpy_function(get, [at], [kind] * (2 + sliced.num_slots), name="chunk_comes")
        for each in given:
            each.set_shape([None])
        value, slots = sliced.update(given[0], given[1], given[2:])
        done = tf.numpy_function(put, [at, value, *slots], tf.int32, name="chunk_leaves")
        with tf.control_dependencies([done]):
            return [at + 1]

    (last,) = tf.while_loop(
        lambda at: at < len(table),
        body,
        [tf.constant(0)],
        parallel_iterations=1,
        name=HOST_UPDATE,
    )
    # The gradient is only read.
    rows = sum(row.size * row.dtype.itemsize for cut in cuts for row in (cut.value, *cut.slots))
    moved = 2 * rows + sum(cut.gradient.size * cut.gradient.dtype.itemsize for cut in cuts)
    last.graph.add_to_collection(HOST_UPDATE, (last.op.inputs[0].op.name, moved))
    return last.op


def _come_back(cut: _Cut) -> tf.Operation:
    """Give the device the new value of a weight."""
    shape = tuple(cut.variable.shape)
    value = tf.numpy_function(
        lambda: cut.value.read(0, cut.value.size).reshape(shape),
        [],
        cut.variable.dtype,
        name=WEIGHT_READ,
    )
    value.set_shape(shape)
    unordered(value.op)
    copy = tf.raw_ops.DeepCopy(x=value, name="weight_comes_back")
    unordered(copy.op)
    cut.variable.assign(copy)
    # What was there before is freed then.
    return tf.compat.v1.get_default_graph().get_operations()[-1]
