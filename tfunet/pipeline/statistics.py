"""Batch normalisation over micro-batches, deferred: its moving statistics change once a step.

Each micro-batch is normalised with its own mean and variance. The moving statistics then take over
those of the whole batch, which are put together from them (torchgpipe's DeferredBatchNorm).
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfunet.geometry.kinds import is_own
from tfunet.inside.of_keras import all_layers
from tfunet.inside.replacing import replacing

# A layer, with the mean and the variance of what it was called with.
Moments = tuple[Any, list[tf.Tensor]]


def batch_normalizations(operations: Iterable[Any]) -> list[Any]:
    """Return the layers of batch normalisation among operations and inside them."""
    layers = [operation for operation in operations if isinstance(operation, keras.layers.Layer)]
    found = [inner for layer in layers for inner in all_layers(layer)]
    kind = keras.layers.BatchNormalization
    return list({id(layer): layer for layer in found if isinstance(layer, kind)}.values())


@contextlib.contextmanager
def not_synchronized(layers: Iterable[Any]) -> Iterator[None]:
    """Take the statistics of a pipeline's own batch in the block, of which it is the only one.

    Keras would reduce them in the context of a replica, which a stage computes outside of.
    """
    synchronized = [layer for layer in batch_normalizations(layers) if layer.synchronized]
    for layer in synchronized:
        layer.synchronized = False
    try:
        yield
    finally:
        for layer in synchronized:
            layer.synchronized = True


def check_deferrable(operations: Iterable[Any]) -> None:
    """Raise ValueError for batch normalisation that changes its statistics in ways of its own."""
    for layer in batch_normalizations(operations):
        has_own_call = is_own(layer, "call")
        if has_own_call or layer.renorm:
            what = "has a call of its own" if has_own_call else "has renorm=True"
            raise ValueError(
                f'batch_norm = "deferred" is not possible for the layer {layer.name!r}: it {what}, '
                "so that its moving statistics are not those of its batches alone. Use Keras's "
                'BatchNormalization without renorm, or batch_norm = "micro_batch".'
            )


class DeferredStatistics:
    """The moving statistics of a stage's layers in a step."""

    def __init__(self, operations: Sequence[Any]) -> None:
        check_deferrable(operations)
        self._layers = batch_normalizations(operations)
        self.begin()

    def begin(self) -> None:
        """Forget the step before, and begin one."""
        # Moments of the calls of each micro-batch, in order.
        self._calls: dict[int, list[Moments]] = {}

    @contextlib.contextmanager
    def noted(self, number: int) -> Iterator[None]:
        """Note the statistics of micro-batch `number`, which is run in the block, and keep the
        moving ones as they are. A second run of it changes nothing."""
        calls: list[Moments] = []
        with contextlib.ExitStack() as stack:
            for layer in self._layers:
                call = partial(_noted_call, layer, calls)
                stack.enter_context(replacing(layer, call=call))
            yield
        self._calls.setdefault(number, calls)

    def end(self) -> None:
        """Let the moving statistics take over those of the whole batch, call by call."""
        for calls in zip(*self._calls.values(), strict=True):
            layer = calls[0][0]
            means, variances = (
                tf.stack(each) for each in zip(*(moments for _, moments in calls), strict=True)
            )
            mean = tf.reduce_mean(means, axis=0)
            variance = tf.reduce_mean(variances + tf.square(means - mean), axis=0)
            for moving, new in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
                moving.assign(moving.value * layer.momentum + new * (1.0 - layer.momentum))
        self.begin()


def _noted_call(
    layer: Any, calls: list[Moments], inputs: Any, training: Any = None, mask: Any = None
) -> Any:
    """Call a layer, and note the statistics of its batch instead of having it move its own."""
    call = type(layer).call
    if not (training and layer.trainable):
        return call(layer, inputs, training=training, mask=mask)
    if mask is not None:
        raise ValueError(
            f"The layer {layer.name!r} normalises a batch with a mask, whose micro-batches count "
            'for different shares of it. Leave out the mask, or batch_norm = "deferred".'
        )
    moving = layer.moving_mean, layer.moving_variance
    before = [tf.identity(variable.value) for variable in moving]
    momentum = layer.momentum
    layer.momentum = 0.0  # The moving statistics are then those of this batch alone.
    try:
        outputs = call(layer, inputs, training=training)
    finally:
        layer.momentum = momentum
    calls.append((layer, [tf.identity(variable.value) for variable in moving]))
    for variable, value in zip(moving, before, strict=True):
        variable.assign(value)
    return outputs
