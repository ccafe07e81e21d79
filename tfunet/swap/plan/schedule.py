"""The order in which a step runs under a plan, and the memory in use at each point. Pure.

The planner predicts with it, and `tfunet.swap.rewrite.rewrite` makes the graph follow it. With a
swapped, b recomputed and c kept, each row shows when copy 0 or copy 1 of a tensor is on the device:

    actions         op a   out a   op b   op c | op C   in a   again b   op B   op A
    a, swapped      0==============0                    1=======================1
    b, recomputed                  0======0                    1=========1
    c, kept                               0======0
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tfunet.graph.step import ALIASES, IN_PLACE, LOSSES, Trace
from tfunet.swap.plan.placement import swapped_in
from tfunet.swap.plan.plan import Decision

# "op": an op of the trace. "out": a tensor is copied to the host. "in": it is copied back.
# "again": an op of the forward pass is repeated for the backward pass. "leave", "return": a tensor
# leaves for the host and comes back, to make room (`tfunet.swap.arena.detours`).
Kind = Literal["op", "out", "in", "again", "leave", "return"]
Copy = tuple[int, int]


class Action(NamedTuple):
    """One thing that happens in a step.

    Args:
        inputs: Copies of tensors that are read: (tensor, number), where 0 is the one that its op
            made, and 1 the one that the backward pass got back. Detours number theirs on.
    """

    kind: Kind
    index: int  # type: ignore[assignment]  # hides the tuple's own method, which nobody calls
    inputs: tuple[Copy, ...]
    outputs: tuple[Copy, ...]


def schedule(trace: Trace, decisions: Mapping[int, Decision]) -> list[Action]:
    """Return the actions of a step in order.

    `decisions` are for tensors of the forward pass, by index. The others are kept, except inner
    tensors and views of what is given up, which are recomputed.
    """
    actions: list[Action] = []
    restored: set[int] = set()
    given_up = _given_up(trace, decisions)
    swapped = swapped_in(decisions)

    def restore(tensor: int) -> int:
        """Append the actions that bring a tensor back; return the number of the copy to read."""
        decision = given_up.get(tensor)
        if decision is None:
            return 0
        if tensor in restored:
            return 1
        if decision == "swap":
            actions.append(Action(kind="in", index=tensor, inputs=(), outputs=((tensor, 1),)))
            restored.add(tensor)
            return 1
        producer = trace.tensors[tensor].producer
        op = trace.ops[producer]
        inputs = tuple((source, restore(source)) for source in op.inputs)
        outputs = tuple((made, 1) for made in op.outputs)
        actions.append(Action(kind="again", index=producer, inputs=inputs, outputs=outputs))
        restored.update(op.outputs)
        return 1

    for position, op in enumerate(trace.ops):
        inputs, outputs = op.first_copies
        if op.is_backward and not given_up.keys().isdisjoint(op.inputs):
            inputs = tuple((tensor, restore(tensor)) for tensor in op.inputs)
        actions.append(Action("op", position, inputs, outputs))
        if not swapped.isdisjoint(op.outputs):
            actions += [
                Action(kind="out", index=tensor, inputs=((tensor, 0),), outputs=())
                for tensor in op.outputs
                if tensor in swapped
            ]
    return actions


def _given_up(trace: Trace, decisions: Mapping[int, Decision]) -> dict[int, Decision]:
    """Return the tensors that are gone when the backward pass reads them, and how each is brought
    back."""
    given_up: dict[int, Decision] = dict.fromkeys(trace.passing, "recompute")
    for tensor, decision in decisions.items():
        if decision == "keep":
            given_up.pop(tensor, None)
        elif trace.is_of_forward(tensor):
            given_up[tensor] = decision
    for view, tensor in trace.views:
        # A view of a tensor that is given up must not hold it.
        if tensor in given_up and view not in decisions:
            given_up[view] = "recompute"
    return given_up


def is_on_host(copy: Copy, swapped: Container[int]) -> bool:
    """Whether a tensor that leaves is on the host already, since it is swapped."""
    tensor, number = copy
    return number == 0 and tensor in swapped


def memory(
    trace: Trace, actions: Sequence[Action], scratch: Mapping[int, int] | None = None
) -> np.ndarray:
    """Return the bytes of the step's own tensors in use while each action runs, (actions,).

    Memory that was in use before the step (variables, the batch) does not count. `scratch` are the
    bytes that an op needs while it runs and that no tensor of the trace shows.
    """
    scratch = scratch or {}
    in_use = np.zeros(len(actions), np.int64)
    live = 0
    sizes: list[int] = []
    for position, (begun, ended) in enumerate(allocations(trace, actions)):
        for tensor in begun:
            sizes.append(trace.tensors[tensor].num_bytes)
            live += sizes[-1]
        is_op = actions[position].kind in ("op", "again")
        in_use[position] = live + (scratch.get(actions[position].index, 0) if is_op else 0)
        for buffer in ended:
            live -= sizes[buffer]
    return in_use


def held(trace: Trace, actions: Sequence[Action], at: int) -> dict[int, int]:
    """Return the bytes that each tensor holds while an action runs, all its copies together.

    Memory that a tensor takes over counts for the tensor that had it first.
    """
    firsts: list[int] = []
    gone: set[int] = set()
    for position, (begun, ended) in enumerate(allocations(trace, actions)):
        firsts += begun
        if position == at:
            break
        gone.update(ended)
    sizes: dict[int, int] = {}
    for buffer, tensor in enumerate(firsts):
        num_bytes = 0 if buffer in gone else trace.tensors[tensor].num_bytes
        sizes[tensor] = sizes.get(tensor, 0) + num_bytes
    return sizes


def buffers_of(trace: Trace, actions: Sequence[Action]) -> dict[Copy, int]:
    """Return the number of the buffer that holds each copy; see `allocations`."""
    buffers: dict[Copy, int] = {}
    deque(allocations(trace, actions, buffers), maxlen=0)
    return buffers


def allocations(
    trace: Trace, actions: Sequence[Action], buffers: dict[Copy, int] | None = None
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield, for each action, the tensors that get new buffers, and the buffers free after it.

    Buffers are numbered from 0 on as they are allocated. `buffers` is filled with the number of the
    buffer that holds each copy.
    """
    last_use = _last_uses(trace, actions)
    buffers = {} if buffers is None else buffers
    readers: dict[int, int] = {}  # of a buffer: the last action that reads it
    sizes: list[int] = []  # of a buffer; 0 when it is free
    ends: dict[int, set[int]] = {}
    for position, action in enumerate(actions):
        op = trace.ops[action.index] if action.kind in ("op", "again") else None
        begun = []
        for order, copy in enumerate(action.outputs):
            size = trace.tensors[copy[0]].num_bytes
            end = last_use.get(copy, position)
            taken = _taken_over(op, action, order, size, position, buffers, readers, sizes)
            if taken is None:
                taken = len(sizes)
                sizes.append(size)
                begun.append(copy[0])
            buffers[copy] = taken
            readers[taken] = max(readers.get(taken, -1), end)
            ends.setdefault(readers[taken], set()).add(taken)
        ended = [at for at in sorted(ends.pop(position, ())) if readers[at] == position]
        yield begun, ended
        for buffer in ended:
            sizes[buffer] = 0


