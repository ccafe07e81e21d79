"""The part of a step that one device does: its stage's passes, and what it exchanges with others.

    arrived --> [after what this stage did before] --> pass --> sent in the round's exchange

All devices of all pipelines trace the same exchanges in the same order. Each exchange begins after
the one before it has ended on this device, and each pass after the one before it.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfunet.backend import Exchange
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.mesh import Mesh
from tfunet.pipeline.network import Network
from tfunet.pipeline.rounds import Message, Round, forward_only, rounds
from tfunet.pipeline.schedules import Action, gpipe, one_f_one_b
from tfunet.pipeline.step import StagedStep
from tfunet.timing.stamps import Note, timed

# What the exchange of every backend can send.
SENT = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
ORDERS = {"gpipe": gpipe, "1f1b": one_f_one_b}
Values = dict[int, tf.Tensor]
Arrived = Mapping[Message, tf.Tensor]


class OwnStage:
    """One stage of a network, on its device.

    Args:
        network: All of it.
        cuts: Where each stage begins, and the end.
        mesh: The pipelines, side by side, and their stages.
        device: This one.
        exchange: `Backend.exchange`.
        schedule, micro_batches: Of a training step.
        alone: Makes the context in which a stage computes, without the other devices.
        note: Is told of each pass of training, as "forward" or "backward".

    Raises ValueError if stages would share a variable, or a tensor cannot be sent.
    """

    def __init__(
        self,
        network: Network,
        cuts: Sequence[int],
        *,
        mesh: Mesh,
        device: int,
        exchange: Exchange,
        schedule: str,
        micro_batches: int,
        alone: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        note: Note | None = None,
    ) -> None:
        staged = StagedStep(network, cuts)
        self._network, self._mesh, self._device = network, mesh, device
        self._alone, self._note = alone, note
        self._after: list[tf.Tensor] = []
        self.number = mesh.stage_of(device)
        self.is_last = self.number == mesh.stages - 1
        self.layers = staged.stages
        self.step = staged.stages[self.number]
        self.micro_batches = micro_batches
        self._traffic = staged.traffic
        self._check_can_cross()
        self._rounds = rounds(ORDERS[schedule](mesh.stages, micro_batches), self._traffic)
        self._in_order = _InOrder(exchange)
        self.group = SampleGroup(mesh=mesh, device=device, exchange=self._in_order)

    @property
    def variables(self) -> list[Any]:
        """The trainable variables of this stage."""
        return self.step.variables

    def train(
        self, images: tf.Tensor, truth: tf.Tensor, loss: Callable[[Any, Any], tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor | None], tf.Tensor | None]:
        """Return the loss, the gradients of this stage's variables, and the last stage's output.

        Both are means over the micro-batches; the gradients over all pipelines, too.
        """
        count = self.micro_batches
        self.step.begin(count)
        self._after = []
        inputs, targets = tf.split(images, count), tf.split(truth, count)
        outputs: list[tf.Tensor] = []

        def act(action: Action, arrived: Arrived) -> dict[Message, tf.Tensor]:
            number = action.micro_batch
            if action.kind == "backward":
                return self._backward(number, arrived)

            def measured(output: Any) -> tf.Tensor:
                outputs.append(output)
                return loss(targets[number], output)

            def forward(values: Values) -> tuple[Values, list[tf.Tensor]]:
                with self._alone():
                    given = self.step.forward(number, values, measured)
                return given, self.step.losses[-1:]

            given, _ = self._timed("forward", forward, self._values(inputs[number], arrived))
            return {one: given[one.tensor] for one in self._traffic.sends(action)}

        self._run(self._rounds, act, images.shape[0] // count)
        with self._alone():
            own_loss = tf.add_n(self.step.losses) if self.step.losses else tf.zeros(())
        value = self.group.sum(tf.cast(own_loss, keras.config.floatx()) / count)
        gradients = [None if one is None else one / count for one in self.step.sums]
        return value, self._averaged(gradients), tf.concat(outputs, 0) if self.is_last else None

    def predict(self, images: tf.Tensor) -> tf.Tensor:
        """Return the output for some samples, on all stages."""
        rows = images.shape[0]
        count = self.micro_batches if rows % self.micro_batches == 0 else 1
        inputs = tf.split(images, count)
        (result,) = self._network.outputs
        outputs: list[tf.Tensor] = []

        def act(action: Action, arrived: Arrived) -> dict[Message, tf.Tensor]:
            with self._alone():
                given = self.step.predict(self._values(inputs[action.micro_batch], arrived))
            if self.is_last:
                outputs.append(given[result])
            return {message: given[message.tensor] for message in self._traffic.sends(action)}

        orders = forward_only(self._mesh.stages, count)
        self._run(rounds(orders, self._traffic), act, rows // count)
        own = tf.concat(outputs, 0) if self.is_last else None
        return self._of_last(own, self._shape(result, rows), self._dtype(result))

    def sum_over_stages(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of a number over the stages of this pipeline, to the same bits on all."""
        return self.group.sum(value)

    def _values(self, images: tf.Tensor, arrived: Arrived) -> Values:
        (image,) = self._network.inputs
        return {image: images, **{message.tensor: value for message, value in arrived.items()}}

    def _timed(self, kind: str, work: Callable[[Any], Any], given: Any) -> Any:
        """Return what a pass makes of `given`; it begins after the one before it has ended."""
        if tf.executing_eagerly():
            return work(given)
        with tf.control_dependencies(self._after):
            made = timed(kind, self._note or (lambda *_: None), work, given)
        self._after = tf.nest.flatten(made)
        return made

    def _backward(self, number: int, arrived: Arrived) -> dict[Message, tf.Tensor]:
        def backward(came: Sequence[tf.Tensor]) -> tuple[Values, list[tf.Tensor]]:
            gradients: dict[int, list[tf.Tensor]] = {}
            for message, value in zip(arrived, came, strict=True):
                gradients.setdefault(message.tensor, []).append(value)
            with self._alone():
                made = self.step.backward(
                    number, {at: tf.add_n(terms) for at, terms in gradients.items()}
                )
            known = {at: one for at, one in made.items() if one is not None}
            return known, [one for one in self.step.sums if one is not None]

        made, _ = self._timed("backward", backward, list(arrived.values()))
        action = Action("backward", self.number, number)
        # This stage may read a tensor on which its loss does not depend.
        return {
            one: made[one.tensor]
            if one.tensor in made
            else tf.zeros(self._shape(one.tensor, self._rows), self._dtype(one.tensor))
            for one in self._traffic.sends(action)
        }

    def _run(
        self,
        plan: Sequence[Round],
        act: Callable[[Action, Arrived], dict[Message, tf.Tensor]],
        rows: int,
    ) -> None:
        """Make the passes of this stage with micro-batches of so many rows, and exchange."""
        self._rows = rows
        arrived: dict[Message, tf.Tensor] = {}
        for turn in plan:
            sent: dict[Message, tf.Tensor] = {}
            for action in turn.actions[self.number]:
                needed = self._traffic.needs(action)
                sent |= act(action, {message: arrived.pop(message) for message in needed})
            if turn.messages:
                arrived |= self._exchanged(turn.messages, sent, rows)

    def _exchanged(
        self, messages: Sequence[Message], sent: Mapping[Message, tf.Tensor], rows: int
    ) -> dict[Message, tf.Tensor]:
        """Send messages, one tensor for each receiver and type, and return those that come."""
        came: dict[Message, tf.Tensor] = {}
        first = self._mesh.members(self._device)[0]
        for dtype in sorted(
            {self._dtype(one.tensor) for one in messages}, key=lambda one: one.name
        ):
            alike = [one for one in messages if self._dtype(one.tensor) == dtype]
            out: dict[int, list[tf.Tensor]] = {}
            into: dict[int, list[Message]] = {}
            for message in alike:
                if message.sender == self.number:
                    value = self._checked(sent[message], message, rows)
                    out.setdefault(first + message.receiver, []).append(tf.reshape(value, [-1]))
                if message.receiver == self.number:
                    into.setdefault(first + message.sender, []).append(message)
            sizes = {
                other: [
                    tf.TensorShape(self._shape(one.tensor, rows)).num_elements() for one in all_
                ]
                for other, all_ in into.items()
            }
            flat = self.group.swap(
                {other: tf.concat(parts, 0) for other, parts in out.items()},
                {other: [sum(lengths)] for other, lengths in sizes.items()},
                dtype,
            )
            for other, expected in into.items():
                parts = tf.split(flat[other], sizes[other])
                for message, part in zip(expected, parts, strict=True):
                    came[message] = tf.reshape(part, self._shape(message.tensor, rows))
        return came

    def _checked(self, value: tf.Tensor, message: Message, rows: int) -> tf.Tensor:
        expected = self._shape(message.tensor, rows)
        if tuple(value.shape) != expected or value.dtype != self._dtype(message.tensor):
            raise ValueError(
                f"The tensor {self._network.tensors[message.tensor].name!r} crosses from stage "
                f"{message.sender + 1} to stage {message.receiver + 1} with the shape "
                f"{tuple(value.shape)} and type {value.dtype.name}, and the model says {expected} "
                f"and {self._dtype(message.tensor).name}. Cut elsewhere, with balance."
            )
        return value

    def _check_can_cross(self) -> None:
        for at in self._traffic.readers:
            tensor = self._network.tensors[at]
            if None in tensor.shape[1:] or self._dtype(at) not in SENT:
                raise ValueError(
                    f"The tensor {tensor.name!r} would cross from stage "
                    f"{self._traffic.makers[at] + 1} to another, and has the shape "
                    f"{tuple(tensor.shape)} and type {self._dtype(at).name}. What crosses must "
                    "have a known shape, and numbers of 16 bits or more. Cut elsewhere, with "
                    "balance."
                )

    def _shape(self, tensor: int, rows: int) -> tuple[int, ...]:
        return (rows, *self._network.tensors[tensor].shape[1:])

    def _dtype(self, tensor: int) -> tf.DType:
        return tf.as_dtype(self._network.tensors[tensor].dtype)

    def _of_last(self, own: tf.Tensor | None, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        """Return what the last stage has, on all stages."""
        members = self._mesh.members(self._device)
        if own is not None:
            self.group.swap(dict.fromkeys(members[:-1], own), {}, own.dtype)
            return own
        return self.group.swap({}, {members[-1]: shape}, dtype)[members[-1]]

    def _averaged(self, gradients: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
        """Return the means over the pipelines of the gradients of this stage."""
        if self._mesh.groups == 1:
            return list(gradients)
        known = [one for one in gradients if one is not None]
        # In one exchange, since stages have different numbers of variables.
        dtype = tf.as_dtype(keras.config.floatx())
        flat = [tf.reshape(tf.cast(one, dtype), [-1]) for one in known]
        all_ = self.group.gathered(
            tf.concat([*flat, tf.zeros(1, dtype)], 0), self._mesh.twins(self._device)
        )
        means = tf.split(tf.reduce_mean(all_, axis=0), [*(one.shape[0] for one in flat), 1])
        mean_of = iter(means)
        return [
            None if one is None else tf.cast(tf.reshape(next(mean_of), one.shape), one.dtype)
            for one in gradients
        ]


class _InOrder:
    """Exchanges one after the other: some libraries mix up several that are under way."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._graph: Any = None
        self._after: list[tf.Operation] = []

    def __call__(
        self, sent: Mapping[int, tf.Tensor], received: Mapping[int, Sequence[int]], dtype: tf.DType
    ) -> dict[int, tf.Tensor]:
        if tf.executing_eagerly():
            return self._exchange(sent, received, dtype)
        graph = tf.compat.v1.get_default_graph()
        after = self._after if graph is self._graph else []
        before = len(graph.get_operations())
        with tf.control_dependencies(after):
            came = self._exchange(sent, received, dtype)
        self._graph, self._after = graph, graph.get_operations()[before:] or after
        return came
