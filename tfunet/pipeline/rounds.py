"""When stages work and when they exchange: rounds, the same list for all of them. Pure.

In a round each stage makes the passes for which it has everything, one after the other until one
of them sends something; then all exchange. Two stages, three micro-batches, `1f1b` (digits are
forward passes, letters backward ones, bars exchanges):

    stage 1   0 | 1 |   | a2 | b  | c
    stage 2     | 0 | a | 1b | 2c |
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfunet.pipeline.schedules import Orders, Pass, StagePass


class Message(NamedTuple):
    """A tensor of a micro-batch, or its gradient on the way back."""

    kind: Pass
    micro_batch: int
    tensor: int
    sender: int
    receiver: int


@dataclass(frozen=True, kw_only=True)
class Round:
    """What each stage does, and what they send each other after it."""

    actions: tuple[tuple[StagePass, ...], ...]
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class ChunkTraffic:
    """Which chunk makes and reads each tensor that crosses from one to another.

    A chunk is a stage, or with schedule "v" half of what a device has.

    Args:
        makers: The chunk of each tensor.
        readers: The later chunks that read it.
        trained: Tensors that have a gradient.
    """

    makers: Mapping[int, int]
    readers: Mapping[int, Sequence[int]]
    trained: Collection[int]

    @property
    def crossing(self) -> list[tuple[int, int]]:
        """The maker and a reader of each tensor."""
        return [
            (self.makers[at], reader) for at, readers in self.readers.items() for reader in readers
        ]

    def needs(self, action: StagePass) -> list[Message]:
        """Return the messages that a chunk must have before a pass."""
        kind, chunk, number = action
        if kind == "forward":
            return [
                Message("forward", number, at, self.makers[at], chunk)
                for at, readers in self.readers.items()
                if chunk in readers
            ]
        return [
            Message("backward", number, at, reader, chunk)
            for at, readers in self.readers.items()
            if self.makers[at] == chunk and at in self.trained
            for reader in readers
        ]

    def sends(self, action: StagePass) -> list[Message]:
        """Return the messages that a chunk sends after a pass."""
        kind, chunk, number = action
        if kind == "forward":
            return [
                Message("forward", number, at, chunk, reader)
                for at, readers in self.readers.items()
                if self.makers[at] == chunk
                for reader in readers
            ]
        return [
            Message("backward", number, at, chunk, self.makers[at])
            for at, readers in self.readers.items()
            if chunk in readers and at in self.trained
        ]


def rounds(
    orders: Orders, traffic: ChunkTraffic, homes: Sequence[int] | None = None
) -> list[Round]:
    """Return the rounds of a step.

    Args:
        homes: The device of each chunk, whose messages stay on it; by default one chunk a device.

    Raises ValueError if the devices would wait for each other for ever.
    """
    device_of: Sequence[int] = range(len(orders)) if homes is None else homes
    left = [list(order) for order in orders]
    arrived: set[Message] = set()
    made: list[Round] = []
    actions: list[list[StagePass]] = [[] for _ in orders]
    while any(left):
        turn = [
            order[0] if order and arrived.issuperset(traffic.needs(order[0])) else None
            for order in left
        ]
        if not any(turn):
            raise ValueError("The devices would wait for each other for ever in these orders.")
        messages: list[Message] = []
        for device, action in enumerate(turn):
            if action is not None:
                left[device].pop(0)
                actions[device].append(action)
                sent = traffic.sends(action)
                arrived.update(sent)
                messages += [message for message in sent if device_of[message.receiver] != device]
        if messages:
            made.append(_round(actions, messages))
            actions = [[] for _ in orders]
    if any(actions):
        made.append(_round(actions, []))
    return made


def _round(actions: Sequence[Sequence[StagePass]], messages: Sequence[Message]) -> Round:
    return Round(actions=tuple(map(tuple, actions)), messages=tuple(messages))
