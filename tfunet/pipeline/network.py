"""The layers of a functional Keras model, in the order in which Keras runs them."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, final

import keras
import tensorflow as tf

from tfunet.inside.of_keras import calls_of, graph_of, has_graph, is_told_of_training, mask_of
from tfunet.pipeline.noise import with_noise_of_batch
from tfunet.pipeline.statistics import batch_normalizations


class Way(Protocol):
    """How a node runs: on whole tensors, or on a device's part of each."""

    def run(self, node: "Node", values: Mapping[int, Any], *, training: bool) -> Any:
        """Return what the operation of a node makes of `values`, by number of the tensor."""

    def run_noise(self, node: "Node", value: Any, number: int, count: int) -> Any:
        """Return what a layer of noise makes of micro-batch `number` of `count`."""


@final
@dataclass(frozen=True)
class OnWholeTensors:
    """The operation as it is."""

    def run(self, node: "Node", values: Mapping[int, Any], *, training: bool) -> Any:
        args, kwargs = node.filled(values)
        # As a functional model of Keras does, whatever the call said.
        if is_told_of_training(node.operation):
            kwargs = {**kwargs, "training": training}
        return node.operation(*args, **kwargs)

    def run_noise(self, node: "Node", value: Any, number: int, count: int) -> Any:
        return with_noise_of_batch(node.operation, value, number, count)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One call of a layer or operation.

    Args:
        name: Name of the layer, after the names of the models that it lies in.
        operation: The layer or operation of Keras; several nodes share one that is called often.
        arguments: The symbolic arguments of the call.
        numbers: The tensor of the network behind each symbolic tensor, by its id.
        reads, makes: Numbers of tensors.
        way: How it runs.
    """

    name: str
    operation: Any
    arguments: Any
    numbers: Mapping[int, int]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    way: Way = OnWholeTensors()

    def run(self, values: MutableMapping[int, Any], *, training: bool) -> None:
        """Call the operation on `values`, by number of the tensor, and add what it makes."""
        made = self.way.run(self, values, training=training)
        values.update(zip(self.makes, keras.tree.flatten(made), strict=True))

    def run_noise(self, values: MutableMapping[int, Any], number: int, count: int) -> None:
        """Call a layer of noise on micro-batch `number` of `count`, and add what it makes."""
        (at,), (made,) = self.reads, self.makes
        values[made] = self.way.run_noise(self, values[at], number, count)

    def filled(self, values: Mapping[int, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of the call, with values in the place of symbolic tensors."""
        tensors = {symbol: values[at] for symbol, at in self.numbers.items() if at in values}
        args, kwargs = self.arguments.fill_in(tensors)
        return args, kwargs

    @property
    def variables(self) -> list[Any]:
        """All variables of the layer, with the states of its random generators."""
        return list(getattr(self.operation, "variables", []))

    @property
    def trainable_variables(self) -> list[Any]:
        """Variables of the layer that a gradient changes."""
        return list(getattr(self.operation, "trainable_variables", []))

    @contextmanager
    def placeholders(self) -> Iterator[list[tf.Tensor]]:
        """Let the variables be placeholders of the graph; yield those that are trained."""
        holders = [
            (variable, tf.compat.v1.placeholder(variable.dtype, variable.shape))
            for variable in self.variables
        ]
        trained = {id(variable) for variable in self.trainable_variables}
        # Unless told not to, Keras makes a value for every variable without one when a scope ends.
        with keras.StatelessScope(holders, initialize_variables=False):
            yield [holder for variable, holder in holders if id(variable) in trained]


@dataclass(frozen=True, kw_only=True)
class NodeGraph:
    """The nodes of a model in the order in which they run, and the tensors between them."""

    nodes: tuple[Node, ...]
    tensors: tuple[Any, ...]  # by number: name, shape (batch, ...) and type of each
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @cached_property
    def synchronized(self) -> tuple[str, ...]:
        """The nodes that normalize by the batches of all replicas."""
        return tuple(
            node.name
            for node in self.nodes
            if any(layer.synchronized for layer in batch_normalizations([node.operation]))
        )


