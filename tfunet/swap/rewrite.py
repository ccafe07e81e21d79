"""Makes the graph of a traced step follow a plan."""

from collections.abc import Collection, Sequence

import tensorflow as tf

from tfunet.swap.host import Tier
from tfunet.swap.schedule import Action, Copy, is_on_host
from tfunet.swap.slab_graph import SlabGraph, apart
from tfunet.swap.slab_ops import OF_FILTERS
from tfunet.swap.split import Cut
from tfunet.swap.steps import ALIASES, IN_PLACE, Op, Trace, fused, root
from tfunet.swap.trace import FUSED_WITH_BIAS, READS

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
    trace, handles = found.trace, list(handles)
    _read_outputs(whole, ops, handles)
    slabs = SlabGraph(whole, found, ops, handles, tier)
    restored: dict[Copy, tf.Tensor] = {}
    copies: dict[int, tf.Operation] = {}
    leaving: list[tuple[int, tf.Operation]] = []  # (op after which its copy is awaited, that)
    names: dict[int, str] = {}  # of a tensor that has left to make room: its name on the host
    count = 0
    carried: list[tf.Operation] = []  # copies that only an op waited for that nothing waits for
    last_forward = _last_forward_reads(trace)
    previous: tf.Operation | None = None
    turn: list[tf.Operation] = []  # the last of those that are serialized
    parts = fused(trace)
    ends = frozenset(parts.values())
    of_bias = _of_bias(trace)
    placed = frozenset(of_bias.values())
    # Where what comes back comes to lie is planned, it comes in order.
    is_placed = any(action.kind == "leave" for action in actions) or (
        is_placed and not tier.copies_overlap
    )
    in_line = is_placed and not tier.copies_overlap
    left: dict[int, tf.Operation] = {}  # of a tensor that has left to make room: when it has
    arrived: list[tf.Operation] = []
    for place, action in enumerate(actions):
        after = [] if previous is None else [previous]
        if action.kind == "out":
            with tf.control_dependencies(None):
                handle = handles[action.index]
                copies[action.index] = (
                    handle.op
                    if slabs.has(action.index)
                    # A chain in slabs may have made it anew; the plan knows its first name.
                    else tier.out(handle, name=trace.tensors[action.index].name)
                )
            # In both forms it would wait for its copy beside what reads it.
            is_compressed = trace.tensors[action.index].compressed_bytes > 0
            last = -1 if is_compressed else last_forward[action.index]
            leaving.append((last, copies[action.index]))
        elif action.kind == "in":
            # So that whoever looks into a profile sees what came back.
            name = f"back/{handles[action.index].op.name}/"
            waits = [copies[action.index], *after, *arrived]
            with tf.control_dependencies(waits), tf.name_scope(name):
                restored[action.outputs[0]] = (
                    slabs.back(action.index)
                    if slabs.has(action.index)
                    else tier.back(handles[action.index], name=trace.tensors[action.index].name)
                )
            if in_line:
                arrived = [restored[action.outputs[0]].op]
        elif action.kind == "leave":
            (copy,) = action.inputs
            due = next(one.index for one in actions[place:] if one.kind == "op")
            waits = [*after, *carried, *(out for last, out in leaving if last < due)]
            if is_on_host(trace, copy, copies):
                waits.append(copies[action.index])
                with tf.control_dependencies(waits):
                    previous = tf.no_op()
                names[action.index] = trace.tensors[action.index].name
            else:
                count += 1
                names[action.index] = f"{trace.tensors[action.index].name} away {count}"
                handle = restored[copy] if copy[1] else handles[copy[0]]
                with tf.control_dependencies(None), tf.control_dependencies(waits):
                    previous = tier.out(handle, name=names[action.index])
            left[action.index] = previous
            leaving.append((-1, previous))
        elif action.kind == "return":
            scope = f"return/{handles[action.index].op.name}/"
            waits = [left[action.index], *after, *arrived]
            with tf.control_dependencies(waits), tf.name_scope(scope):
                restored[action.outputs[0]] = tier.back(
                    handles[action.index], name=names[action.index]
                )
            if in_line:
                arrived = [restored[action.outputs[0]].op]
        elif action.kind == "again":
            after += arrived
            inputs = [
                restored[one] if one[1] else _delayed(handles[one[0]], after)
                for one in action.inputs
            ]
            if action.inputs and action.inputs[0][0] in trace.parted:
                inputs[0] = apart(inputs[0])
            of_batch = all(one.op.type in READS for one in inputs)
            # What has left to make room and is back may have been so for long.
            was_back = in_line and all(
                copy[1] or one.op.type in READS
                for copy, one in zip(action.inputs, inputs, strict=True)
            )
            if of_batch or (was_back and not trace.tensors[action.inputs[0][0]].is_inner):
                # Nothing else says when it is wanted.
                inputs[0] = _identity(inputs[0], after)
            again = _repeat(ops[action.index], inputs)
            restored.update(zip(action.outputs, again.outputs, strict=True))
            if in_line:
                arrived = [_done(again)]
        elif action.index in found.chains:
            given = {one[0]: restored[one] for one in action.inputs if one[1]}
            copied = [copy for last, copy in leaving if last < action.index]
            leaving = [one for one in leaving if one[0] >= action.index]
            previous = slabs.run(found.chains[action.index], given, [*after, *copied])
        else:
            if action.index in placed:
                continue  # Its place, and what it reads, is that of the gradient of the weights.
            op, described = ops[action.index], trace.ops[action.index]
            for position, copy in enumerate(action.inputs):
                if copy[1]:
                    op._update_input(position, restored[copy])
                    if action.index in of_bias and position == 2:
                        ops[of_bias[action.index]]._update_input(0, restored[copy])
            least = (
                min(threshold_bytes, ORDERED_BYTES) if described.is_backward else threshold_bytes
            )
            # TensorFlow takes out ops that only rename a tensor, and the order with them.
            takes_turn = described.name in serialized
            if described.kind in ALIASES or not (takes_turn or _is_large(trace, described, least)):
                continue
            gone: list[tf.Operation] = []
            # Of a step whose values are its results no op may be computed alone that was not.
            is_part = trace.is_forward and (action.index in parts or action.index in ends)
            if described.kind != "BiasAdd" and not (is_part and action.index in ends):
                # What takes over the memory of a tensor waits for its copy, if nothing is lost.
                takes_over = described.kind in IN_PLACE and not tier.copies_overlap
                due = action.index + takes_over
                new = [copy for last, copy in leaving if last < due]
                # What ends a fused op has waited by its first; an edge more would part the two.
                gone = new + ([] if action.index in ends else carried)
                carried = carried + new
                leaving = [one for one in leaving if one[0] >= due]
            if takes_turn:
                # What runs as one op begins with its first and ends with its last.
                gone += [] if action.index in ends else turn
                if action.index not in parts:
                    turn = [_done(op)]
            # In any other order more would be there at once than was planned.
            is_end = action.index in ends and not found.chains
            is_alone = described.kind not in REARRANGED or bool(found.chains)
            in_turn = described.kind not in FUSED and not is_end and is_alone
            in_turn = bool(found.chains) if is_part else in_turn
            before = list(after) if described.is_backward or in_turn else []
            batch = _batch_alone(trace, action.index) if is_placed and not in_turn else None
            if batch is not None:
                # What a loss makes of a mask would be there from the beginning on.
                op._update_input(batch, _identity(op.inputs[batch], after))
            if is_part:
                if action.index not in ends and (waits := [*before, *gone]):
                    op._update_input(0, _identity(op.inputs[0], waits))
                if action.index not in parts:
                    previous = _done(op)
                continue
            if action.index in of_bias:
                previous = _together(op, ops[of_bias[action.index]], [*before, *gone])
                continue
            if is_placed and not described.is_backward and action.index in ends:
                previous = previous if action.index in parts else _done(op)
            elif described.is_backward or described.kind not in FUSED:
                previous, carried = op, []
            elif is_placed and action.index not in parts:
                previous = _done(op)
            if described.kind not in FUSED:
                before += gone
            elif waits := [*gone, *(after if is_placed and described.kind != "BiasAdd" else ())]:
                op._update_input(0, _identity(op.inputs[0], waits))
            if before:
                op._add_control_inputs(before)


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
        if op.kind in OF_FILTERS:
            weights.setdefault(op.inputs[2], []).append(at)
        elif op.kind == "BiasAddGrad":
            biases.setdefault(op.inputs[0], []).append(at)
    both = ((of_one, biases.get(read, [])) for read, of_one in weights.items())
    return {one[0]: other[0] for one, other in both if len(one) == len(other) == 1}


