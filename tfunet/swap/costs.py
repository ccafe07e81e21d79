"""What the ops and copies of a step cost in time. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from tfunet.swap.steps import ALIASES, Op, Trace

# Of what a device could do at best: what a large convolution, and an op that only moves bytes,
# reach of it.
CONVOLUTION_SHARE = 0.5
BYTES_SHARE = 0.8
COPY_START_SECONDS = 2e-5
OP_START_SECONDS = 5e-6


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The time of each op of a step, and the speed of the link between device and host.

    Args:
        op_seconds: Of each op of the trace.
        out_bytes_per_second: From device to host.
        in_bytes_per_second: From host to device.
        copy_seconds: What any copy costs beside its bytes.
        copies_overlap: Whether copies run beside computation, one in each direction.
    """

    op_seconds: Sequence[float]
    out_bytes_per_second: float
    in_bytes_per_second: float
    copy_seconds: float = COPY_START_SECONDS
    copies_overlap: bool = False

    def out_seconds(self, num_bytes: int) -> float:
        """Return the time of a copy to the host."""
        return num_bytes / self.out_bytes_per_second + self.copy_seconds

    def in_seconds(self, num_bytes: int) -> float:
        """Return the time of a copy to the device."""
        return num_bytes / self.in_bytes_per_second + self.copy_seconds

    def of(self, ops: Sequence[int]) -> "Costs":
        """Return the costs of some of the ops, each with the time of those left out before it."""
        ends = [0.0, *accumulate(self.op_seconds)]
        bounds = [0, *(index + 1 for index in ops)]
        seconds = [ends[stop] - ends[start] for start, stop in pairwise(bounds)]
        return replace(self, op_seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device as its data sheet describes it.

    Args:
        memory_bytes: Of the device.
        flops_per_second: Of float32 convolutions as TensorFlow computes them: TF32 where there is.
        half_flops_per_second: Of bfloat16 or float16.
        bytes_per_second: Of its memory.
        link_bytes_per_second: To the host, in each direction.
        source: Where the figures are from.
    """

    memory_bytes: int
    flops_per_second: float
    half_flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float
    source: str


def described(trace: Trace, device: Device) -> Costs:
    """Return what a step would cost on a device that is only described."""
    return Costs(
        op_seconds=[_estimate(trace, op, device) for op in trace.ops],
        out_bytes_per_second=device.link_bytes_per_second,
        in_bytes_per_second=device.link_bytes_per_second,
        copies_overlap=True,
    )


def _estimate(trace: Trace, op: Op, device: Device) -> float:
    if op.kind in ALIASES or not any(
        trace.tensors[one].num_bytes for one in (*op.inputs, *op.outputs)
    ):
        return 0.0
    moved = sum(trace.tensors[one].num_bytes for one in {*op.inputs, *op.outputs})
    by_bytes = moved / (device.bytes_per_second * BYTES_SHARE)
    rate = device.half_flops_per_second if op.item_bytes == 2 else device.flops_per_second
    return max(by_bytes, op.flops / (rate * CONVOLUTION_SHARE)) + OP_START_SECONDS