def read_network(model: keras.Model) -> NodeGraph:
    """Return the nodes of a functional or sequential model; those of models inside it, too.

    Raises ValueError for any other model, and for one that passes on masks, which do not cross
    from stage to stage.
    """
    graph = _graph_of(model)
    if graph is None:
        raise ValueError(
            f"The model {model.name!r} is a class of its own, whose layers cannot be listed in "
            "order. Only functional models (keras.Model(inputs, outputs)) can be cut into stages."
        )
    tensors = list(graph.inputs)
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    nodes: list[Node] = []
    _walk(graph, numbers, "", nodes, tensors)
    masked = [
        node.name for node in nodes if any(mask_of(tensors[at]) is not None for at in node.makes)
    ]
    if masked:
        raise ValueError(
            f"The layer {masked[0]!r} makes a mask, and masks do not cross from stage to stage. "
            "Give the mask as a tensor of the model."
        )
    outputs = tuple(numbers[id(tensor)] for tensor in graph.outputs)
    needed = _needed(nodes, outputs)
    return NodeGraph(
        nodes=tuple(node for node, is_needed in zip(nodes, needed, strict=True) if is_needed),
        tensors=tuple(tensors),
        inputs=tuple(range(len(graph.inputs))),
        outputs=outputs,
    )


def _graph_of(operation: Any) -> Any:
    """Return the graph of a functional or sequential model; None for anything else."""
    graph = graph_of(operation)
    return graph if isinstance(graph, keras.Model) and has_graph(graph) else None


def _walk(
    graph: Any, numbers: dict[int, int], prefix: str, nodes: list[Node], tensors: list[Any]
) -> None:
    """Add the nodes and tensors of a graph; `numbers` gets those of its symbolic tensors."""
    for call in calls_of(graph):
        if call.is_input or not all(id(tensor) in numbers for tensor in call.input_tensors):
            continue
        inner = _inner_graph(call)
        if inner is not None:
            given = (numbers[id(tensor)] for tensor in call.input_tensors)
            own = dict(zip(map(id, inner.inputs), given, strict=True))
            _walk(inner, own, f"{prefix}{call.operation.name}/", nodes, tensors)
            for outer, tensor in zip(call.outputs, inner.outputs, strict=True):
                numbers[id(outer)] = own[id(tensor)]
            continue
        for tensor in call.outputs:
            numbers[id(tensor)] = len(tensors)
            tensors.append(tensor)
        symbols = (*call.input_tensors, *call.outputs)
        nodes.append(
            Node(
                name=f"{prefix}{call.operation.name}",
                operation=call.operation,
                arguments=call.arguments,
                numbers={id(tensor): numbers[id(tensor)] for tensor in symbols},
                reads=tuple(dict.fromkeys(numbers[id(tensor)] for tensor in call.input_tensors)),
                makes=tuple(numbers[id(tensor)] for tensor in call.outputs),
            )
        )


def _inner_graph(call: Any) -> Any:
    """Return the graph of a model that is called as a layer, if its layers can be listed here."""
    graph = _graph_of(call.operation)
    # One with a `call` of its own is run as a whole, and so is one that changes its inputs.
    if graph is None or type(call.operation).call not in (type(graph).call, keras.Sequential.call):
        return None
    given = call.input_tensors
    is_as_built = len(given) == len(graph.inputs) and all(
        tensor.shape[1:] == own.shape[1:] and tensor.dtype == own.dtype
        for tensor, own in zip(given, graph.inputs, strict=True)
    )
    return graph if is_as_built else None


def _needed(nodes: list[Node], outputs: tuple[int, ...]) -> list[bool]:
    needed, wanted = [], set(outputs)
    for node in reversed(nodes):
        needed.append(not wanted.isdisjoint(node.makes))
        if needed[-1]:
            wanted.update(node.reads)
    return needed[::-1]
