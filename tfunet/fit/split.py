"""Samples of a fit that are cut into parts, one for each device of a group."""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.inside import of_fit
from tfunet.inside.of_keras import compiled_metrics
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.feed import fed_groups
from tfunet.parallel.group import cut_rows
from tfunet.parallel.host_exchange import exchange_of
from tfunet.parallel.losses import split_loss, split_metrics, split_own_methods
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import Groups, SplitNetwork


@final
class SplitSamples:
    """Which device has which part of the samples, and the networks that run on parts.

    Raises ValueError for devices that cannot be shared out so, or cannot exchange.
    """

    def __init__(self, backend: Backend, topology: Topology, split: Sequence[int]) -> None:
        parts = Mesh(split=tuple(split)).parts
        if topology.num_replicas % parts:
            raise ValueError(
                f"split={list(split)} takes {parts} devices for each sample, which do not divide "
                f"the {topology.num_replicas} of this script. Start a multiple of {parts}, as with "
                f"--num_replicas {parts}, or choose another split."
            )
        exchange = exchange_of(backend, topology, what="split", may_share=True)
        self.mesh = Mesh(groups=topology.num_replicas // parts, split=tuple(split))
        self.local_groups = fed_groups(self.mesh, topology.local_replicas)
        self._groups = Groups(self.mesh, topology.local_replicas, ExchangeSwitch(exchange))
        self._networks: weakref.WeakKeyDictionary[Any, SplitNetwork] = weakref.WeakKeyDictionary()

    def install(self, model: keras.Model, image: Any = None) -> None:
        """Have a built model run on parts of samples, such as `image`; once.

        Raises ValueError for samples that cannot be cut so.
        """
        if model in self._networks:
            return
        spatial = self._spatial(model, image)
        bounds = part_bounds(spatial, self.mesh.split)
        network = SplitNetwork(
            model=model, mesh=self.mesh, bounds=bounds, group=self._groups.current
        )
        network.install()
        for loss in of_fit.losses_of(model):
            if not isinstance(loss, keras.Loss):
                raise ValueError(
                    f"split needs a loss of keras.losses, or a class of your own; the model was "
                    f"compiled with {loss!r}. Wrap a function: a keras.Loss whose call is it."
                )
            split_loss(loss, network)
        compiled = compiled_metrics(model)
        if compiled is not None:
            split_metrics(compiled.metrics, network)
        split_own_methods(model, network, 0)
        self._networks[model] = network

    def _spatial(self, model: keras.Model, image: Any) -> tuple[int, ...]:
        """Return the extents of samples along their spatial axes."""
        shapes = [value.shape for value in tf.nest.flatten(image) if value is not None]
        given = getattr(model, "input_shape", None)
        shape = tuple(shapes[0] if len(shapes) == 1 else given or ())
        spatial = shape[1:-1]
        if len(spatial) != len(self.mesh.split) or None in spatial:
            raise ValueError(
                f"split={list(self.mesh.split)} cuts one image or volume of known size along each "
                f"of its axes, (batch, rows, columns, channels), and the model takes "
                f"{shape or 'several inputs'}. Choose another split, or leave it out."
            )
        return spatial

    def network(self, model: keras.Model) -> SplitNetwork:
        """Return what runs a model on parts; ValueError for one that was not installed."""
        if model not in self._networks:
            self.install(model)
        return self._networks[model]

    def own_part(self, model: keras.Model, data: Any) -> Any:
        """Return this device's part of a batch of whole samples; labels of samples stay whole.

        Raises ValueError for weights of voxels.
        """
        network = self.network(model)
        group, rank = network.group(), len(network.bounds)

        def part(value: Any) -> Any:
            extents = tuple(value.shape[1 : 1 + rank]) if tf.is_tensor(value) else ()
            bounds = network.bounds
            if len(extents) < rank or any(
                edges is not None and edges[-1] != extent
                for edges, extent in zip(bounds, extents, strict=True)
            ):
                return value
            for axis, edges in enumerate(bounds):
                if edges is not None:
                    begin, end = tuple(itertools.pairwise(edges))[group.place[axis]]
                    value = cut_rows(value, axis, begin, end)
            return value

        if isinstance(data, tuple) and len(data) > 2 and data[2] is not None:
            weights = tf.nest.map_structure(_of_samples, data[2])
            return (*tf.nest.map_structure(part, data[:2]), weights)
        return tf.nest.map_structure(part, data)


def _of_samples(weights: tf.Tensor) -> tf.Tensor:
    """Return weights of samples, (rows,), of such as (rows, 1, 1); ValueError for others."""
    if any(extent != 1 for extent in weights.shape[1:]):
        raise ValueError(
            "split averages a loss over the voxels of a sample, and cannot weigh each, got a "
            f"sample_weight of shape {tuple(weights.shape)}. Give one for each sample, or leave "
            "out split."
        )
    return tf.reshape(weights, [-1])
