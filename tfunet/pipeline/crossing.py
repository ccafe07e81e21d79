"""What crosses from stage to stage of a pipeline: messages of passes, and results."""

from collections.abc import Mapping, Sequence
from typing import final

import tensorflow as tf

from tfunet.parallel.group import SampleGroup
from tfunet.pipeline.network import NodeGraph
from tfunet.pipeline.rounds import ChunkTraffic, Message

# What the exchange of every backend can send.
SENT = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


@final
class Crossing:
    """Sends and receives for one device.

    Args:
        network: All of it; where samples are split, that of the device's part.
        traffic: Traffic of its chunks.
        homes: The stage of each chunk.
        group: Group of the device.

    Raises ValueError if a tensor cannot be sent.
    """

    def __init__(
        self, network: NodeGraph, traffic: ChunkTraffic, homes: Sequence[int], group: SampleGroup
    ) -> None:
        self._network, self._traffic, self._homes = network, traffic, homes
        self._group, self._column = group, group.mesh.column(group.device)
        self._number = group.mesh.stage_of(group.device)
        self._check_can_cross()

    def exchanged(
        self, messages: Sequence[Message], sent: Mapping[Message, tf.Tensor], rows: int
    ) -> dict[Message, tf.Tensor]:
        """Send messages, one tensor for each receiver and type, and return those that come."""
        came: dict[Message, tf.Tensor] = {}
        for dtype in sorted(
            {self.dtype(message.tensor) for message in messages}, key=lambda dtype: dtype.name
        ):
            alike = [message for message in messages if self.dtype(message.tensor) == dtype]
            out: dict[int, list[tf.Tensor]] = {}
            into: dict[int, list[Message]] = {}
            for message in alike:
                sender, receiver = self._homes[message.sender], self._homes[message.receiver]
                if sender == self._number:
                    value = self._checked(sent[message], message, rows)
                    out.setdefault(self._column[receiver], []).append(tf.reshape(value, [-1]))
                if receiver == self._number:
                    into.setdefault(self._column[sender], []).append(message)
            sizes = {
                other: [
                    tf.TensorShape(self.shape(message.tensor, rows)).num_elements()
                    for message in all_
                ]
                for other, all_ in into.items()
            }
            flat = self._group.swap(
                {other: tf.concat(parts, 0) for other, parts in out.items()},
                {other: [sum(lengths)] for other, lengths in sizes.items()},
                dtype,
            )
            for other, expected in into.items():
                parts = tf.split(flat[other], sizes[other])
                for message, part in zip(expected, parts, strict=True):
                    came[message] = tf.reshape(part, self.shape(message.tensor, rows))
        return came

    def taken(self, messages: Sequence[Message], earlier: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return tensors that come once the readers of this stage's messages have made the passes
        `earlier`. An exchange within a process waits for nobody by itself.
        """
        pairs = [
            (self._homes[message.sender], self._homes[message.receiver]) for message in messages
        ]
        with tf.control_dependencies(earlier):
            token = tf.zeros([1])
        came = self._group.swap(
            {self._column[sender]: token for sender, home in pairs if home == self._number},
            {self._column[home]: [1] for sender, home in pairs if sender == self._number},
            token.dtype,
        )
        return list(came.values())

    def of_last(self, own: tf.Tensor | None, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        """Return on all stages what the last one has; `own` is None on others."""
        last = self._column[self._homes[-1]]
        if own is not None:
            others = [other for other in self._column if other != last]
            self._group.swap(dict.fromkeys(others, own), {}, own.dtype)
            return own
        return self._group.swap({}, {last: shape}, dtype)[last]

    def shape(self, tensor: int, rows: int) -> tuple[int, ...]:
        """Return the shape of a tensor of so many samples."""
        return (rows, *self._network.tensors[tensor].shape[1:])

    def dtype(self, tensor: int) -> tf.DType:
        """Return the type of a tensor."""
        return tf.as_dtype(self._network.tensors[tensor].dtype)

    def _checked(self, value: tf.Tensor, message: Message, rows: int) -> tf.Tensor:
        expected = self.shape(message.tensor, rows)
        if tuple(value.shape) != expected or value.dtype != self.dtype(message.tensor):
            raise ValueError(
                f"The tensor {self._network.tensors[message.tensor].name!r} crosses from stage "
                f"{self._homes[message.sender] + 1} to stage {self._homes[message.receiver] + 1} "
                f"with the shape {tuple(value.shape)} and type {value.dtype.name}, and the model "
                f"says {expected} and {self.dtype(message.tensor).name}. Cut elsewhere, with "
                "balance."
            )
        return value

    def _check_can_cross(self) -> None:
        for at, readers in self._traffic.readers.items():
            tensor, home = self._network.tensors[at], self._homes[self._traffic.makers[at]]
            if all(self._homes[reader] == home for reader in readers):
                continue
            what = f"The tensor {tensor.name!r} would cross from stage {home + 1} to another, and"
            if None in tensor.shape[1:]:
                raise ValueError(
                    f"{what} its shape {tuple(tensor.shape)} is not known. Build the model for "
                    "images of one size, or cut elsewhere, with balance."
                )
            if self.dtype(at) not in SENT:
                raise ValueError(
                    f"{what} has the type {self.dtype(at).name}. What crosses must be numbers of "
                    "16 bits or more. Cut elsewhere, with balance."
                )
