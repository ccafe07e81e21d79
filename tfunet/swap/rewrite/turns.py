"""Which ops of a step wait for which others, so that large ones run in the order of a plan."""

from collections.abc import Collection, Sequence
from typing import Literal, final

import tensorflow as tf

from tfunet.graph.edits import done, identity, together
from tfunet.graph.step import ALIASES, FUSED_WITH_BIAS, IN_PLACE, READS, Trace, fused, root
from tfunet.graph.window_axes import FILTER_GRADIENTS
from tfunet.inside.of_tensorflow import add_control_inputs, set_input

# How an op is made to wait, by what TensorFlow would do otherwise:
#   "result"   in a forward pass alone, a part of what it computes as one op: apart, the values of
#              the step would be others; so the first part waits, and the last is waited for
#   "pair"     the gradients of a convolution's weights and bias, which it may compute as one
#   "fused"    a convolution or bias of the forward pass: waits without a control edge
#   "loose"    the end of a fused op, or one that it rearranges: waits only for copies to the host
#   "in turn"  waits for the one before it
#   "free"     waits for nothing
Kind = Literal["result", "pair", "fused", "loose", "in turn", "free"]
# A control edge to one of these ops keeps TensorFlow from fusing it with its neighbour.
FUSED = FUSED_WITH_BIAS | {"BiasAdd"}
# TensorFlow's optimizer rearranges these ops unless a control edge leads to them, which may change
# the last bit of what comes after.
REARRANGED = frozenset(
    (
        *("Add", "AddN", "AddV2", "Cast", "Mul", "Neg", "Pow", "RealDiv", "Rsqrt", "Sqrt"),
        *("Square", "SquaredDifference", "Sub", "Transpose"),
    )
)
# Ops of the backward pass that touch a tensor of this size run in order too: otherwise thousands of
# small temporaries of an optimizer would be in memory beside the activations.
ORDERED_BYTES = 2**16


