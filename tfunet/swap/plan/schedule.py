"""The order in which a step runs under a plan, and the memory in use at each point. Pure.

The planner predicts with it, and `tfunet.swap.rewrite.rewrite` makes the graph follow it.
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tfunet.graph.step import ALIASES, IN_PLACE, LOSSES, Trace, root
from tfunet.swap.plan.plan import Decision

# "op": an op of the trace. "out": a tensor is copied to the host. "in": it is copied back.
# "again": an op of the forward pass is repeated for the backward pass. "leave", "return": a tensor
# leaves for the host and comes back, to make room (`tfunet.swap.arena.detours`).
Kind = Literal["op", "out", "in", "again", "leave", "return"]
Copy = tuple[int, int]


class Action(NamedTuple):
    """One thing that happens in a step.

    Args:
        kind: What.
        index: Of the op, or of the tensor that is copied.
        inputs: Copies of tensors that are read: (tensor, number), where 0 is the one that its op
            made, 1 the one that the backward pass got back, and so on if it gets back several.
        outputs: Copies that come into being.
    """

    kind: Kind
    index: int  # type: ignore[assignment]  # hides the tuple's own method, which nobody calls
    inputs: tuple[Copy, ...]
    outputs: tuple[Copy, ...]


def schedule(
    trace: Trace,
    decisions: Mapping[int, Decision],
    copies: Mapping[int, Mapping[int, int]] | None = None,
) -> list[Action]:
    """Return the actions of a step in order.

    Args:
        trace: The step.
        decisions: For tensors of the forward pass, by index; what is not named is kept. A tensor
            that a repeated op reads, and that is named nowhere, is repeated itself where it can
            be, and kept where not.
        copies: For swapped tensors that come back several times, by index: the number of the copy
            that each op of the backward pass reads, by its index; see `Action`.
    """
    actions: list[Action] = []
    restored: set[Copy] = set()
    given_up = _given_up(trace, decisions)
    swapped = {one for one, what in decisions.items() if what == "swap"}

    def restore(tensor: int, reader: int) -> int:
        """Append what brings a tensor back for an op; return the number of the copy it reads."""
        decision = given_up.get(tensor)
        if decision is None:
            return 0
        # A view is one of the copy that the op reads of the tensor itself.
        number = copies.get(root(trace, tensor), {}).get(reader, 1) if copies else 1
        if number == 0 or (tensor, number) in restored:
            return number
        if decision == "swap":
            actions.append(Action(kind="in", index=tensor, inputs=(), outputs=((tensor, number),)))
            restored.add((tensor, number))
            return number
        producer = trace.tensors[tensor].producer
        op = trace.ops[producer]
        inputs = tuple((one, restore(one, reader)) for one in op.inputs)
        outputs = tuple((one, number) for one in op.outputs)
        actions.append(Action(kind="again", index=producer, inputs=inputs, outputs=outputs))
        restored.update(outputs)
        return number

    for position, op in enumerate(trace.ops):
        inputs, outputs = op.first_copies
        if op.is_backward and not given_up.keys().isdisjoint(op.inputs):
            inputs = tuple((one, restore(one, position)) for one in op.inputs)
        actions.append(Action("op", position, inputs, outputs))
        if not swapped.isdisjoint(op.outputs):
            actions += [
                Action(kind="out", index=one, inputs=((one, 0),), outputs=())
                for one in op.outputs
                if one in swapped
            ]
    return actions


def _given_up(trace: Trace, decisions: Mapping[int, Decision]) -> dict[int, Decision]:
    """Return the tensors that are not there when the backward pass reads them, and what brings
    each of them back."""
    found: dict[int, Decision] = dict.fromkeys(trace.passing, "recompute")
    for one, what in decisions.items():
        if what == "keep":
            found.pop(one, None)
        elif trace.is_of_forward(one):
            found[one] = what
    for view, of in trace.views:
        # A view of a tensor that is given up must not hold it.
        if of in found and view not in decisions:
            found[view] = "recompute"
    return found


def is_on_host(trace: Trace, copy: Copy, swapped: Container[int]) -> bool:
    """Whether a tensor that leaves is on the host as it is, as it is swapped anyway."""
    tensor, number = copy
    return number == 0 and tensor in swapped and not trace.tensors[tensor].compressed_bytes


def memory(
    trace: Trace, actions: Sequence[Action], scratch: Mapping[int, int] | None = None
) -> np.ndarray:
    """Return the bytes in use while each action runs, (actions,): what the step itself holds.

    Memory that was there before the step (variables, the batch) is not in it. A tensor that is
    compressed is there in both forms from its copy to the device until it is read, and where its
    copy to the host begins; in the compressed one until that has ended.

    Args:
        trace: The step.
        actions: From `schedule`.
        scratch: Bytes that an op needs while it runs and that no tensor of the trace shows.
    """
    scratch = scratch or {}
    in_use = np.zeros(len(actions), np.int64)
    live = 0
    sizes: list[int] = []
    for position, (begun, ended) in enumerate(allocations(trace, actions)):
        for one in begun:
            sizes.append(trace.tensors[one].num_bytes)
            live += sizes[-1]
        op = actions[position].kind in ("op", "again")
        in_use[position] = live + (scratch.get(actions[position].index, 0) if op else 0)
        for buffer in ended:
            live -= sizes[buffer]
    return in_use + of_compressed(trace, actions)


def held(trace: Trace, actions: Sequence[Action], at: int) -> dict[int, int]:
    """Return the bytes of each tensor that is held while an action runs, by the tensor whose
    memory it was first; copies of a tensor count together."""
    firsts: list[int] = []
    gone: set[int] = set()
    for position, (begun, ended) in enumerate(allocations(trace, actions)):
        firsts += begun
        if position == at:
            break
        gone.update(ended)
    found: dict[int, int] = {}
    for buffer, tensor in enumerate(firsts):
        num_bytes = 0 if buffer in gone else trace.tensors[tensor].num_bytes
        found[tensor] = found.get(tensor, 0) + num_bytes
    return found


def buffers_of(trace: Trace, actions: Sequence[Action]) -> dict[Copy, int]:
    """Return the buffer that holds each copy, by the numbers of `allocations`."""
    found: dict[Copy, int] = {}
    deque(allocations(trace, actions, found), maxlen=0)
    return found


def allocations(
    trace: Trace, actions: Sequence[Action], buffers: dict[Copy, int] | None = None
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield, for each action: the tensors for which new buffers are allocated when it begins, and
    the buffers that are free after it. Buffers are numbered as they are allocated, from 0 on;
    `buffers` is told which one holds each copy."""
    last_use = _last_uses(trace, actions)
    buffers = {} if buffers is None else buffers
    readers: dict[int, int] = {}  # of a buffer: the last action that reads it
    sizes: list[int] = []  # of a buffer: 0 where it is free
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
        ended = [one for one in sorted(ends.pop(position, ())) if readers[one] == position]
        yield begun, ended
        for buffer in ended:
            sizes[buffer] = 0


