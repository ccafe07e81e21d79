"""What each layer of a network costs alone: time, predicted or measured, and memory."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfunet.graph import passes, reader
from tfunet.graph.step import root
from tfunet.models import trained_options
from tfunet.models.make import make_model
from tfunet.models.options import check_shape
from tfunet.models.symbolic import build_symbolic
from tfunet.parallel.part import own_tensor
from tfunet.performance.devices import Device, described
from tfunet.pipeline.chain import Chain, ChainLayer, Variable
from tfunet.pipeline.network import Node, NodeGraph, OnWholeTensors
from tfunet.swap.measure.profile import measure
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.swap.storage.host import HostMemory, NumpyMemory


@dataclass(frozen=True, kw_only=True)
class TracedNode:
    """The ops of both passes of a node, on placeholders for its inputs and variables.

    `given` are the gradients of what it makes. An op makes each, so that others may take over its
    memory, as in a step.
    """

    ops: Sequence[tf.Operation]
    given: Sequence[tf.Tensor]
    made: Sequence[tf.Tensor]
    gradients: Sequence[tf.Tensor]
    numbers: Mapping[str, int]  # of the network's tensors, by name of the tensor in the graph


def symbolic_model(
    name: str,
    *,
    image_shape: Sequence[int],
    num_classes: int,
    options: Mapping[str, Any],
    precision: str = "float32",
) -> keras.Model:
    """Return a model that `make_model` makes, without values, and without what training adds.

    Raises ValueError for a shape that is none.
    """
    check_shape(image_shape, num_classes)
    shape = tuple(image_shape)
    build = partial(
        make_model,
        name,
        image_shape=shape,
        num_classes=num_classes,
        options=trained_options(name, options),
    )
    return build_symbolic(build, precision=precision)


# Returns the loss from an output.
Loss = Callable[[Any], tf.Tensor]


def layer_costs(
    network: NodeGraph, batch: int, device: Device | None, loss: Loss | None = None
) -> Chain:
    """Return the layers of a network with their costs for a micro-batch of `batch` samples.

    Nothing is allocated for the variables, so that the network may be of any size. Layers are
    traced one by one: what TensorFlow would fuse across two of them counts twice.

    Args:
        device: For which times are predicted. If it is None, the ops are timed on this one, each
            alone, on made-up numbers.
        loss: Counts as a part of the last layer.
    """
    last = network.nodes[-1]
    # One of several layers alike is traced. Where times are measured, each has its own.
    kinds = [
        node.name if device is None or node is last else _kind(network, node)
        for node in network.nodes
    ]
    firsts: dict[Hashable, Node] = {}
    for kind, node in zip(kinds, network.nodes, strict=True):
        firsts.setdefault(kind, node)
    with tf.Graph().as_default() as graph:
        traced = {
            kind: _trace(network, node, batch, graph, loss if node is last else None)
            for kind, node in firsts.items()
        }
    seconds, scratch = _op_costs(list(traced.values()), device)
    known = {kind: _layer(node, traced[kind], seconds, scratch) for kind, node in firsts.items()}
    return Chain(
        layers=tuple(
            _like(known[kind], firsts[kind], node)
            for kind, node in zip(kinds, network.nodes, strict=True)
        ),
        tensor_bytes=[_num_bytes(tensor, batch) for tensor in network.tensors],
        inputs=frozenset(network.inputs),
    )


def _kind(network: NodeGraph, node: Node) -> Hashable:
    """Return what is the same of layers that cost the same; of other operations their name."""
    layer = node.operation
    is_of_keras = isinstance(layer, keras.Layer) and type(layer).__module__.startswith("keras.")
    if not is_of_keras or node.way != OnWholeTensors():
        return node.name
    tensors = [(network.tensors[at], at in network.inputs) for at in node.reads]
    return (
        type(layer),
        repr({**layer.get_config(), "name": None}),
        tuple((tuple(tensor.shape), tensor.dtype, is_input) for tensor, is_input in tensors),
    )


def _like(known: ChainLayer, first: Node, node: Node) -> ChainLayer:
    """Return the costs of a layer that costs what the first of its kind does."""
    own = dict(zip((*first.reads, *first.makes), (*node.reads, *node.makes), strict=True))
    return replace(
        known,
        name=node.name,
        reads=node.reads,
        makes=node.makes,
        keeps=frozenset(own[at] for at in known.keeps),
        variables={id(variable): _variable(node, variable) for variable in node.variables},
    )


def layer_times(network: NodeGraph, batch: int, loss: Loss) -> Chain:
    """Return `layer_costs` as measured on this device."""
    return layer_costs(network, batch, None, loss)


def _num_bytes(tensor: Any, batch: int) -> int:
    return reader.num_bytes(tf.TensorSpec(_shape(tensor, batch), tensor.dtype))


def _shape(tensor: Any, batch: int) -> tuple[int, ...]:
    """Return the shape of a symbolic tensor; ValueError if a size is not known."""
    sizes = (batch, *tensor.shape[1:])
    if None in sizes:
        raise ValueError(
            f"The tensor {tensor.name!r} has the shape {tuple(tensor.shape)!r}: costs are only "
            "known where every size is. Give the model the size of the image."
        )
    return sizes


def _trace(
    network: NodeGraph, node: Node, batch: int, graph: tf.Graph, loss: Loss | None
) -> TracedNode:
    before = len(graph.get_operations())
    reads = {
        at: tf.compat.v1.placeholder(network.tensors[at].dtype, _shape(network.tensors[at], batch))
        for at in node.reads
    }
    values: dict[int, Any] = dict(reads)
    with node.placeholders() as variables, tf.GradientTape() as tape:
        # Nobody asks for the gradient of the image.
        wanted = [value for at, value in reads.items() if at not in network.inputs]
        tape.watch([*wanted, *variables])
        node.run(values, training=True)
        made = [own_tensor(values[at]) for at in node.makes]
        if loss is not None:
            made = [loss(*made)]
    given = [_given(tensor) for tensor in made]
    results = tape.gradient(made, [*wanted, *variables], output_gradients=given)
    return TracedNode(
        ops=graph.get_operations()[before:],
        given=given,
        made=made,
        gradients=[gradient for gradient in map(_dense, results) if gradient is not None],
        numbers={own_tensor(value).name: at for at, value in values.items()},
    )


def _given(made: tf.Tensor) -> tf.Tensor:
    """Return what stands for the gradient of a tensor; one of truths has none."""
    holder = tf.compat.v1.placeholder(made.dtype, made.shape)
    return tf.identity(holder) if made.dtype.is_bool else tf.negative(holder)


def _dense(gradient: Any) -> tf.Tensor | None:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _op_costs(
    traced: Sequence[TracedNode], device: Device | None
) -> tuple[Mapping[str, float], Mapping[str, int]]:
    """Return by the name of each op its seconds, and what it takes while it runs, where known."""
    results = [tensor for node in traced for tensor in (*node.made, *node.gradients)]
    ops = reader.in_order([op for node in traced for op in node.ops], results)
    trace, _ = reader.read(ops, results)
    scratch: Mapping[int, int] = {}
    if device is not None:
        costs = described(trace, device)
    else:
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        with tf.init_scope():
            costs, scratch = measure(trace, ops, HostMemory() if on_gpu else NumpyMemory())
    names = [op.name for op in ops]
    return (
        dict(zip(names, costs.op_seconds, strict=True)),
        {names[index]: num_bytes for index, num_bytes in scratch.items()},
    )


def _layer(
    node: Node, traced: TracedNode, seconds: Mapping[str, float], scratch: Mapping[str, int]
) -> ChainLayer:
    given = {tensor.op.name for tensor in traced.given}
    ops = [op for op in traced.ops if op.name not in given]
    forward, backward = (
        sum(seconds.get(op.name, 0.0) for op in ops if passes.is_backward(op) == is_backward)
        for is_backward in (False, True)
    )
    # What the layer makes is not a result here: it stays only if a gradient reads it.
    in_order = reader.in_order(traced.ops, traced.gradients)
    trace, handles = reader.read(in_order, traced.gradients)
    read_later = {root(trace, at) for op in trace.ops if op.is_backward for at in op.inputs}
    keeps = {
        at: traced.numbers[handles[at].name]
        for at in read_later
        if handles[at].name in traced.numbers
    }
    own_bytes = sum(
        trace.tensors[at].num_bytes
        for at in read_later - keeps.keys()
        if trace.is_of_forward(at) and handles[at].op.name not in given
    )
    made_bytes = sum(trace.tensors[at].num_bytes for at in keeps)
    taken = {at: scratch[op.name] for at, op in enumerate(in_order) if op.name in scratch}
    peak_bytes = int(memory(trace, schedule(trace, {}), taken).max(initial=0))
    return ChainLayer(
        name=node.name,
        forward_seconds=forward,
        backward_seconds=backward,
        reads=node.reads,
        makes=node.makes,
        keeps=frozenset(keeps.values()),
        kept_bytes=own_bytes,
        working_bytes=max(0, peak_bytes - own_bytes - made_bytes),
        variables={id(variable): _variable(node, variable) for variable in node.variables},
    )


def _variable(node: Node, variable: Any) -> Variable:
    is_weight = any(variable is weight for weight in getattr(node.operation, "weights", []))
    spec = tf.TensorSpec(variable.shape, variable.dtype)
    return Variable(
        num_parameters=spec.shape.num_elements() if is_weight else 0,
        num_bytes=reader.num_bytes(spec),
        is_trainable=any(variable is weight for weight in node.trainable_variables),
    )