@final
class Turns:
    """Puts one op after another in order. `chains` are the last ops of those that run in slabs, and
    `is_placed` says whether convolutions of the forward pass run in order too.

    Attributes:
        previous: What the next op in order waits for.
        of_bias: Gradients of weights to those of biases that run with them.
    """

    def __init__(
        self,
        trace: Trace,
        ops: Sequence[tf.Operation],
        chains: Collection[int],
        *,
        threshold_bytes: int,
        is_placed: bool,
        copies_overlap: bool,
    ) -> None:
        self.previous: list[tf.Operation] = []
        self.of_bias = _of_bias(trace)
        self._trace = trace
        self._ops = ops
        self._chains = chains
        self._threshold_bytes = threshold_bytes
        self._is_placed = is_placed
        self._copies_overlap = copies_overlap
        self._brings_weights = any(op.brings_weight for op in trace.ops)
        self._parts = fused(trace)
        self._ends = frozenset(self._parts.values())
        self._large = self._large_ops()
        self._leaving: list[tuple[int, tf.Operation]] = []  # (op after which it is awaited, copy)
        # Copies that were awaited only by an op that no other op waits for.
        self._carried: list[tf.Operation] = []

    def leaves(self, copy: tf.Operation, *, after: int) -> None:
        """Note a copy to the host that is awaited by the ops after one."""
        self._leaving.append((after, copy))

    def before_leaving(self, due: int) -> list[tf.Operation]:
        """Return what a copy waits for that makes room for an op."""
        awaited = [copy for last, copy in self._leaving if last < due]
        return [*self.previous, *self._carried, *awaited]

    def order(self, at: int) -> None:
        """Make an op wait for what the schedule has before it."""
        match self._kind_of(at):
            case "free":
                return
            case "result":
                self._order_result(at)
            case "pair":
                self.previous = [
                    together(
                        self._ops[at],
                        self._ops[self.of_bias[at]],
                        [*self.previous, *self._gone_before(at)],
                    )
                ]
            case "fused":
                self._order_fused(at)
            case "loose":
                gone = self._gone_before(at)
                self._hold_batch(at)
                self._end(at, before=gone)
            case "in turn":
                gone, before = self._gone_before(at), list(self.previous)
                if self._trace.ops[at].kind in FUSED:
                    # In the backward pass, such as the gradient of a gradient.
                    self._delay(at, [*gone, *(before if self._is_placed else ())])
                    gone = []
                self._end(at, before=[*before, *gone])

    def _kind_of(self, at: int) -> Kind:
        """Return how an op is made to wait."""
        op = self._trace.ops[at]
        # TensorFlow removes ops that only rename a tensor, and their control edges. An edge would
        # keep it from regrouping others.
        if op.kind in ALIASES | {"IdentityN"} or op.is_regrouped or at not in self._large:
            return "free"
        if op.kind == "PyFunc" and not op.inputs:
            return "free"  # It reads a weight, and waits with the op that brings it.
        if self._trace.is_forward and (at in self._parts or at in self._ends):
            return "result"
        if at in self.of_bias:
            return "pair"
        if op.is_backward:
            return "in turn"
        if op.kind in FUSED:
            return "fused"
        # Around slabs any other order would need more memory at once than was planned.
        is_loose = at in self._ends or op.kind in REARRANGED
        return "loose" if is_loose and not self._chains else "in turn"

    def _order_result(self, at: int) -> None:
        is_part, is_end = at in self._parts, at in self._ends
        before = self.previous if self._trace.ops[at].is_backward or self._chains else []
        waits = [*before, *self._gone_before(at)]
        if not is_end:
            self._delay(at, waits)
        if not is_part:
            self.previous = [done(self._ops[at])]

    def _order_fused(self, at: int) -> None:
        gone, before = self._gone_before(at), list(self.previous)
        self._hold_batch(at)
        # The next weight comes when this one is done with.
        if (self._is_placed or self._brings_weights) and at not in self._parts:
            self.previous = [done(self._ops[at])]
        is_first = self._trace.ops[at].kind != "BiasAdd"
        self._delay(at, [*gone, *(before if self._is_placed and is_first else ())])

    def _end(self, at: int, *, before: Sequence[tf.Operation]) -> None:
        """Make an op wait for others by control edges, and the next one in order wait for it."""
        op = self._ops[at]
        if self._is_placed and at in self._ends and not self._trace.ops[at].is_backward:
            self.previous = [done(op)]
        else:
            self.previous, self._carried = [op], []
        if before:
            add_control_inputs(op, before)
            if self._trace.ops[at].brings_weight:  # A disk is not read long before.
                add_control_inputs(op.inputs[0].op.inputs[0].op, before)

    def _delay(self, at: int, waits: Sequence[tf.Operation]) -> None:
        """Make an op wait for others without a control edge to it."""
        if waits:
            set_input(self._ops[at], 0, identity(self._ops[at].inputs[0], waits))

    def _hold_batch(self, at: int) -> None:
        """Let an op that nothing else holds back read the batch in turn: otherwise what a loss
        makes of the mask would take memory from the beginning on."""
        batch = _batch_alone(self._trace, at) if self._is_placed else None
        if batch is not None:
            op = self._ops[at]
            set_input(op, batch, identity(op.inputs[batch], self.previous))

    def _gone_before(self, at: int) -> list[tf.Operation]:
        """Return the copies to the host that an op waits for."""
        kind, is_end = self._trace.ops[at].kind, at in self._ends
        if kind == "BiasAdd" or (is_end and self._trace.is_forward):
            return []
        # An op that takes over a tensor's memory waits for its copy, unless that costs overlap.
        takes_over = kind in IN_PLACE and not self._copies_overlap
        new = self.now_awaited(at + takes_over)
        # The first part of a fused op has waited; an edge to its end would part the two.
        gone = new if is_end else new + self._carried
        self._carried = self._carried + new
        return gone

    def now_awaited(self, due: int) -> list[tf.Operation]:
        """Return the copies to the host that an op waits for, and no later op."""
        copies = [copy for last, copy in self._leaving if last < due]
        self._leaving = [(last, copy) for last, copy in self._leaving if last >= due]
        return copies

    def _large_ops(self) -> set[int]:
        """Return the ops that touch a large tensor. What runs as one does so as a whole: a large
        filter has to be read before the next one comes, even if what it makes is small."""
        large = {at for at in range(len(self._ops)) if self._touches_large(at)}
        for part in sorted(self._parts):
            if part in large:
                large.add(self._parts[part])
        return large

    def _touches_large(self, at: int) -> bool:
        op = self._trace.ops[at]
        least = self._threshold_bytes
        if op.is_backward or op.brings_weight:
            least = min(least, ORDERED_BYTES)
        tensors = (self._trace.tensors[index] for index in (*op.inputs, *op.outputs))
        return any(tensor.num_bytes >= least for tensor in tensors)


def _batch_alone(trace: Trace, at: int) -> int | None:
    """Return the position of an input from the batch of an op of the forward pass; None where there
    is none, or where another input is made by the step."""
    op = trace.ops[at]
    if op.is_backward:
        return None
    producers = [trace.tensors[root(trace, tensor)].producer for tensor in op.inputs]
    if any(producer >= 0 and trace.ops[producer].kind not in READS for producer in producers):
        return None
    return next((place for place, producer in enumerate(producers) if producer < 0), None)


def _of_bias(trace: Trace) -> dict[int, int]:
    """Return the gradients of convolutions with respect to weights, by index, and those with
    respect to biases that read the same tensor. Where several of a kind read it, as where two
    convolutions are added up, there is no pair."""
    weights: dict[int, list[int]] = {}
    biases: dict[int, list[int]] = {}
    for at, op in enumerate(trace.ops):
        if op.kind in FILTER_GRADIENTS:
            weights.setdefault(op.inputs[2], []).append(at)
        elif op.kind == "BiasAddGrad":
            biases.setdefault(op.inputs[0], []).append(at)
    pairs = ((ops, biases.get(tensor, [])) for tensor, ops in weights.items())
    return {ops[0]: of_bias[0] for ops, of_bias in pairs if len(ops) == len(of_bias) == 1}
