"""The ops of a training step and the tensors between them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tfunet.geometry.reach import Slabs

# These look at the shape of their input only, which TensorFlow knows without the values.
SHAPE_READERS = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
# TensorFlow runs these and a bias as one op.
FUSED_WITH_BIAS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul"})
# Of these, an output is the memory of the first input, seen with another shape or name.
ALIASES = frozenset(
    {
        "CheckNumerics",
        "EnsureShape",
        "ExpandDims",
        "Identity",
        "PreventGradient",
        "Reshape",
        "Squeeze",
        "StopGradient",
    }
)
# Of these, an output may take over the memory of an input that nobody else reads any more.
IN_PLACE = frozenset(
    {
        "Abs",
        "Add",
        "AddN",
        "AddV2",
        "BiasAdd",
        "Elu",
        "EluGrad",
        "Exp",
        "LeakyRelu",
        "LeakyReluGrad",
        "Log",
        "LogSoftmax",
        "Maximum",
        "Minimum",
        "Mul",
        "Neg",
        "RealDiv",
        "Relu",
        "Relu6",
        "ReluGrad",
        "Rsqrt",
        "RsqrtGrad",
        "Selu",
        "SeluGrad",
        "Sigmoid",
        "SigmoidGrad",
        "Softmax",
        "Softplus",
        "SoftplusGrad",
        "Sqrt",
        "Square",
        "SquaredDifference",
        "Sub",
        "Tanh",
        "TanhGrad",
    }
)
# Of these, the second output, a gradient, may take over the memory of the first input.
LOSSES = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})
# What TensorFlow may compute in one go with a convolution and its bias.
ACTIVATIONS = frozenset({"Elu", "LeakyRelu", "Relu", "Relu6", "Sigmoid", "Tanh"})


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of the step.

    Args:
        name: In the graph.
        num_bytes: 0 where its shape is not known when the step is traced, or where it holds no
            memory of the step's own.
        producer: Index of its op; -1 where it was there before the step.
        is_inner: Whether it lies between two ops that TensorFlow runs as one, a convolution and
            its bias (of a forward pass alone, that and an activation too), or that it makes anew
            together (`tfunet.graph.regrouped`): it never comes to be, and giving it another reader
            would part the two, which changes the last bit of what they compute.
        is_folded: Whether only the next op reads it, in another form than it has as a whole where
            both run in slabs (`tfunet.graph.slices.is_folded`).
        is_result: Whether the step returns it, or something that is no op of it reads it.
        compressed_bytes: What it takes where it is swapped, if in fewer bits; 0 if as it is.
    """

    name: str
    num_bytes: int
    producer: int
    is_inner: bool = False
    is_folded: bool = False
    is_result: bool = False
    compressed_bytes: int = 0

    @property
    def is_passed_on(self) -> bool:
        """Whether the op that makes it and those that read it run in slabs together or not at
        all."""
        return self.is_inner or self.is_folded

    @property
    def swapped_bytes(self) -> int:
        """What is copied of it, and takes room where it is swapped."""
        return self.compressed_bytes or self.num_bytes


