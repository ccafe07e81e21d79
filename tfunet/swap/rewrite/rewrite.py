"""Makes the graph of a traced step follow a plan."""

from collections.abc import Collection, Sequence
from typing import final

import tensorflow as tf

from tfunet.graph.edits import delayed, done, identity, kept_apart, named_after, repeated, together
from tfunet.graph.op_reach import FILTER_GRADIENTS
from tfunet.graph.regrouped import PRODUCTS, SUMS
from tfunet.graph.step import ALIASES, FUSED_WITH_BIAS, IN_PLACE, READS, Trace, fused, root
from tfunet.swap.plan.schedule import Action, Copy, is_on_host
from tfunet.swap.plan.split import Cut
from tfunet.swap.rewrite.slab_graph import SlabGraph, apart
from tfunet.swap.storage.host import Tier

# A control edge to one of these keeps TensorFlow from fusing it with its neighbour.
FUSED = FUSED_WITH_BIAS | {"BiasAdd"}
# TensorFlow's optimizer rearranges these, if no control edge leads to them, which may change the
# last bit of what comes after.
REARRANGED = frozenset(
    {
        "Add",
        "AddN",
        "AddV2",
        "Cast",
        "Mul",
        "Neg",
        "Pow",
        "RealDiv",
        "Rsqrt",
        "Sqrt",
        "Square",
        "SquaredDifference",
        "Sub",
        "Transpose",
    }
)
# Ops of the backward pass that touch as much run in order too: thousands of small temporaries of
# an optimizer's would otherwise lie beside the activations.
ORDERED_BYTES = 2**16


def follow(
    found: Cut,
    whole: Trace,
    ops: Sequence[tf.Operation],
    handles: Sequence[tf.Tensor],
    actions: Sequence[Action],
    *,
    tier: Tier,
    threshold_bytes: int,
    serialized: Collection[str] = (),
    is_placed: bool = False,
) -> None:
    """Change the step's graph in place so that it runs as the schedule says.

    Backward ops read what was brought back instead of what was given up. Control edges keep the
    executor from running ahead: an op waits until what the schedule has out before it is out, and
    the large ops of the backward pass run one after the other, in the order in which they
    were traced, each copy and repetition between the two where it stands in the schedule. So do
    those of the forward pass, but where that would part what TensorFlow runs as one op.

    Args:
        found: The step with what is split.
        whole: The step before it was cut.
        ops: Of the step, in the order in which they were traced.
        handles: The tensors behind the trace's indices.
        actions: Of the cut step, in order.
        tier: Where swapped tensors go.
        threshold_bytes: An op is large if it reads or writes a tensor of this size.
        serialized: Ops of the forward pass that run one after the other too.
        is_placed: Whether convolutions and copies back do so too, where copies do not run beside
            computation; ops in any case where tensors leave to make room.
    """
    _read_outputs(whole, ops, handles)
    follower = _Follower(
        found,
        whole,
        ops,
        handles,
        actions,
        tier=tier,
        threshold_bytes=threshold_bytes,
        serialized=serialized,
        is_placed=is_placed,
    )
    for place, action in enumerate(actions):
        follower.do(place, action)