def _last_uses(trace: Trace, actions: Sequence[Action]) -> dict[Copy, int]:
    last: dict[Copy, int] = {}
    fused: dict[Copy, tuple[Copy, ...]] = {}  # inner tensors, never made, to what they are made of
    for position, action in enumerate(actions):
        for copy in action.inputs:
            last[copy] = position
            if copy in fused:
                # The fused op still reads these when it allocates its output.
                last.update(dict.fromkeys(fused[copy], position))
        for copy in action.outputs:
            last[copy] = position
            if trace.tensors[copy[0]].is_inner:
                fused[copy] = tuple(
                    source for read in action.inputs for source in fused.get(read, (read,))
                )
    return last


def _taken_over(op, action, order, size, position, buffers, readers, sizes):
    """Return the buffer of an input that an output becomes, or None where it gets its own."""
    if op is None or not action.inputs:
        return None
    if op.kind in ALIASES:
        return buffers.get(action.inputs[0])
    if op.kind == "IdentityN":
        return buffers.get(action.inputs[order])
    if op.kind in IN_PLACE or (op.kind in LOSSES and order == 1):
        for copy in action.inputs[: 1 if op.kind in LOSSES else None]:
            buffer = buffers.get(copy)
            if buffer is not None and readers[buffer] == position and sizes[buffer] == size:
                return buffer
    return None
