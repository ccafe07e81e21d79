"""What TensorFlow keeps to itself, and this package uses; each function has one private name."""

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.distribute import values
from tensorflow.python.eager import context, record
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable, variable_accessed
from tensorflow.python.util import _pywrap_util_port

# Options that TensorFlow asks for each time a function is called.
CallOptions: Any = context.FunctionCallOptions
PARTS = (CondBranchFuncGraph, WhileBodyFuncGraph, WhileCondFuncGraph)


def set_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Have an op of a graph read another tensor."""
    op._update_input(index, tensor)


def set_attribute(op: tf.Operation, name: str, value: Any) -> None:
    """Give an op of a graph an attribute."""
    op._set_attr(name, value)


def control_outputs(op: tf.Operation) -> list[tf.Operation]:
    """Return the ops that wait for an op by a control edge."""
    waiting: list[tf.Operation] = op._control_outputs
    return waiting


def set_control_inputs(op: tf.Operation, before: Sequence[tf.Operation]) -> None:
    """Have an op of a graph wait for these ops only, beside those whose tensors it reads."""
    op._remove_all_control_inputs()
    op._add_control_inputs(before)


def add_control_inputs(op: tf.Operation, before: Sequence[tf.Operation]) -> None:
    """Have an op of a graph wait for these ops, too."""
    op._add_control_inputs(before)


def function_graph(graph: tf.Graph, name: str) -> tf.Graph:
    """Return the graph of a function that the ops of a graph call."""
    return graph._get_function(name).graph


def evaluated(tensor: tf.Tensor) -> Any:
    """Return the value of a tensor that the C++ that infers shapes computes; None of others."""
    with tensor.graph._c_graph.get() as graph:
        return pywrap_tf_session.TF_TryEvaluateConstant_wrapper(graph, tensor._as_tf_output())


def outside_of(graph: tf.Graph) -> tf.Graph | None:
    """Return the graph with the branching or loop that a graph is a part of; None of others."""
    return graph.outer_graph if isinstance(graph, PARTS) else None


def call_options() -> Any:
    """Return the options with which functions are called."""
    return context.context().function_call_options


@contextlib.contextmanager
def calling_with(options: Any) -> Iterator[None]:
    """Call functions with these options in the block."""
    before = call_options()
    context.context().function_call_options = options
    try:
        yield
    finally:
        context.context().function_call_options = before


def gpu_limits() -> list[int]:
    """Return the memory of each GPU that TensorFlow uses: its cap, or what was free at the start.

    From the devices that it has made: `device_lib.list_local_devices` makes others, whose limits
    are what is free at that moment.
    """
    devices = pywrap_tfe.TFE_ContextListDevices(context.context()._handle)
    try:
        return [
            pywrap_tf_session.TF_DeviceListMemoryBytes(devices, index)
            for index in range(pywrap_tf_session.TF_DeviceListCount(devices))
            if pywrap_tf_session.TF_DeviceListType(devices, index) == "GPU"
        ]
    finally:
        pywrap_tf_session.TF_DeleteDeviceList(devices)


def uses_onednn() -> bool:
    """Return whether TensorFlow runs oneDNN's ops on the CPU; by default it does on some CPUs."""
    return bool(_pywrap_util_port.IsMklEnabled())


def address_of(tensor: tf.Tensor) -> int:
    """Return the address of a tensor's memory: `numpy()` would copy it."""
    address: int = tensor._numpy().__array_interface__["data"][0]
    return address


def with_constants(function: Any) -> Any:
    """Return a concrete function whose variables are constants of its graph."""
    return convert_variables_to_constants_v2(function)


def global_seed() -> int | None:
    """Return the seed that tf.random.set_seed was given; None if it was given none."""
    seed: int | None = context.global_seed()
    return seed


def has_devices() -> bool:
    """Whether TensorFlow has taken its devices, so that they cannot be chosen any more."""
    return context.context()._initialized


def numbers_are_arrays() -> None:
    """Let NumPy, float() and int() take a variable of a strategy, also one that is a number.

    Within its scope TensorFlow hands over no array: "object __array__ method not producing an
    array". A variable of one device is taken as it is.
    """

    def array(variable: Any, dtype: Any = None, copy: Any = None) -> np.ndarray:  # copy: NumPy 2.
        return np.array(variable.numpy(), dtype=dtype)

    kind = values.DistributedVariable
    kind.__array__ = array
    kind.__float__ = lambda variable: float(variable.numpy())
    kind.__int__ = lambda variable: int(variable.numpy())