@final
class _Follower:
    """Makes one action after another of a schedule; see `follow`."""

    def __init__(
        self,
        found: Cut,
        whole: Trace,
        ops: Sequence[tf.Operation],
        handles: Sequence[tf.Tensor],
        actions: Sequence[Action],
        *,
        tier: Tier,
        threshold_bytes: int,
        serialized: Collection[str],
        is_placed: bool,
    ) -> None:
        self._trace = trace = found.trace
        self._chains = found.chains
        self._ops = ops
        self._handles = list(handles)
        self._actions = actions
        self._tier = tier
        self._threshold_bytes = threshold_bytes
        self._serialized = serialized
        self._slabs = SlabGraph(whole, found, ops, self._handles, tier)
        self._last_forward = _last_forward_reads(trace)
        self._parts = fused(trace)
        self._ends = frozenset(self._parts.values())
        self._of_bias = _of_bias(trace)
        self._beside = frozenset(self._of_bias.values())  # placed where those of the weights are
        # Where what comes back comes to lie is planned, it comes in order.
        self._is_placed = any(action.kind == "leave" for action in actions) or (
            is_placed and not tier.copies_overlap
        )
        self._in_line = self._is_placed and not tier.copies_overlap

        self._previous: list[tf.Operation] = []  # the op that the next one in order waits for
        self._turn: list[tf.Operation] = []  # the last of those that are serialized
        self._restored: dict[Copy, tf.Tensor] = {}
        self._copies: dict[int, tf.Operation] = {}  # to the host, of what is swapped
        self._leaving: list[tuple[int, tf.Operation]] = []  # (op after which it is awaited, copy)
        # Copies that only an op waited for that nothing waits for.
        self._carried: list[tf.Operation] = []
        self._arrived: list[tf.Operation] = []  # the last that came back
        # Of a tensor that has left to make room: when it has, and its name on the host.
        self._left: dict[int, tf.Operation] = {}
        self._names: dict[int, str] = {}
        self._away = 0  # how many have

    def do(self, place: int, action: Action) -> None:
        """Make an action of the schedule, after those before it."""
        match action.kind:
            case "out":
                self._copy_out(action.index)
            case "in":
                self._bring_back(action)
            case "leave":
                self._leave(place, action)
            case "return":
                self._return(action)
            case "again":
                self._repeat(action)
            case "op" if action.index in self._chains:
                self._run_in_slabs(action)
            # That of a bias has been placed, and reads what that of the weights does.
            case "op" if action.index not in self._beside:
                self._read_restored(action)
                self._order(action.index)

    def _copy_out(self, tensor: int) -> None:
        with tf.control_dependencies(None):
            handle = self._handles[tensor]
            self._copies[tensor] = (
                handle.op
                if self._slabs.has(tensor)
                # A chain in slabs may have made it anew; the plan knows its first name.
                else self._tier.out(handle, name=self._name(tensor))
            )
        # In both forms it would wait for its copy beside what reads it.
        is_compressed = self._trace.tensors[tensor].compressed_bytes > 0
        last = -1 if is_compressed else self._last_forward[tensor]
        self._leaving.append((last, self._copies[tensor]))

    def _bring_back(self, action: Action) -> None:
        tensor = action.index
        # So that whoever looks into a profile sees what came back.
        scope = named_after(self._handles[tensor].op, "back")
        waits = [self._copies[tensor], *self._previous, *self._arrived]
        with tf.control_dependencies(waits), scope:
            self._has_arrived(
                action,
                self._slabs.back(tensor)
                if self._slabs.has(tensor)
                else self._tier.back(self._handles[tensor], name=self._name(tensor)),
            )

    def _leave(self, place: int, action: Action) -> None:
        (copy,) = action.inputs
        tensor = action.index
        due = next(one.index for one in self._actions[place:] if one.kind == "op")
        waits = [*self._previous, *self._carried]
        waits += [out for last, out in self._leaving if last < due]
        if is_on_host(self._trace, copy, self._copies):
            waits.append(self._copies[tensor])
            with tf.control_dependencies(waits):
                left = tf.no_op()
            self._names[tensor] = self._name(tensor)
        else:
            self._away += 1
            self._names[tensor] = f"{self._name(tensor)} away {self._away}"
            handle = self._restored[copy] if copy[1] else self._handles[tensor]
            with tf.control_dependencies(None), tf.control_dependencies(waits):
                left = self._tier.out(handle, name=self._names[tensor])
        self._left[tensor] = left
        self._leaving.append((-1, left))
        self._previous = [left]

    def _return(self, action: Action) -> None:
        handle = self._handles[action.index]
        waits = [self._left[action.index], *self._previous, *self._arrived]
        with tf.control_dependencies(waits), named_after(handle.op, "return"):
            self._has_arrived(action, self._tier.back(handle, name=self._names[action.index]))

    def _has_arrived(self, action: Action, tensor: tf.Tensor) -> None:
        self._restored[action.outputs[0]] = tensor
        if self._in_line:
            self._arrived = [tensor.op]

    def _repeat(self, action: Action) -> None:
        after = [*self._previous, *self._arrived]
        inputs = [
            self._restored[one] if one[1] else delayed(self._handles[one[0]], after)
            for one in action.inputs
        ]
        if action.inputs and action.inputs[0][0] in self._trace.parted:
            inputs[0] = apart(inputs[0])
        of_batch = all(one.op.type in READS for one in inputs)
        # What has left to make room and is back may have been so for long.
        was_back = self._in_line and all(
            copy[1] or one.op.type in READS for copy, one in zip(action.inputs, inputs, strict=True)
        )
        if of_batch or (was_back and not self._trace.tensors[action.inputs[0][0]].is_inner):
            # Nothing else says when it is wanted.
            inputs[0] = identity(inputs[0], after)
        op, described = self._ops[action.index], self._trace.ops[action.index]
        if described.kind in SUMS | PRODUCTS and not described.is_regrouped:
            kept_apart(op)  # And its like, whose attributes are the same.
        again = repeated(op, inputs)
        self._restored.update(zip(action.outputs, again.outputs, strict=True))
        if self._in_line and not described.is_regrouped:
            self._arrived = [done(again)]

    def _run_in_slabs(self, action: Action) -> None:
        given = {one[0]: self._restored[one] for one in action.inputs if one[1]}
        waits = [*self._previous, *self._now_awaited(action.index)]
        self._previous = [self._slabs.run(self._chains[action.index], given, waits)]

    def _read_restored(self, action: Action) -> None:
        for position, copy in enumerate(action.inputs):
            if copy[1]:
                self._ops[action.index]._update_input(position, self._restored[copy])
                if action.index in self._of_bias and position == 2:
                    of_bias = self._ops[self._of_bias[action.index]]
                    of_bias._update_input(0, self._restored[copy])

    def _order(self, at: int) -> None:
        """Let an op wait for what is to be before it, if it is large."""
        op, described = self._ops[at], self._trace.ops[at]
        takes_turn = described.name in self._serialized
        # TensorFlow takes out ops that only rename a tensor, and the order with them.
        if described.kind in ALIASES | {"IdentityN"} or not (takes_turn or self._is_large(at)):
            return
        # An edge would keep it from what TensorFlow makes of it.
        if described.is_regrouped:
            return
        is_part, is_end = at in self._parts, at in self._ends
        # Of a step whose values are its results no op may be computed alone that was not.
        is_fixed = self._trace.is_forward and (is_part or is_end)
        gone: list[tf.Operation] = []
        if described.kind != "BiasAdd" and not (is_fixed and is_end):
            # What takes over the memory of a tensor waits for its copy, if nothing is lost.
            takes_over = described.kind in IN_PLACE and not self._tier.copies_overlap
            new = self._now_awaited(at + takes_over)
            # What ends a fused op has waited by its first; an edge more would part the two.
            gone = new if is_end else new + self._carried
            self._carried = self._carried + new
        if takes_turn:
            # What runs as one op begins with its first and ends with its last.
            gone += [] if is_end else self._turn
            if not is_part:
                self._turn = [done(op)]
        # In any other order more would be there at once than was planned.
        in_turn = bool(self._chains)
        if not is_fixed:
            in_turn = in_turn or not (is_end or described.kind in REARRANGED)
            in_turn = in_turn and described.kind not in FUSED
        before = list(self._previous) if described.is_backward or in_turn else []
        batch = _batch_alone(self._trace, at) if self._is_placed and not in_turn else None
        if batch is not None:
            # What a loss makes of a mask would be there from the beginning on.
            op._update_input(batch, identity(op.inputs[batch], self._previous))
        if is_fixed:
            if not is_end and (waits := [*before, *gone]):
                op._update_input(0, identity(op.inputs[0], waits))
            if not is_part:
                self._previous = [done(op)]
            return
        if at in self._of_bias:
            self._previous = [together(op, self._ops[self._of_bias[at]], [*before, *gone])]
            return
        after = self._previous
        if self._is_placed and not described.is_backward and is_end:
            self._previous = after if is_part else [done(op)]
        elif described.is_backward or described.kind not in FUSED:
            self._previous, self._carried = [op], []
        elif self._is_placed and not is_part:
            self._previous = [done(op)]
        if described.kind not in FUSED:
            before += gone
        elif waits := [*gone, *(after if self._is_placed and described.kind != "BiasAdd" else ())]:
            op._update_input(0, identity(op.inputs[0], waits))
        if before:
            op._add_control_inputs(before)

    def _now_awaited(self, due: int) -> list[tf.Operation]:
        """Return the copies to the host that are awaited by an op, and by no other."""
        found = [copy for last, copy in self._leaving if last < due]
        self._leaving = [one for one in self._leaving if one[0] >= due]
        return found

    def _is_large(self, at: int) -> bool:
        op = self._trace.ops[at]
        least = self._threshold_bytes
        if op.is_backward:
            least = min(least, ORDERED_BYTES)
        tensors = (self._trace.tensors[one] for one in (*op.inputs, *op.outputs))
        return any(one.num_bytes >= least for one in tensors)

    def _name(self, tensor: int) -> str:
        return self._trace.tensors[tensor].name


