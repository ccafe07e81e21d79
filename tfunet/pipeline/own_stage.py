"""The part of a step that one device does: its stage's passes, and what it exchanges with others.

    arrived --> [after what this stage did before] --> pass --> sent in the round's exchange

All devices of all pipelines trace the same rounds in the same order. Each of their exchanges begins
after the one before it has ended on this device. Each pass begins after the pass and the exchange
before it: a device with one thread would otherwise make all passes that it can make before it sends
any of their results, and the next stage would wait. With schedule "v" a device has two chunks of
the network, and what goes from one to the other stays on it.

Where samples are split, a pipeline is one device of each stage, all with the same part. Within a
pass the devices of a stage exchange borders and statistics among themselves (`part_network`).
"""

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfunet.backend import Exchange
from tfunet.learning.averaging import Switch, average_present
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.mesh import Mesh
from tfunet.pipeline.chunk import chunks_of, traffic_of
from tfunet.pipeline.crossing import Crossing
from tfunet.pipeline.in_order import InOrder
from tfunet.pipeline.network import NodeGraph
from tfunet.pipeline.rounds import Message, Round, rounds
from tfunet.pipeline.schedules import StagePass, forward_half, homes, waiting
from tfunet.pipeline.simulation import Work, simulate, training_orders
from tfunet.timing.stamps import Note, timed

Values = dict[int, tf.Tensor]
Arrived = Mapping[Message, tf.Tensor]


