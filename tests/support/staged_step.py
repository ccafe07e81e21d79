"""The reference of a step in stages: all chunks in one process, in the order of a schedule."""

import keras
import tensorflow as tf

from tfunet.pipeline.chunk import chunks_of, traffic_of
from tfunet.pipeline.schedules import waiting


class StagedStep:
    """A step of a network in stages; see `chunks_of`.

    Attributes:
        peak_kept: The most micro-batches that each chunk kept at once.
    """

    def __init__(self, network, cuts, *, deferred=False):
        self.network, self.stages = network, chunks_of(network, cuts, deferred=deferred)
        self.readers = traffic_of(network, cuts).readers
        self.peak_kept = [0] * len(self.stages)
        # By micro-batch, tensor and reader.
        self._sent, self._back = {}, {}

    def run(self, orders, inputs, targets, loss, *, recompute=False):
        """Return the loss, and each trainable variable with its gradient: means of micro-batches.

        Args:
            orders: What each device does; see `tfunet.pipeline.schedules`.
            inputs: Inputs of the network, (batch, ...) each.
            targets: A tensor (batch, ...), or several in any structure.
            recompute: Keep only what stages read of micro-batches that wait, and run them again.
        """
        count = 1 + max(action.micro_batch for order in orders for action in order)
        parts = [
            keras.tree.map_structure(
                lambda one, number=number: tf.split(one, count)[number], (list(inputs), targets)
            )
            for number in range(count)
        ]
        self._sent.clear()
        self._back.clear()
        again = waiting(orders) if recompute else {}
        for chunk, stage in enumerate(self.stages):
            stage.begin(count, again.get(chunk, ()))
        left = [list(order) for order in orders]
        while any(left):
            went_on = False
            for order in left:
                while order and self._can_run(order[0]):
                    action = order.pop(0)
                    if action.kind == "forward":
                        own_inputs, own_targets = parts[action.micro_batch]
                        self._forward(action, own_inputs, own_targets, loss)
                    else:
                        self._backward(action)
                    went_on = True
            assert went_on, "The devices wait for each other for ever."
        for stage in self.stages:
            stage.end()
        losses = [value for stage in self.stages for value in stage.losses]
        return tf.add_n(losses) / count, [
            (variable, None if total is None else total / count)
            for stage in self.stages
            for variable, total in zip(stage.variables, stage.sums, strict=True)
        ]

    def _can_run(self, action):
        kind, chunk, number = action
        stage = self.stages[chunk]
        if kind == "forward":
            return all((number, at, chunk) in self._sent for at in stage.reads)
        return number in stage.kept and all(
            (number, at, reader) in self._back
            for at in stage.gives
            for reader in self.readers.get(at, ())
        )

    def _forward(self, action, inputs, targets, loss):
        _, chunk, number = action
        stage = self.stages[chunk]
        values = {at: self._sent.pop((number, at, chunk)) for at in stage.reads}
        values |= dict(zip(self.network.inputs, inputs, strict=True))
        given = stage.forward(number, values, lambda outputs: loss(targets, outputs))
        for at, value in given.items():
            for reader in self.readers.get(at, ()):
                self._sent[number, at, reader] = value
        self.peak_kept[chunk] = max(self.peak_kept[chunk], len(stage.kept))

    def _backward(self, action):
        _, chunk, number = action
        stage = self.stages[chunk]
        gradients = {
            at: _sum([self._back.pop((number, at, reader)) for reader in self.readers.get(at, ())])
            for at in stage.gives
        }
        for at, gradient in stage.backward(number, gradients).items():
            self._back[number, at, chunk] = gradient


def _sum(gradients):
    known = [gradient for gradient in gradients if gradient is not None]
    return tf.add_n(known) if known else None