@contextlib.contextmanager
def updating_alone() -> Iterator[None]:
    """Let each replica of a strategy update its own part of variables in the block.

    By default they meet for each update, which is impossible in a branch of a graph. Their values
    must be the same on all replicas.
    """
    extended = tf.distribute.get_strategy().extended
    if "_use_merge_call" not in vars(extended):
        meets = extended._use_merge_call
        extended._use_merge_call = lambda: not _alone.is_alone and meets()
    values.apply_aggregation_replica_context = _aggregated
    before, _alone.is_alone = _alone.is_alone, True
    try:
        yield
    finally:
        _alone.is_alone = before


class _Alone(threading.local):
    """Whether this thread, of one replica, updates variables alone."""

    is_alone = False


_alone = _Alone()
_aggregates = values.apply_aggregation_replica_context


def _aggregated(value: Any, aggregation: Any, destinations: Any) -> Any:
    """Return a value of all replicas to which a variable is set, such as a count of steps."""
    return value if _alone.is_alone else _aggregates(value, aggregation, destinations)


@tf.RegisterGradient("ReadInPart")
def _gradients_of_read(_: tf.Operation, of_value: Any, __: Any) -> list[Any]:
    return [None, of_value]


def _with_gradient_of(before: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return a value read in a branch or loop; its gradient is that of the read outside, before.

    TensorFlow derives branches and loops by the tensors that they take from outside.
    """
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({"IdentityN": "ReadInPart"}):
        return tf.raw_ops.IdentityN(input=[value, before])[0]


class VariableElsewhere(UninitializedVariable):
    """A variable without memory of TensorFlow's: a subclass knows its value.

    All else is as with other variables: a gradient tape watches it, and layers, optimizers and
    models of Keras take it for one.
    """

    @abstractmethod
    def fetched(self) -> tf.Tensor:
        """Return its value, on the device of the scope."""

    @abstractmethod
    def store(self, value: tf.Tensor) -> None:
        """Take another value."""

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        variable_accessed(self)
        outside = outside_of(tf.compat.v1.get_default_graph())
        before = None
        if outside is not None and record.could_possibly_record():
            with outside.as_default():
                before = self._read_variable_op()
        with record.stop_recording():
            value = self.fetched()
            if before is not None:
                value = _with_gradient_of(before, value)
        record.record_operation(
            "ReadVariableOp",
            [value],
            [self.handle],
            backward_function=lambda gradient: [gradient],
            forward_function=lambda gradient: [gradient],
        )
        return value

    def value(self) -> tf.Tensor:
        return self._read_variable_op()

    def read_value(self) -> tf.Tensor:
        return self._read_variable_op()

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        return tf.gather(self.value(), indices)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        return tf.gather_nd(self.value(), indices)

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        return tf.constant(True)

    def assign(self, value: Any, *_: Any, **__: Any) -> "VariableElsewhere":
        self.store(tf.convert_to_tensor(value, self.dtype))
        return self

    def assign_add(self, delta: Any, *_: Any, **__: Any) -> "VariableElsewhere":
        return self.assign(self.value() + self._alone(delta))

    def assign_sub(self, delta: Any, *_: Any, **__: Any) -> "VariableElsewhere":
        return self.assign(self.value() - self._alone(delta))

    def _alone(self, delta: Any) -> tf.Tensor:
        # TensorFlow's optimizer would make one sum, in another order, of this and a sum in it.
        return tf.ensure_shape(tf.convert_to_tensor(delta, self.dtype), self.shape)

    def scatter_add(self, slices: tf.IndexedSlices, *_: Any, **__: Any) -> "VariableElsewhere":
        return self.assign_add(tf.convert_to_tensor(slices))

    def scatter_sub(self, slices: tf.IndexedSlices, *_: Any, **__: Any) -> "VariableElsewhere":
        return self.assign_sub(tf.convert_to_tensor(slices))

    def scatter_update(self, slices: tf.IndexedSlices, *_: Any, **__: Any) -> "VariableElsewhere":
        at = slices.indices[:, tf.newaxis]
        return self.assign(tf.tensor_scatter_nd_update(self.value(), at, slices.values))