class OwnStage:
    """One stage of a network, on its device.

    Args:
        network: All of it; where samples are split, that of the device's part.
        cuts: Where each chunk begins, and the end; see `schedules.homes`.
        mesh: The pipelines, side by side, and their stages.
        device: This one.
        exchange: `Backend.exchange`.
        schedule, micro_batches: How a training step runs.
        recompute: Run forward passes of micro-batches that wait again, instead of keeping them.
        deferred: See `chunks_of`.
        in_order: Exchange one after the other, and make no pass meanwhile: some libraries mix up
            several that are under way. Not needed where an exchange is only an edge of the graph.
        alone: Makes the context in which a stage computes, without the other devices.
        note: Is told of each pass of training, as "forward" or "backward".

    Attributes:
        average: Returns the means of this stage's gradients over all devices that have it.
        orders: What each stage does in training.
        all_chunks: The chunks of all stages; `chunks` has this one's, by number.

    Raises ValueError if stages would share a variable, or a tensor cannot be sent.
    """

    def __init__(
        self,
        network: NodeGraph,
        cuts: Sequence[int],
        *,
        mesh: Mesh,
        device: int,
        exchange: Exchange,
        schedule: str,
        micro_batches: int,
        recompute: bool = False,
        deferred: bool = False,
        in_order: bool = True,
        alone: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        note: Note | None = None,
    ) -> None:
        self._network, self._mesh, self._device = network, mesh, device
        self._alone, self._note = alone, note
        self._after: list[tf.Tensor] = []
        self._column = mesh.column(device)
        self.number = mesh.stage_of(device)
        self.homes = homes(schedule, mesh.stages)
        self.is_last = self.number == self.homes[-1]
        self.all_chunks = chunks_of(network, cuts, deferred=deferred)
        self.chunks = {
            number: chunk
            for number, (chunk, home) in enumerate(zip(self.all_chunks, self.homes, strict=True))
            if home == self.number
        }
        self.micro_batches = micro_batches
        self._traffic = traffic_of(network, cuts)
        self.orders = training_orders(schedule, mesh.stages, micro_batches, self._traffic.crossing)
        self._recomputed = waiting(self.orders) if recompute else {}
        self._rounds = rounds(self.orders, self._traffic, self.homes)
        self._in_order = InOrder(exchange) if in_order else None
        self.group = SampleGroup(mesh=mesh, device=device, exchange=self._in_order or exchange)
        self.crossing = Crossing(network, self._traffic, self.homes, self.group)
        self.average = Switch(self._means)

    @property
    def variables(self) -> list[Any]:
        """The trainable variables of this stage."""
        return [variable for chunk in self.chunks.values() for variable in chunk.variables]

    def train(
        self, images: tf.Tensor, truth: tf.Tensor, loss: Callable[[Any, Any], tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor | None], tf.Tensor | None]:
        """Return the loss, the gradients of this stage's variables, and the last stage's output.

        Both are means over the micro-batches; the gradients over all pipelines and parts, too.
        """
        value, gradients, outputs = self.passes(images, truth, loss)
        output = tf.concat(outputs, 0) if self.is_last else None
        return value, self.averaged(gradients), output

    def averaged(self, gradients: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
        """Return the means of this stage's gradients over all pipelines and parts."""
        return average_present(gradients, self.average)

    def passes(
        self, images: tf.Tensor, truth: Any, loss: Callable[[Any, Any], tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor | None], list[tf.Tensor]]:
        """Return the loss, this device's gradients, and the last stage's output of each
        micro-batch.

        `truth` has tensors in any structure, which are cut into micro-batches. Loss and gradients
        are means over these.
        """
        count = self.micro_batches
        for number, chunk in self.chunks.items():
            chunk.begin(count, self._recomputed.get(number, ()))
        self._after = []
        inputs, targets = _cut(images, count), _cut(truth, count)
        outputs: dict[int, tf.Tensor] = {}

        def act(action: StagePass, arrived: Arrived) -> dict[Message, tf.Tensor]:
            number, chunk = action.micro_batch, self.chunks[action.chunk]
            if action.kind == "backward":
                return self._backward(action, arrived)

            def measured(output: Any) -> tf.Tensor:
                outputs.setdefault(number, output)  # It may be computed again.
                return loss(targets[number], output)

            def forward(values: Values) -> tuple[Values, list[tf.Tensor]]:
                with self._alone():
                    given = chunk.forward(number, values, measured)
                return given, chunk.losses[-1:]

            given, _ = self._timed("forward", forward, self._values(inputs[number], arrived))
            return {message: given[message.tensor] for message in self._traffic.sends(action)}

        self._run(self._rounds, act, images.shape[0] // count)
        with self._alone():
            for chunk in self.chunks.values():
                chunk.end()
            losses = [loss_value for chunk in self.chunks.values() for loss_value in chunk.losses]
            own_loss = tf.add_n(losses) if losses else tf.zeros(())
        value = self.sum_over_stages(tf.cast(own_loss, keras.config.floatx()) / count)
        sums = [gradient_sum for chunk in self.chunks.values() for gradient_sum in chunk.sums]
        gradients = [
            None if gradient_sum is None else gradient_sum / count for gradient_sum in sums
        ]
        return value, gradients, list(outputs.values())

    def predict(self, images: tf.Tensor) -> tf.Tensor:
        """Return the output for some samples, on all stages."""
        (result,) = self._network.outputs
        own = self.evaluate({"image": images}, lambda _, output: output)
        shape = self.crossing.shape(result, images.shape[0])
        return self.crossing.of_last(
            own if self.is_last else None, shape, self.crossing.dtype(result)
        )

    def evaluate(
        self,
        batch: dict[str, tf.Tensor],
        use: Callable[..., Any],
        others: Callable[[], Any] = lambda: (),
    ) -> Any:
        """Return in the last stage what `use(micro_batch, output)` makes of each micro-batch, one
        after the other; in others what `others` makes.

        They make tensors (samples, ...) in any structure. A batch that cannot be cut as in training
        is one micro-batch.
        """
        rows = batch["image"].shape[0]
        count = self.micro_batches if rows % self.micro_batches == 0 else 1
        parts = _cut(batch, count)
        (result,) = self._network.outputs
        used: list[Any] = []
        self._after = []

        def act(action: StagePass, arrived: Arrived) -> dict[Message, tf.Tensor]:
            part, chunk = parts[action.micro_batch], self.chunks[action.chunk]
            with tf.control_dependencies(self._ended()):
                begin = tf.no_op()
            with tf.control_dependencies([begin]), self._alone():
                given = chunk.predict(self._values(part["image"], arrived))
                own = [use(part, given[result])] if chunk.results else []
            used.extend(own)
            self._after = tf.nest.flatten((given, own))
            return {message: given[message.tensor] for message in self._traffic.sends(action)}

        orders = forward_half(self.orders, count)
        plan = rounds(orders, self._traffic, self.homes)
        self._run(plan, act, rows // count, waits=True)
        if self.is_last:
            return tf.nest.map_structure(lambda *each: tf.concat(each, 0), *used)
        # Or nobody would wait for what this stage sends.
        with tf.control_dependencies(self._ended()):
            return tf.nest.map_structure(tf.identity, others())

    def sum_over_stages(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of a number over the stages of this pipeline, to the same bits on all."""
        return self.group.sum(value, self._column)

    def _values(self, images: tf.Tensor, arrived: Arrived) -> Values:
        (image,) = self._network.inputs
        return {image: images, **{message.tensor: value for message, value in arrived.items()}}

    def _timed(self, kind: str, work: Callable[[Any], Any], given: Any) -> Any:
        """Return what a pass makes of `given`; it begins after what came before it has ended."""
        if tf.executing_eagerly():
            return work(given)
        with tf.control_dependencies(self._ended()):
            made = timed(kind, self._note or (lambda *_: None), work, given)
        self._after = tf.nest.flatten(made)
        return made

    def _ended(self) -> list[Any]:
        """Return what ends before the next pass: the pass and the exchange before it."""
        return [*self._after, *(self._in_order.last() if self._in_order is not None else [])]

    def _backward(self, action: StagePass, arrived: Arrived) -> dict[Message, tf.Tensor]:
        chunk = self.chunks[action.chunk]

        def backward(came: Sequence[tf.Tensor]) -> tuple[Values, list[tf.Tensor]]:
            gradients: dict[int, list[tf.Tensor]] = {}
            for message, value in zip(arrived, came, strict=True):
                gradients.setdefault(message.tensor, []).append(value)
            with self._alone():
                made = chunk.backward(
                    action.micro_batch, {at: tf.add_n(terms) for at, terms in gradients.items()}
                )
            known = {at: tensor for at, tensor in made.items() if tensor is not None}
            return known, [gradient_sum for gradient_sum in chunk.sums if gradient_sum is not None]

        made, _ = self._timed("backward", backward, list(arrived.values()))
        # This stage may read a tensor on which its loss does not depend.
        return {
            message: made[message.tensor]
            if message.tensor in made
            else tf.zeros(
                self.crossing.shape(message.tensor, self._rows), self.crossing.dtype(message.tensor)
            )
            for message in self._traffic.sends(action)
        }

    def _run(
        self,
        plan: Sequence[Round],
        act: Callable[[StagePass, Arrived], dict[Message, tf.Tensor]],
        rows: int,
        *,
        waits: bool = False,
    ) -> None:
        """Make the passes of this stage with micro-batches of so many rows, and exchange.

        With `waits` a stage takes messages only after its passes of earlier rounds. Where there are
        no backward passes, nothing else holds back the stages before it.
        """
        self._rows = rows
        arrived: dict[Message, tf.Tensor] = {}
        for turn in plan:
            sent: dict[Message, tf.Tensor] = {}
            earlier = self._after if waits else []
            for action in turn.actions[self.number]:
                needed = self._traffic.needs(action)
                made = act(action, {message: arrived.pop(message) for message in needed})
                for message, value in made.items():
                    stays = self.homes[message.receiver] == self.number
                    (arrived if stays else sent)[message] = value
            if turn.messages:
                with tf.control_dependencies(earlier):
                    arrived |= self.crossing.exchanged(turn.messages, sent, rows)
                if waits and self._in_order is None:
                    self._after = [*self._after, *self.crossing.taken(turn.messages, earlier)]

    def bubble_seconds(self, seconds: Sequence[Sequence[float]]) -> float:
        """Return how long the slowest stage waits in a step in which messages take no time.

        `seconds` are those of the passes of each device, in its order.
        """
        times: dict[tuple[str, int], list[float]] = {}
        for stage, order in enumerate(self.orders):
            # A stage is as slow as the slowest device that has it.
            slowest = map(
                max, zip(*(seconds[holder] for holder in self._mesh.holders(stage)), strict=True)
            )
            for action, duration in zip(order, slowest, strict=True):
                times.setdefault((action.kind, action.chunk), []).append(duration)
        chunks = range(len(self.homes))
        work = Work(
            forward=[statistics.median(times["forward", chunk]) for chunk in chunks],
            backward=[statistics.median(times["backward", chunk]) for chunk in chunks],
            devices=self.homes,
            messages=dict.fromkeys(self._traffic.crossing, 0),
            kept_bytes=[0] * len(self.homes),
        )
        step = simulate(self.orders, work)
        return step.step_seconds - max(step.busy_seconds)

    def _means(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the means over all devices that have this stage.

        Each part of a sample has the gradient of the loss of the whole sample, as without stages.
        """
        holders = self._mesh.holders(self.number)
        if len(holders) == 1:
            return list(gradients)
        # In one exchange, since stages have different numbers of variables.
        dtype = tf.as_dtype(keras.config.floatx())
        flat = [tf.reshape(tf.cast(gradient, dtype), [-1]) for gradient in gradients]
        all_ = self.group.gathered(tf.concat([*flat, tf.zeros(1, dtype)], 0), holders)
        *means, _ = tf.split(
            tf.reduce_mean(all_, axis=0), [*(gradient.shape[0] for gradient in flat), 1]
        )
        return [
            tf.cast(tf.reshape(mean, gradient.shape), gradient.dtype)
            for mean, gradient in zip(means, gradients, strict=True)
        ]


def _cut(values: Any, count: int) -> list[Any]:
    """Return the equal parts of a batch of tensors in any structure."""
    # Not tf.split: TensorFlow would do to the whole batch at once what is done first to each of
    # its parts, and keep the result for the whole step.
    flat = [
        [batch[at * rows : (at + 1) * rows] for at in range(count)]
        for batch in tf.nest.flatten(values)
        for rows in [batch.shape[0] // count]
    ]
    return [tf.nest.pack_sequence_as(values, list(parts)) for parts in zip(*flat, strict=True)]
