"""The ops of a training step and the tensors between them. Imports no TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tfunet.graph.slabs import Slabs
from tfunet.graph.unrolled import Unrolled

# The memory of their outputs is a variable's, the batch's or the graph's, not the step's.
READS = frozenset({"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"})
# These read only the shape of their input, which TensorFlow knows without the values.
SHAPE_READERS = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
# TensorFlow fuses these with a bias into one op.
FUSED_WITH_BIAS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul"})
# Names of the ops that read a weight off the device, and bring it there (`tfunet.state.home`).
WEIGHT_READ, WEIGHT_ARRIVES = "weight_read", "weight_arrives"
# Name of the ops by which gradients leave the device.
GRADIENT_LEAVES = "gradient_leaves"
# Name of the loop in which the host updates weights, and of the collection of a graph that has the
# bytes that each such loop reads and writes.
HOST_UPDATE = "host_update"
# The output of these ops shares the memory of the first input.
ALIASES = frozenset(
    (
        *("CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "PreventGradient", "Reshape"),
        *("Squeeze", "StopGradient"),
    )
)
# TensorFlow may fuse these with a convolution and its bias.
ACTIVATIONS = frozenset({"Elu", "LeakyRelu", "Relu", "Relu6", "Sigmoid", "Tanh"})
# The output of these ops may take over the memory of an input that no later op reads.
IN_PLACE = ACTIVATIONS | frozenset(
    (
        *("Abs", "Add", "AddN", "AddV2", "BiasAdd", "EluGrad", "Exp", "LeakyReluGrad", "Log"),
        *("LogSoftmax", "Maximum", "Minimum", "Mul", "Neg", "RealDiv", "ReluGrad", "Rsqrt"),
        *("RsqrtGrad", "Selu", "SeluGrad", "SigmoidGrad", "Softmax", "Softplus", "SoftplusGrad"),
        *("Sqrt", "Square", "SquaredDifference", "Sub", "TanhGrad"),
    )
)
# The second output of these ops, a gradient, may take over the memory of the first input.
LOSSES = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})
# Their time is that of functions that they run, some of them many times: it is not known.
OF_FUNCTIONS = frozenset(
    {"Case", "If", "PartitionedCall", "StatefulPartitionedCall"}
    | {"StatelessCase", "StatelessIf", "StatelessWhile", "While"}
)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of the step.

    Args:
        num_bytes: Its bytes; 0 if its shape is not known when the step is traced, or if its memory
            is not the step's.
        producer: Index of the op that makes it; -1 if it was there before the step.
        is_inner: Whether it never exists, because the ops on both sides of it run as one: a
            convolution and its bias (in a forward pass alone, an activation too), or the sums and
            products of `tfunet.graph.regrouped`. Another reader would part the two ops, which
            changes the last bits of their result.
        is_folded: Whether it has another form in slabs, which only the next op can read
            (`tfunet.graph.slab_rules.is_folded`).
        is_result: Whether the step returns it, or an op outside of the step reads it.
    """

    name: str
    num_bytes: int
    producer: int
    is_inner: bool = False
    is_folded: bool = False
    is_result: bool = False

    @property
    def is_passed_on(self) -> bool:
        """Whether the op that makes it and those that read it run in slabs together, or not at
        all."""
        return self.is_inner or self.is_folded


