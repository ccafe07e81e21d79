"""The ops of a training step and the tensors between them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of the step.

    Args:
        name: In the graph.
        num_bytes: 0 where its shape is not known when the step is traced, or where it holds no
            memory of the step's own.
        producer: Index of its op; -1 where it was there before the step.
        is_inner: Whether it lies between two ops that TensorFlow runs as one, a convolution and
            its bias: it never comes to be, and giving it another reader would part the two, which
            changes the last bit of what they compute.
    """

    name: str
    num_bytes: int
    producer: int
    is_inner: bool = False


@dataclass(frozen=True, kw_only=True)
class Op:
    """An op of the step.

    Args:
        name: In the graph.
        kind: Its type, such as "Conv3D".
        inputs: Indices of its tensors.
        outputs: Indices of its tensors.
        is_backward: Whether it belongs to the gradient or to what follows it.
        is_repeatable: Whether it may run twice: no state, no random numbers of its own.
        flops: Multiplications and additions, of convolutions and matrix products.
        item_bytes: Of a number that it computes with.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_backward: bool
    is_repeatable: bool
    flops: float
    item_bytes: int = 4


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The ops of a step in the order in which they were traced, which is one they can run in."""

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]


def root(trace: Trace, tensor: int) -> int:
    """Return the tensor whose memory a view shows; the tensor itself where it is none."""
    producer = trace.tensors[tensor].producer
    if producer < 0 or trace.ops[producer].kind not in ALIASES:
        return tensor
    return root(trace, trace.ops[producer].inputs[0])


def without_small(
    trace: Trace, least_bytes: int, scratch: Mapping[int, int] | None = None
) -> tuple[Trace, list[int]]:
    """Return the step without the ops that touch no tensor of `least_bytes`, and what is left.

    Nor need as much `scratch` (see `tfunet.swap.schedule.memory`).

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
    return Trace(ops=tuple(trace.ops[index] for index in stays), tensors=tensors), stays
