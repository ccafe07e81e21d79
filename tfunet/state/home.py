"""Variables whose value lies in host memory or on disk, and comes to the device to be read."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.graph.step import WEIGHT_ARRIVES, WEIGHT_READ
from tfunet.inside.of_keras import give_value, making_values, name_value
from tfunet.inside.of_tensorflow import VariableElsewhere, add_control_inputs, outside_of
from tfunet.swap.storage.rows import Row, Rows
from tfunet.timing.stamps import unordered

# TensorFlow traces in a scope of this name what tf.vectorized_map does.
VECTORIZED = "loop_body"


@dataclass
class _Order:
    """What reads and writes a variable in a graph.

    Args:
        reads: Since the last write.
        writes: What a read that is made now waits for.
        begins: By the name of a read: the op that the next write waits for.
        parts: What branches and loops take that read or write it, and are not made yet.
        is_inner: Whether the graph is that of a function which another one called when it was
            traced.
    """

    is_inner: bool
    reads: list[tf.Operation] = field(default_factory=list)
    writes: list[tf.Operation] = field(default_factory=list)
    begins: dict[str, tf.Operation] = field(default_factory=dict)
    parts: list[tf.Tensor] = field(default_factory=list)


@final
class HomedVariable(VariableElsewhere):
    """A variable over a row.

    In a graph, each read is an op that brings the value to the device of the scope, and each
    assignment one that writes it, after the reads and assignments that were made before.
    """

    row: Row
    # By graph: a function that is traced again has another one.
    orders: "weakref.WeakKeyDictionary[tf.Graph, _Order]"

    def fetched(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.constant(self.numbers())
        self._check_not_mapped()
        order = self.order()
        copy = self._brought(order.writes)
        order.reads.append(copy.op)
        _BROUGHT.setdefault(copy.graph, {})[copy.op.name] = self
        return copy

    def store(self, value: tf.Tensor) -> None:
        if tf.executing_eagerly():
            self._write(value.numpy())
            return
        order = self.order()
        with tf.control_dependencies([*order.reads, *order.writes]):
            written = tf.numpy_function(self._write, [value], tf.int32, name="weight_written")
        order.reads, order.writes = [], [unordered(written.op)]

    def numbers(self) -> np.ndarray:
        """Return its value, not to be changed."""
        return self.row.read(0, self.row.size).reshape(self.shape)

    def numpy(self) -> np.ndarray:
        return np.array(self.numbers())

    def order(self) -> _Order:
        """Return what reads and writes it in the graph of the scope."""
        graph = tf.compat.v1.get_default_graph()
        if graph not in self.orders:
            outside = outside_of(graph)
            outer = getattr(graph, "outer_graph", None)
            is_inner = outside is None and hasattr(outer, "outer_graph")
            self.orders[graph] = _Order(is_inner=is_inner)
            if outside is not None:
                with outside.as_default():
                    begins = self._begin_part()
                # This makes the op with the part wait.
                self.orders[graph].writes.append(tf.identity(begins).op)
        order = self.orders[graph]
        order.writes += [op for begins in order.parts for op in begins.consumers()]
        order.parts = [begins for begins in order.parts if not begins.consumers()]
        return order

    def _begin_part(self) -> tf.Tensor:
        """Return what a branch or a loop takes, to begin after all that was made before it."""
        order = self.order()
        with tf.control_dependencies([*order.reads, *order.writes]):
            begins = tf.zeros((), name="part_begins")
        order.parts.append(begins)
        return begins

    def is_read_by_function(self) -> bool:
        """Whether not the graph of the scope reads it, but a function, whose gradient nobody
        knows."""
        here = tf.compat.v1.get_default_graph()
        return here not in self.orders and any(each.is_inner for each in self.orders.values())

    def _check_not_mapped(self) -> None:
        """Raise ValueError in tf.vectorized_map, which makes another op of a read, for which there
        is no gradient."""
        graph = tf.compat.v1.get_default_graph()
        while graph is not None:
            if VECTORIZED in graph.get_name_scope():
                raise ValueError(
                    f"The weight {self.name!r} is off the device, and tf.vectorized_map reads it, "
                    "which leaves it without a gradient. Read it before "
                    "(keras.ops.convert_to_tensor), or keep weights on the device: "
                    "weights='none' (swap_weights)."
                )
            graph = getattr(graph, "outer_graph", None)

    def again(self, name: str, after: Sequence[tf.Operation]) -> tf.Tensor:
        """Return the value as a read found it, brought to the device once more, after ops."""
        copy = self._brought(after)
        begins = self.order().begins.get(name)
        if begins is not None:
            add_control_inputs(begins, [copy.op])
        return copy

    def _brought(self, after: Sequence[tf.Operation]) -> tf.Tensor:
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        with tf.control_dependencies(after):
            # In the memory of the host, where TensorFlow reads it in place.
            with tf.device("CPU:0") if on_gpu else contextlib.nullcontext():
                value = tf.numpy_function(self.numbers, [], self.dtype, name=WEIGHT_READ)
                unordered(value.op)
                # TensorFlow's optimizer, which reorders products by shape, sees this one, too.
                value = tf.ensure_shape(value, self.shape)
            copy = tf.raw_ops.DeepCopy(x=value, name=WEIGHT_ARRIVES)
        unordered(copy.op)
        return copy

    def _write(self, value: np.ndarray) -> np.ndarray:
        self.row.write(0, np.asarray(value).reshape(-1))
        return np.zeros((), np.int32)


# The variable that each op brings, by graph and name.
_BROUGHT: "weakref.WeakKeyDictionary[tf.Graph, dict[str, HomedVariable]]"
_BROUGHT = weakref.WeakKeyDictionary()


def bring_again(op: tf.Operation, after: Sequence[tf.Operation]) -> tf.Tensor:
    """Return the weight that an op brings to the device, brought once more, after ops."""
    with tf.device(op.device):
        return _BROUGHT[op.graph][op.name].again(op.name, after)


@contextlib.contextmanager
def updating(variables: Sequence[Any]) -> Iterator[None]:
    """Have what is made in the block run after all reads of variables that were made before, and
    what is made after it run after all of it."""
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    orders = [home.order() for home in map(home_of, variables) if home is not None]
    begins = tf.no_op(name="update_begins")
    for order in orders:
        add_control_inputs(begins, [*order.reads, *order.writes])
        order.begins |= dict.fromkeys((read.name for read in order.reads), begins)
        order.reads, order.writes = [], []
    first = len(graph.get_operations())
    with tf.control_dependencies([begins]):
        yield
    made = [op for op in graph.get_operations()[first:] if op.op_def.is_stateful]
    with tf.control_dependencies(made):
        ends = tf.no_op(name="update_ends")
    for order in orders:
        order.reads, order.writes = [], [ends]


@contextlib.contextmanager
def made_at_home(rows: Rows, least_bytes: int) -> Iterator[None]:
    """Have variables of Keras that are made in the block get their values off the device.

    A value is on the device only while its initializer makes it. Smaller ones, and those with one
    axis, stay there.
    """

    def make(before: Callable[..., None], variable: Any, value: Any) -> None:
        value = value() if callable(value) else value
        is_made = isinstance(value, tf.Variable)
        if not is_made and np.ndim(value) > 1 and np.asarray(value).nbytes >= least_bytes:
            give_home(variable, rows, value)
        else:
            before(variable, value)

    with making_values(make):
        yield


def home_of(variable: Any) -> HomedVariable | None:
    """Return what a variable of Keras has its value in, if it is off the device."""
    value = getattr(variable, "_value", variable)
    return value if isinstance(value, HomedVariable) else None


def send_home(variable: keras.Variable, rows: Rows) -> None:
    """Move the value of a variable of Keras off the device."""
    give_home(variable, rows, variable.numpy())


def bring_back(variable: keras.Variable) -> None:
    """Move the value of a variable of Keras back to the device of the scope."""
    home = home_of(variable)
    if home is not None:
        give_value(variable, home.numbers())
        name_value(variable, home)


def give_home(variable: keras.Variable, rows: Rows, value: Any) -> None:
    """Give a variable of Keras a value off the device, whether it has one or not."""
    value = np.asarray(value)
    shape, dtype = value.shape, str(value.dtype)
    with tf.init_scope():
        made = HomedVariable(
            shape=shape, dtype=dtype, trainable=bool(variable.trainable), name=variable.name
        )
    before = getattr(variable, "_value", None)
    made.row = rows.make(shape, dtype)
    made.orders = weakref.WeakKeyDictionary()
    made.row.write(0, value.reshape(-1))
    give_value(variable, made)
    if before is not None:
        name_value(variable, before)
