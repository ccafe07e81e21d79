"""What a device holds of the network that it trains: all of it, or one stage of a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import keras
import tensorflow as tf

from tfunet.graph import reader
from tfunet.graph.shared_rows import largest_message, with_shared_rows
from tfunet.graph.step import Trace
from tfunet.state.shared_slot import are_shared
from tfunet.swap.arena import device_memory
from tfunet.swap.arena.arena import Memory
from tfunet.swap.plan.diagnosis import SPLITTING
from tfunet.swap.plan.plan import Plan

Read = tuple[Trace, list[tf.Tensor]]


class HeldPart(Protocol):
    """What a device holds of a network."""

    def sizes(self) -> list[int]:
        """Return the bytes of each variable on the device."""

    def read(self, ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> Read:
        """Return what `reader.read` does of a step."""

    def left(self, memory: Memory, trace: Trace) -> Memory:
        """Return a device's memory before a step without what the trace cannot tell."""

    def advised(self, plan: Plan) -> Plan:
        """Return the plan with the advice that can be followed."""


@final
@dataclass(frozen=True)
class WholeNetwork:
    """A model, which so many devices of this process have."""

    model: keras.Model
    num_devices: int = 1

    def sizes(self) -> list[int]:
        return device_memory.variable_bytes(self.model, self.num_devices)

    def read(self, ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> Read:
        trace, handles = reader.read(ops, results)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer and are_shared(optimizer.variables):  # Others send whole weights.
            trace = with_shared_rows(trace, ops)
        return trace, handles

    def left(self, memory: Memory, trace: Trace) -> Memory:
        return memory

    def advised(self, plan: Plan) -> Plan:
        return plan


@final
@dataclass(frozen=True)
class StageOfModel:
    """Some variables of a model. In a step, passes of several micro-batches take turns."""

    variables: Sequence[Any]

    def sizes(self) -> list[int]:
        return device_memory.sizes(self.variables)

    def read(self, ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> Read:
        trace, handles = reader.read(ops, results, takes_turns=True)
        return with_shared_rows(trace, ops), handles

    def left(self, memory: Memory, trace: Trace) -> Memory:
        # A message may come earlier than the plan has it: another process sends it.
        return replace(memory, more_bytes=memory.more_bytes + largest_message(trace))

    def advised(self, plan: Plan) -> Plan:
        others = (way for way in plan.advice if way != SPLITTING)
        return replace(plan, advice=("more micro_batches", *others)) if plan.advice else plan
