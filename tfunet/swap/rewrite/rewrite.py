"""Makes the graph of a traced step follow a plan.

Around ops whose tensor a is swapped and b is recomputed, with --- for data, ... for control edges:

    forward            host                     backward

    op A ---a---> swap_out ......................
     |                .                         .
    op B              .              op D .......   the large op before
     |                .                         v
    op E <.............             "in a": swap_in
     "out a" stands before E                    |
                                     "again b": op B/again
                                                |
                                     op C <------   and waits for op D

- The copy to the host begins when op A is done. The first op after "out" waits for it, so that the
  memory of a is free from there on.
- Copies to the device and repeated ops wait for the large op before them: not earlier than planned.
- Large ops of the backward pass run one after the other, in the order in which they were traced.
- "leave" and "return", for tensors that make room, are a swap_out and a swap_in that wait for the
  large op before; all later ops wait for "leave".
"""

from collections.abc import Sequence
from typing import final

import tensorflow as tf

from tfunet.graph.edits import (
    delayed,
    done,
    forget_shape_readers,
    identity,
    kept_apart,
    named_after,
    repeated,
)
from tfunet.graph.regrouped import PRODUCTS, SUMS
from tfunet.graph.step import READS, Trace, root
from tfunet.inside.of_tensorflow import set_input
from tfunet.state.home import bring_again
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import Action, Copy, is_on_host
from tfunet.swap.plan.split import Cut
from tfunet.swap.rewrite.slab_graph import SlabGraph, apart
from tfunet.swap.rewrite.turns import Turns
from tfunet.swap.storage.host import Tier


def follow(
    cut: Cut,
    ops: Sequence[tf.Operation],
    handles: Sequence[tf.Tensor],
    plan: Plan,
    actions: Sequence[Action],
    *,
    tier: Tier,
    threshold_bytes: int,
) -> None:
    """Change the step's graph in place so that it runs as a plan's schedule says; see the module.

    Large ops of the forward pass, which read or write a tensor of `threshold_bytes`, run in order
    too, unless TensorFlow runs them as one op with a neighbour or rearranges them. If the plan is
    placed, convolutions do so too, and copies to the device if they do not run beside computation.
    They do in any case where tensors leave to make room.
    """
    _read_outputs(cut.whole, ops, handles)
    for tensor in _freed(actions):
        forget_shape_readers(handles[tensor])
    slabs = SlabGraph(cut, ops, list(handles), tier)
    follower = _Follower(cut, slabs, ops, plan, actions, tier, threshold_bytes)
    for place, action in enumerate(actions):
        follower.do(place, action)