def of_compressed(trace: Trace, actions: Sequence[Action]) -> np.ndarray:
    """Return the bytes that compressed forms of tensors take while each action runs, (actions,)."""
    more = np.zeros(len(actions), np.int64)
    if trace.compression is None:
        return more
    made: dict[int, int] = {}
    arrived: dict[Copy, int] = {}
    for position, action in enumerate(actions):
        for copy in action.inputs:
            if copy in arrived:
                more[arrived.pop(copy) : position] += trace.tensors[copy[0]].compressed_bytes
        if action.kind == "out":
            begin = made[action.index] + 1
            more[begin : position + 1] += trace.tensors[action.index].compressed_bytes
        elif action.kind == "in":
            arrived[action.outputs[0]] = position
        else:
            made.update((tensor, position) for tensor, number in action.outputs if not number)
    return more


def _last_uses(trace: Trace, actions: Sequence[Action]) -> dict[Copy, int]:
    last: dict[Copy, int] = {}
    made: dict[int, int] = {}
    fused: dict[Copy, tuple[Copy, ...]] = {}  # of what never comes to be: what it is made of
    for position, action in enumerate(actions):
        if action.kind == "out" and trace.tensors[action.index].compressed_bytes:
            # Compressed right after its op, it may go before its copy has ended.
            last[action.index, 0] = max(last[action.index, 0], made[action.index] + 1)
            continue
        for copy in action.inputs:
            last[copy] = position
            if copy in fused:
                # One op with what made it, that reads these when it allocates its own output.
                last.update(dict.fromkeys(fused[copy], position))
        for copy in action.outputs:
            last[copy] = position
            if not copy[1]:
                made[copy[0]] = position
            if trace.tensors[copy[0]].is_inner:
                fused[copy] = tuple(o for one in action.inputs for o in fused.get(one, (one,)))
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
