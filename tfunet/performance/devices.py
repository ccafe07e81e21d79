"""Devices for which a step can be planned without having one. Pure."""

from dataclasses import dataclass

from tfunet.config.amount import GB, GIB
from tfunet.config.words import near_match
from tfunet.graph.step import ALIASES, Op, Trace
from tfunet.swap.plan.costs import Costs

TERA = 10**12

# In each direction: an NVMe disk on four lanes of PCI Express 3, for which makers give 2 to 3 GB/s.
DISK_BYTES_PER_SECOND = 2 * GB
# Shares of a device's best that a large convolution, and an op that only moves bytes, reach.
CONVOLUTION_SHARE = 0.5
BYTES_SHARE = 0.8
OP_START_SECONDS = 5e-6


@dataclass(frozen=True)
class Device:
    """A device as its data sheet describes it.

    Args:
        flops_per_second: In float32 convolutions as TensorFlow computes them: in TF32 if it can.
        half_flops_per_second: In bfloat16 or float16.
    """

    memory_bytes: int
    flops_per_second: float
    half_flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float
    source: str


def described(trace: Trace, device: Device) -> Costs:
    """Return what a step would cost on a device, from its description."""
    return Costs(
        op_seconds=[_estimate(trace, op, device) for op in trace.ops],
        out_bytes_per_second=device.link_bytes_per_second,
        in_bytes_per_second=device.link_bytes_per_second,
        bytes_per_second=device.bytes_per_second * BYTES_SHARE,
        copies_overlap=True,
    )


def _estimate(trace: Trace, op: Op, device: Device) -> float:
    moved_bytes = sum(trace.tensors[index].num_bytes for index in {*op.inputs, *op.outputs})
    if op.kind in ALIASES or moved_bytes == 0:
        return 0.0
    moving_seconds = moved_bytes / (device.bytes_per_second * BYTES_SHARE)
    rate = device.half_flops_per_second if op.item_bytes == 2 else device.flops_per_second
    return max(moving_seconds, op.flops / (rate * CONVOLUTION_SHARE)) + OP_START_SECONDS


# PCI Express: IBM measured 11 GB/s each way for generation 3 (Table 4 of their case study of
# large-model support); each later generation has twice as much.
DEVICES = {
    "v100-pcie3": Device(
        16 * GIB, 14 * TERA, 112 * TERA, 900 * GB, 11 * GB, "NVIDIA V100 data sheet; IBM"
    ),
    "v100-nvlink2": Device(
        *(16 * GIB, 15.7 * TERA, 125 * TERA, 900 * GB, 62 * GB),
        "NVIDIA V100 data sheet; IBM measured 64 and 60 GB/s",
    ),
    "a100-pcie4": Device(
        80 * GIB, 156 * TERA, 312 * TERA, 1935 * GB, 22 * GB, "NVIDIA A100 80GB PCIe data sheet"
    ),
    "h100-pcie5": Device(
        80 * GIB, 495 * TERA, 989 * TERA, 3350 * GB, 44 * GB, "NVIDIA H100 SXM data sheet"
    ),
    "h200-pcie5": Device(
        141 * GB, 495 * TERA, 989 * TERA, 4800 * GB, 44 * GB, "NVIDIA H200 SXM data sheet"
    ),
    "gh200": Device(
        *(96 * GB, 495 * TERA, 989 * TERA, 4000 * GB, 340 * GB),
        "NVIDIA GH200 data sheet; three quarters of the link's 450 GB/s",
    ),
}


def known_device(name: str) -> str:
    """Return the name in DEVICES that is meant: "h100" is "h100-pcie5".

    Raises ValueError, with the candidates, for one that is not known or not clear.
    """
    lower = name.lower()
    if lower in DEVICES:
        return lower
    meant = [known for known in DEVICES if known.partition("-")[0] == lower]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ValueError(f"The device {name!r} has several links. Say which: {', '.join(meant)}.")
    raise ValueError(
        f"Unknown device {name!r}.{near_match(lower, DEVICES)} Known: {', '.join(DEVICES)}."
    )