@dataclass(frozen=True, kw_only=True)
class Op:
    """An op of the step.

    Args:
        name: In the graph.
        kind: Its type, such as "Conv3D".
        inputs: Indices of its tensors.
        outputs: Indices of its tensors.
        is_backward: Whether it belongs to the gradient or to what follows it; of a forward pass
            alone, to its second part (`tfunet.graph.forward`).
        is_repeatable: Whether it may run twice: no state, no random numbers of its own.
        flops: Multiplications and additions, of convolutions and matrix products.
        item_bytes: Of a number that it computes with.
        slabs: How it can run in slabs; None where it cannot.
        instead: Of the gradient of an activation: the tensor that it may read in the place of the
            activation's input, to the same bits; -1 where there is none. See
            `tfunet.swap.plan.activations`.
        is_regrouped: Whether TensorFlow makes it anew with what reads it or what it reads, unless
            a control edge keeps it from that (`tfunet.graph.regrouped`).
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_backward: bool
    is_repeatable: bool
    flops: float
    item_bytes: int = 4
    slabs: Slabs | None = None
    instead: int = -1
    is_regrouped: bool = False

    @cached_property
    def first_copies(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """Its inputs and outputs where nothing is given up; see `schedule.Action`."""
        return tuple((one, 0) for one in self.inputs), tuple((one, 0) for one in self.outputs)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The ops of a step in the order in which they were traced, which is one they can run in.

    Args:
        ops: See above.
        tensors: That they make and read.
        compression: What those become that have `compressed_bytes`, where they are swapped.
        constant_bytes: Of large tensors that TensorFlow computes before the first step, and keeps.
        is_forward: Whether it is a forward pass alone, of an evaluation or a prediction.
        parted: Inputs of activations that the backward pass would read and does not: these run
            apart from the bias before them as they would then, and so in order.
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    compression: str | None = None
    constant_bytes: int = 0
    is_forward: bool = False
    parted: frozenset[int] = frozenset()

    def is_of_forward(self, tensor: int) -> bool:
        """Whether the forward pass makes a tensor."""
        producer = self.tensors[tensor].producer
        return producer >= 0 and not self.ops[producer].is_backward

    @cached_property
    def passing(self) -> frozenset[int]:
        """Tensors of the forward pass that are never there for the backward pass."""
        inner = {at for at, one in enumerate(self.tensors) if one.is_inner}
        return frozenset(one for one in inner | self.parted if self.is_of_forward(one))

    @cached_property
    def views(self) -> tuple[tuple[int, int], ...]:
        """Each view that the forward pass takes and can take again, and of which tensor."""
        return tuple(
            (one, op.inputs[0])
            for op in self.ops
            if op.kind in ALIASES and op.is_repeatable and not op.is_backward
            for one in op.outputs
            if one not in self.passing
        )


def root(trace: Trace, tensor: int) -> int:
    """Return the tensor whose memory a view shows; the tensor itself where it is none."""
    producer = trace.tensors[tensor].producer
    if producer < 0 or trace.ops[producer].kind not in ALIASES:
        return tensor
    return root(trace, trace.ops[producer].inputs[0])


def fused(trace: Trace) -> dict[int, int]:
    """Return the ops that TensorFlow may run as one with the op that reads them, and that one.

    A convolution with its bias, and that with an activation, where nothing else reads it.
    """
    readers: dict[int, list[int]] = {}
    for position, op in enumerate(trace.ops):
        for one in op.inputs:
            readers.setdefault(one, []).append(position)
    found = {}
    for position, op in enumerate(trace.ops):
        ours = [reader for one in op.outputs for reader in readers.get(one, ())]
        if len(ours) == 1 and trace.ops[ours[0]].is_backward == op.is_backward:
            is_bias = op.kind == "BiasAdd" and trace.tensors[op.inputs[0]].is_inner
            is_bias = is_bias and op.outputs[0] not in trace.parted
            activates = is_bias and trace.ops[ours[0]].kind in ACTIVATIONS
            makes_inner = trace.tensors[op.outputs[0]].is_inner and op.kind in FUSED_WITH_BIAS
            if activates or makes_inner:
                found[position] = ours[0]
    return found


def without_small(
    trace: Trace, least_bytes: int, scratch: Mapping[int, int] | None = None
) -> tuple[Trace, list[int]]:
    """Return the step without the ops that touch no tensor of `least_bytes`, and what is left.

    Nor need as much `scratch` (see `tfunet.swap.plan.schedule.memory`).

    Tensors keep their indices; those of the ops that are left out were there before the step. The
    second value is the index in `trace` of each op that stays.
    """
    stays = [
        index
        for index, op in enumerate(trace.ops)
        if (scratch or {}).get(index, 0) >= least_bytes
        or any(trace.tensors[one].num_bytes >= least_bytes for one in (*op.inputs, *op.outputs))
    ]
    place = {index: position for position, index in enumerate(stays)}
    tensors = tuple(replace(one, producer=place.get(one.producer, -1)) for one in trace.tensors)
    return replace(trace, ops=tuple(trace.ops[index] for index in stays), tensors=tensors), stays