@dataclass(frozen=True, kw_only=True)
class Op:
    """An op of the step.

    Args:
        is_backward: Whether it belongs to the gradient or comes after it; in a forward pass alone,
            whether it belongs to the second part (`tfunet.graph.forward`).
        is_repeatable: Whether it may run twice: it has no state and draws no random numbers.
        flops: Multiplications and additions, of convolutions and matrix products.
        has_short_way: Whether it is a convolution in 2D of 3 x 3 with every pixel computed, which
            Winograd's algorithm does with fewer multiplications.
        slabs: How it can run in slabs; None if it cannot.
        instead: If it is the gradient of an activation: the tensor that it may read instead of the
            activation's input, with the same result to the bit; -1 if there is none.
        is_regrouped: Whether TensorFlow computes it together with a neighbour, in another order,
            unless a control edge forbids it (`tfunet.graph.regrouped`).
        unrolled: The columns that it unrolls, if it is the gradient of a filter.
        brings_weight: Whether it brings a weight to the device, and may do so again.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_backward: bool
    is_repeatable: bool
    flops: float
    item_bytes: int = 4
    has_short_way: bool = False
    slabs: Slabs | None = None
    instead: int = -1
    is_regrouped: bool = False
    unrolled: Unrolled | None = None
    brings_weight: bool = False

    @cached_property
    def first_copies(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """Its inputs and outputs as (tensor, number of the copy): each is the first copy."""
        inputs = tuple((tensor, 0) for tensor in self.inputs)
        return inputs, tuple((tensor, 0) for tensor in self.outputs)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The ops of a step in the order in which they were traced, which is one they can run in.

    Args:
        constant_bytes: Bytes of the large tensors that TensorFlow computes before the first step
            and keeps.
        parted: Inputs of activations that the backward pass would read, but reads something else
            instead. The activation is not fused with the bias, as if the backward pass read them.
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    constant_bytes: int = 0
    is_forward: bool = False
    parted: frozenset[int] = frozenset()

    @property
    def untimed(self) -> tuple[str, ...]:
        """Names of the ops whose time is not known: loops and other ops that run functions."""
        return tuple(op.name for op in self.ops if op.kind in OF_FUNCTIONS)

    def is_of_forward(self, tensor: int) -> bool:
        """Whether the forward pass makes a tensor."""
        producer = self.tensors[tensor].producer
        return producer >= 0 and not self.ops[producer].is_backward

    @cached_property
    def passing(self) -> frozenset[int]:
        """Tensors of the forward pass that the backward pass can never read."""
        inner = {index for index, tensor in enumerate(self.tensors) if tensor.is_inner}
        return frozenset(index for index in inner | self.parted if self.is_of_forward(index))

    @cached_property
    def views(self) -> tuple[tuple[int, int], ...]:
        """Each view of the forward pass that can be made again, and the tensor that it shows."""
        return tuple(
            (view, op.inputs[0])
            for op in self.ops
            if op.kind in ALIASES and op.is_repeatable and not op.is_backward
            for view in op.outputs
            if view not in self.passing
        )


def root(trace: Trace, tensor: int) -> int:
    """Return the tensor whose memory a view shows; the tensor itself if it is no view."""
    producer = trace.tensors[tensor].producer
    if producer < 0 or trace.ops[producer].kind not in ALIASES:
        return tensor
    return root(trace, trace.ops[producer].inputs[0])


def readers_of(trace: Trace) -> dict[int, list[int]]:
    """Return the ops that read each tensor."""
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(trace.ops):
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(index)
    return readers


def fused(trace: Trace) -> dict[int, int]:
    """Return the ops that TensorFlow may fuse with the op that reads them, and that reader.

    They are a convolution with its bias, and the bias with an activation, if nothing else reads
    their output.
    """
    readers = readers_of(trace)
    reader_of = {}
    for position, op in enumerate(trace.ops):
        reading = [reader for tensor in op.outputs for reader in readers.get(tensor, ())]
        if len(reading) == 1 and trace.ops[reading[0]].is_backward == op.is_backward:
            is_bias = op.kind == "BiasAdd" and trace.tensors[op.inputs[0]].is_inner
            is_bias = is_bias and op.outputs[0] not in trace.parted
            is_activated = is_bias and trace.ops[reading[0]].kind in ACTIVATIONS
            makes_inner = trace.tensors[op.outputs[0]].is_inner and op.kind in FUSED_WITH_BIAS
            if is_activated or makes_inner:
                reader_of[position] = reading[0]
    return reader_of


def without_small(
    trace: Trace, least_bytes: int, scratch: Mapping[int, int] | None = None
) -> tuple[Trace, list[int]]:
    """Return the step without its small ops, and the index in `trace` of each op that stays.

    A small op reads and makes no tensor of `least_bytes`, and takes less scratch memory. Tensors
    keep their indices. The tensors of small ops count as there before the step.
    """
    stays = [
        index
        for index, op in enumerate(trace.ops)
        if (scratch or {}).get(index, 0) >= least_bytes
        or any(trace.tensors[at].num_bytes >= least_bytes for at in (*op.inputs, *op.outputs))
    ]
    place = {index: position for position, index in enumerate(stays)}
    tensors = tuple(
        replace(tensor, producer=place.get(tensor.producer, -1)) for tensor in trace.tensors
    )
    return replace(trace, ops=tuple(trace.ops[index] for index in stays), tensors=tensors), stays
