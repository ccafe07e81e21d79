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

from tfunet.pipeline.schedules import Action, Orders, Pass


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

    actions: tuple[tuple[Action, ...], ...]
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Which stage makes and reads each tensor that crosses from one to another.

    Args:
        makers: The stage of each tensor.
        readers: The later stages that read it.
        trained: Tensors that have a gradient.
    """

    makers: Mapping[int, int]
    readers: Mapping[int, Sequence[int]]
    trained: Collection[int]

    def needs(self, action: Action) -> list[Message]:
        """Return the messages that a stage must have before a pass."""
        kind, stage, number = action
        if kind == "forward":
            return [
                Message("forward", number, at, self.makers[at], stage)
                for at, readers in self.readers.items()
                if stage in readers
            ]
        return [
            Message("backward", number, at, reader, stage)
            for at, readers in self.readers.items()
            if self.makers[at] == stage and at in self.trained
            for reader in readers
        ]

    def sends(self, action: Action) -> list[Message]:
        """Return the messages that a stage sends after a pass."""
        kind, stage, number = action
        if kind == "forward":
            return [
                Message("forward", number, at, stage, reader)
                for at, readers in self.readers.items()
                if self.makers[at] == stage
                for reader in readers
            ]
        return [
            Message("backward", number, at, stage, self.makers[at])
            for at, readers in self.readers.items()
            if stage in readers and at in self.trained
        ]


def rounds(orders: Orders, traffic: Traffic) -> list[Round]:
    """Return the rounds of a step, one stage a device.

    Raises ValueError if the stages would wait for each other for ever.
    """
    left = [list(order) for order in orders]
    arrived: set[Message] = set()
    made: list[Round] = []
    actions: list[list[Action]] = [[] for _ in orders]
    while any(left):
        turn = [
            order[0] if order and arrived.issuperset(traffic.needs(order[0])) else None
            for order in left
        ]
        if not any(turn):
            raise ValueError("The devices would wait for each other for ever in these orders.")
        messages: list[Message] = []
        for stage, action in enumerate(turn):
            if action is not None:
                left[stage].pop(0)
                actions[stage].append(action)
                messages += traffic.sends(action)
        if messages:
            made.append(_round(actions, messages))
            arrived.update(messages)
            actions = [[] for _ in orders]
    if any(actions):
        made.append(_round(actions, []))
    return made


def forward_only(num_stages: int, micro_batches: int) -> Orders:
    """Return the orders of an evaluation: forward passes only."""
    return tuple(
        tuple(Action("forward", stage, number) for number in range(micro_batches))
        for stage in range(num_stages)
    )


def _round(actions: Sequence[Sequence[Action]], messages: Sequence[Message]) -> Round:
    return Round(actions=tuple(map(tuple, actions)), messages=tuple(messages))