@final
class _Follower:
    """Makes one action after another of a schedule; see `follow`."""

    def __init__(
        self,
        cut: Cut,
        slabs: SlabGraph,
        ops: Sequence[tf.Operation],
        plan: Plan,
        actions: Sequence[Action],
        tier: Tier,
        threshold_bytes: int,
    ) -> None:
        self._trace = trace = cut.trace
        self._chains = cut.chains
        self._ops = ops
        self._handles = slabs.handles
        self._actions = actions
        self._tier = tier
        self._slabs = slabs
        self._last_forward = _last_forward_reads(trace)
        # Tensors come back in order where it was planned at which addresses they come to lie.
        is_placed = any(action.kind == "leave" for action in actions) or (
            plan.is_placed and not tier.copies_overlap
        )
        self._in_line = is_placed and not tier.copies_overlap
        self._turns = Turns(
            trace,
            ops,
            cut.chains,
            threshold_bytes=threshold_bytes,
            is_placed=is_placed,
            copies_overlap=tier.copies_overlap,
        )
        # Placed where those of the weights are.
        self._beside = frozenset(self._turns.of_bias.values())

        self._restored: dict[Copy, tf.Tensor] = {}
        self._copies: dict[int, tf.Operation] = {}  # to the host, of swapped tensors
        self._arrived: list[tf.Operation] = []  # the last copy to the device
        # By tensor that left to make room: the op that ends its leaving, and its name on the host.
        self._left: dict[int, tf.Operation] = {}
        self._names: dict[int, str] = {}
        self._away = 0  # how many copies to the host made room

    def do(self, place: int, action: Action) -> None:
        """Put an action of the schedule into the graph, after those before it."""
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
            # The gradient of a bias was placed, and reads its input, with that of the weights.
            case "op" if action.index not in self._beside:
                self._read_restored(action)
                self._turns.order(action.index)

    def _copy_out(self, tensor: int) -> None:
        with tf.control_dependencies(None):
            handle = self._handles[tensor]
            self._copies[tensor] = (
                handle.op
                if self._slabs.has(tensor)
                # A chain in slabs may have made it anew; the plan knows its first name.
                else self._tier.out(handle, name=self._name(tensor))
            )
        self._turns.leaves(self._copies[tensor], after=self._last_forward[tensor])

    def _bring_back(self, action: Action) -> None:
        tensor = action.index
        # A profile then shows which tensor came back.
        scope = named_after(self._handles[tensor].op, "back")
        waits = [self._copies[tensor], *self._turns.previous, *self._arrived]
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
        due = next(later.index for later in self._actions[place:] if later.kind == "op")
        waits = self._turns.before_leaving(due)
        if is_on_host(copy, self._copies):
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
        self._turns.leaves(left, after=-1)
        self._turns.previous = [left]

    def _return(self, action: Action) -> None:
        handle = self._handles[action.index]
        waits = [self._left[action.index], *self._turns.previous, *self._arrived]
        with tf.control_dependencies(waits), named_after(handle.op, "return"):
            self._has_arrived(action, self._tier.back(handle, name=self._names[action.index]))

    def _has_arrived(self, action: Action, tensor: tf.Tensor) -> None:
        self._restored[action.outputs[0]] = tensor
        if self._in_line:
            self._arrived = [tensor.op]

    def _repeat(self, action: Action) -> None:
        after = [*self._turns.previous, *self._arrived]
        if self._trace.ops[action.index].brings_weight:
            arrived = bring_again(self._ops[action.index], after)
            self._restored[action.outputs[0]] = arrived
            if self._in_line:
                self._arrived = [arrived.op]
            return
        inputs = [
            self._restored[copy] if copy[1] else delayed(self._handles[copy[0]], after)
            for copy in action.inputs
        ]
        if action.inputs and action.inputs[0][0] in self._trace.parted:
            inputs[0] = apart(inputs[0])
        of_batch = all(tensor.op.type in READS for tensor in inputs)
        # A tensor that left to make room may have been back for long.
        was_back = self._in_line and all(
            copy[1] or tensor.op.type in READS
            for copy, tensor in zip(action.inputs, inputs, strict=True)
        )
        if of_batch or (was_back and not self._trace.tensors[action.inputs[0][0]].is_inner):
            # Nothing else says when it is wanted.
            inputs[0] = identity(inputs[0], after)
        op, described = self._ops[action.index], self._trace.ops[action.index]
        if described.kind in SUMS | PRODUCTS and not described.is_regrouped:
            kept_apart(op)  # The repeated op copies its attributes.
        again = repeated(op, inputs)
        self._restored.update(zip(action.outputs, again.outputs, strict=True))
        if self._in_line and not described.is_regrouped:
            self._arrived = [done(again)]

    def _run_in_slabs(self, action: Action) -> None:
        given = {copy[0]: self._restored[copy] for copy in action.inputs if copy[1]}
        waits = [*self._turns.previous, *self._turns.now_awaited(action.index)]
        self._turns.previous = [self._slabs.run(self._chains[action.index], given, waits)]

    def _read_restored(self, action: Action) -> None:
        for position, copy in enumerate(action.inputs):
            if copy[1]:
                set_input(self._ops[action.index], position, self._restored[copy])
                of_bias = self._turns.of_bias.get(action.index)
                if of_bias is not None and position == 2:
                    set_input(self._ops[of_bias], 0, self._restored[copy])

    def _name(self, tensor: int) -> str:
        return self._trace.tensors[tensor].name


def _read_outputs(trace: Trace, ops: Sequence[tf.Operation], handles: Sequence[tf.Tensor]) -> None:
    """Make gradients of activations read outputs where the step says so, and keep the activations
    apart from the biases before them, as the gradients did while they read the inputs."""
    for op, described in zip(ops, trace.ops, strict=True):
        if described.instead >= 0 and described.inputs[1] == described.instead:
            set_input(op, 1, handles[described.instead])
        if described.kind == "LeakyRelu" and described.inputs[0] in trace.parted:
            set_input(op, 0, apart(op.inputs[0]))


def _freed(actions: Sequence[Action]) -> set[int]:
    """Return the tensors that are not held from their last reader in the forward pass on."""
    moved = {action.index for action in actions if action.kind in ("out", "leave")}
    repeated = (copy for action in actions if action.kind == "again" for copy in action.outputs)
    return moved | {tensor for tensor, _ in repeated}


def _last_forward_reads(trace: Trace) -> dict[int, int]:
    """Return the last op of the forward pass that reads each tensor, or a view of it."""
    last: dict[int, int] = {}
    for position, op in enumerate(trace.ops):
        if not op.is_backward:
            for tensor in (*op.inputs, *op.outputs):
                last[tensor] = last[root(trace, tensor)] = position
    return last