def _together(
    of_weights: tf.Operation, of_bias: tf.Operation, before: Sequence[tf.Operation]
) -> tf.Operation:
    """Let two gradients of a convolution wait for ops by what both read, and return the op after
    which both are done. oneDNN makes one op of two with the same edges, in other last bits, and
    which of them TensorFlow leaves nobody says."""
    shared = of_weights.inputs[2]
    with tf.control_dependencies(None):
        if before:
            with tf.control_dependencies(before), tf.device(of_weights.device):
                shared = tf.raw_ops.EnsureShape(input=shared, shape=shared.shape)
            of_weights._update_input(2, shared)
            of_bias._update_input(0, shared)
        with tf.control_dependencies([of_weights, of_bias]):
            return tf.no_op()


def _read_outputs(trace: Trace, ops: Sequence[tf.Operation], handles: Sequence[tf.Tensor]) -> None:
    """Let gradients of activations read outputs where the step says so, and part the activations
    from the biases before them, as the gradients' reading did."""
    for op, described in zip(ops, trace.ops, strict=True):
        if described.instead >= 0 and described.inputs[1] == described.instead:
            op._update_input(1, handles[described.instead])
        if described.kind == "LeakyRelu" and described.inputs[0] in trace.parted:
            op._update_input(0, apart(op.inputs[0]))