def _batch_alone(trace: Trace, at: int) -> int | None:
    """Return which input of an op of the forward pass is of the batch, if nothing that the step
    makes is another; None if not."""
    op = trace.ops[at]
    if op.is_backward:
        return None
    producers = [trace.tensors[root(trace, one)].producer for one in op.inputs]
    if any(one >= 0 and trace.ops[one].kind not in READS for one in producers):
        return None
    return next((place for place, one in enumerate(producers) if one < 0), None)


def _of_bias(trace: Trace) -> dict[int, int]:
    """Return the gradients of convolutions with respect to their weights, and those with respect to
    their biases, which read the same. Where two convolutions are added up, both read it."""
    weights: dict[int, list[int]] = {}
    biases: dict[int, list[int]] = {}
    for at, op in enumerate(trace.ops):
        if op.kind in FILTER_GRADIENTS:
            weights.setdefault(op.inputs[2], []).append(at)
        elif op.kind == "BiasAddGrad":
            biases.setdefault(op.inputs[0], []).append(at)
    both = ((of_one, biases.get(read, [])) for read, of_one in weights.items())
    return {one[0]: other[0] for one, other in both if len(one) == len(other) == 1}


def _read_outputs(trace: Trace, ops: Sequence[tf.Operation], handles: Sequence[tf.Tensor]) -> None:
    """Let gradients of activations read outputs where the step says so, and part the activations
    from the biases before them, as the gradients' reading did."""
    for op, described in zip(ops, trace.ops, strict=True):
        if described.instead >= 0 and described.inputs[1] == described.instead:
            op._update_input(1, handles[described.instead])
        if described.kind == "LeakyRelu" and described.inputs[0] in trace.parted:
            op._update_input(0, apart(op.inputs[0]))


def _last_forward_reads(trace: Trace) -> dict[int, int]:
    """Return the last forward op that reads each tensor, or a view of it."""
    last: dict[int, int] = {}
    for position, op in enumerate(trace.ops):
        if not op.is_backward:
            for tensor in (*op.inputs, *op.outputs):
                last[tensor] = last[root(trace, tensor)] = position
    return last
