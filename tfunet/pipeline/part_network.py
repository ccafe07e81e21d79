"""A network as a device sees it that has a part of each sample: its stages are cut as ever.

    whole network     tensors (batch, 64, 64, 8)    nodes: layers
    part network      tensors (batch, 32, 64, 8)    nodes: the rules of these layers for parts

Between two stages goes the device's part of a tensor, or a tensor that all devices have whole. Its
margin stays behind: the stage that reads it asks its neighbours itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.mesh import Bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import Part, cut, own_tensor
from tfunet.parallel.rules import rule_of, with_noise
from tfunet.pipeline.network import Node, NodeGraph
from tfunet.pipeline.noise import with_noise_of_batch

# The bounds of the parts of each tensor that is cut, by number.
Layout = Mapping[int, tuple[Bounds | None, ...]]


@final
@dataclass(frozen=True, kw_only=True)
class OnParts:
    """Runs nodes on this device's part of each tensor; see `network.Way`.

    Args:
        layout: Bounds of the tensors that may come from another stage.
        result: Number of the network's output, which is cut where the masks are.
    """

    split: SplitNetwork
    layout: Layout
    result: int

    def run(self, node: Node, values: Mapping[int, Any], *, training: bool) -> Any:
        group = self.split.group()
        args, kwargs = node.filled({at: self._part(at, values[at]) for at in node.reads})
        made = self.split.called(node.operation, args, kwargs, group, training)
        if self.result not in node.makes:
            return made
        outputs = keras.tree.flatten(made)
        at = node.makes.index(self.result)
        outputs[at] = self._as_masks(self.split.own_rows(group, outputs[at]))
        return outputs

    def run_noise(self, node: Node, value: Any, number: int, count: int) -> Any:
        layer, (at,) = node.operation, node.reads
        part = self._part(at, value)

        def drawn(given: Any, **_: Any) -> Any:
            return with_noise_of_batch(layer, given, number, count)

        if not isinstance(part, Part):
            return drawn(part)
        group = self.split.group()
        if rule_of(layer, len(part.bounds) + 2) is not None:
            return with_noise(group, layer, part, drawn)
        self.split.note_gathered(layer.name, type(layer).__name__, part)
        return cut(group, drawn(part.whole(group)), part.bounds)

    def _part(self, at: int, value: Any) -> Any:
        """Return a tensor, which may come from another stage, as a part if it is cut."""
        if isinstance(value, Part) or at not in self.layout:
            return value
        return Part(tensor=value, bounds=self.layout[at])

    def _as_masks(self, output: Any) -> Any:
        if not self.split.is_part(output):
            return output
        return Part(tensor=output, bounds=self.split.bounds)


def part_network(
    network: NodeGraph, split: SplitNetwork, exchange: ExchangeSwitch, shape: Sequence[int]
) -> NodeGraph:
    """Return the network of this device's part of each sample.

    Its layers are traced once, without any exchange, to know how each tensor is cut.

    Args:
        network: The network of whole samples, with one input and one output.
        exchange: Exchange of the split's group.
        shape: Shape of this device's part of an image, with channels.
    """
    (image,), (result,) = network.inputs, network.outputs
    layout: dict[int, tuple[Bounds | None, ...]] = {image: split.bounds}
    way = OnParts(split=split, layout=layout, result=result)
    nodes = tuple(replace(node, way=way) for node in network.nodes)
    tensors = list(network.tensors)
    with tf.Graph().as_default(), exchange.off():
        own = tf.compat.v1.placeholder(split.model.compute_dtype, (1, *shape))
        values: dict[int, Any] = {image: own}
        tensors[image] = _spec(network.tensors[image], own)
        for node in nodes:
            with node.placeholders():
                node.run(values, training=True)
            for at in node.makes:
                made = values[at]
                if isinstance(made, Part):
                    layout[at] = made.bounds
                tensors[at] = _spec(network.tensors[at], own_tensor(made))
    return replace(network, nodes=nodes, tensors=tuple(tensors))


def _spec(tensor: Any, own: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec((None, *own.shape[1:]), own.dtype, name=tensor.name)