def _delayed(tensor: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Tensor:
    """Return a tensor that is there only after an op: an edge that keeps no two ops from fusing."""
    if tensor.op.type in READS:
        return tensor
    return _identity(tensor, after)


def _identity(tensor: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Tensor:
    if not after:
        return tensor
    with tf.control_dependencies(None), tf.control_dependencies(after), tf.device(tensor.device):
        return tf.identity(tensor)


def _done(op: tf.Operation) -> tf.Operation:
    """Return an op that runs after another, to wait for: edges from it keep no two from fusing."""
    if not op.outputs:
        return op
    with tf.control_dependencies(None), tf.device(op.device):
        return tf.identity(op.outputs[0]).op


def _repeat(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
    """Return a second op like the first, on other inputs."""
    with tf.control_dependencies(None), tf.device(op.device):
        return op.graph.create_op(
            op.type,
            list(inputs),
            [one.dtype for one in op.outputs],
            attrs=dict(op.node_def.attr),
            op_def=op.op_def,
            name=f"again/{op.name}",
        )


def _last_forward_reads(trace: Trace) -> dict[int, int]:
    """Return the last forward op that reads each tensor, or a view of it."""
    last: dict[int, int] = {}
    for position, op in enumerate(trace.ops):
        if not op.is_backward:
            for tensor in (*op.inputs, *op.outputs):
                last[tensor] = last[root(trace, tensor)] = position
    return last


def _is_large(trace: Trace, op: Op, threshold_bytes: int) -> bool:
    return any(trace.tensors[one].num_bytes >= threshold_bytes for one in (*op.inputs, *op.outputs))
