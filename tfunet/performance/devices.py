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
# Winograd's algorithm multiplies 16 numbers for 2 x 2 pixels, where 36 are multiplied otherwise
# (Lavin and Gray 2016, arXiv:1509.09308).
FEWER_PRODUCTS = 36 / 16
OP_START_SECONDS = 5e-6


@dataclass(frozen=True)
class Device:
    """A device as its data sheet describes it.

    Args:
        flops_per_second: In float32 convolutions as TensorFlow computes them: in TF32 if it can.
        half_flops_per_second: In bfloat16 or float16.
        link_bytes_per_second: Between the device and its host, in each direction.
        peer_bytes_per_second: Between two devices of a host, if they do not use that link.
        has_short_way: Whether cuDNN takes Winograd's algorithm in float32. It does not where tensor
            cores compute float32, in TF32.
    """

    memory_bytes: int
    flops_per_second: float
    half_flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float
    source: str
    peer_bytes_per_second: float | None = None
    has_short_way: bool = False


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
    # What a convolution reads and makes has no memory of its own where weights and images are given
    # and its sum is one with a bias.
    if op.kind in ALIASES or (moved_bytes == 0 and not op.flops):
        return 0.0
    moving_seconds = moved_bytes / (device.bytes_per_second * BYTES_SHARE)
    rate = device.half_flops_per_second if op.item_bytes == 2 else device.flops_per_second
    if op.has_short_way and device.has_short_way and op.item_bytes == 4:
        rate *= FEWER_PRODUCTS
    return max(moving_seconds, op.flops / (rate * CONVOLUTION_SHARE)) + OP_START_SECONDS


# PCI Express: IBM measured 11 GB/s each way for generation 3 (Table 4 of their case study of
# large-model support); each later generation has twice as much.
DEVICES = {
    "v100-pcie3": Device(
        *(16 * GIB, 14 * TERA, 112 * TERA, 900 * GB, 11 * GB),
        "NVIDIA V100 data sheet; IBM",
        has_short_way=True,
    ),
    "v100-nvlink2": Device(
        *(16 * GIB, 15.7 * TERA, 125 * TERA, 900 * GB, 62 * GB),
        "NVIDIA V100 data sheet; IBM measured 64 and 60 GB/s",
        has_short_way=True,
    ),
    "a100-pcie4": Device(
        80 * GIB, 156 * TERA, 312 * TERA, 1935 * GB, 22 * GB, "NVIDIA A100 80GB PCIe data sheet"
    ),
    "a100-sxm4": Device(
        *(80 * GIB, 156 * TERA, 312 * TERA, 2039 * GB, 22 * GB),
        *("NVIDIA A100 80GB SXM data sheet", 300 * GB),
    ),
    "h100-pcie5": Device(
        *(80 * GIB, 495 * TERA, 989 * TERA, 3350 * GB, 44 * GB),
        *("NVIDIA H100 SXM data sheet", 450 * GB),
    ),
    "h200-pcie5": Device(
        *(141 * GB, 495 * TERA, 989 * TERA, 4800 * GB, 44 * GB),
        *("NVIDIA H200 SXM data sheet", 450 * GB),
    ),
    "gh200": Device(
        *(96 * GB, 495 * TERA, 989 * TERA, 4000 * GB, 340 * GB),
        "NVIDIA GH200 data sheet; three quarters of the link's 450 GB/s",
    ),
    "p40-pcie3": Device(
        # Sums of float16 are at 1/64 of the rate: TensorFlow computes them in float32.
        *(24 * GIB, 12 * TERA, 12 * TERA, 346 * GB, 11 * GB),
        "NVIDIA Tesla P40 data sheet; IBM",
        has_short_way=True,
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
