"""How much device memory training may use, and how a capped CPU's memory is made one piece."""

import contextlib
import functools

import tensorflow as tf

from tfunet.config.amount import MIB, parse
from tfunet.machine.device import cpu_cap, device_bytes, used_bytes
from tfunet.swap.arena.arena import ALIGNMENT, FIRST_REGION_BYTES

# How many scalars have a place of their own.
SCALARS = 2**11
_BETWEEN_SCALARS: list[tf.Tensor] = []


def in_bytes(budget: str | float) -> int:
    """Return the bytes that a budget allows on each device of this process.

    Raises ValueError where it depends on a limit that the device does not have.
    """
    wanted = parse(budget)
    if isinstance(wanted, int):
        return wanted
    limit = device_bytes()
    if limit is None:
        raise ValueError(
            f"swap budget {budget!r} depends on the device's memory, and a CPU has no limit of its "
            "own. Give an amount such as '4GiB', or cap TensorFlow's allocator with "
            "TF_CPU_ALLOCATOR_USE_BFC=true and TF_CPU_BFC_MEM_LIMIT_IN_MB."
        )
    return limit if wanted is None else int(limit * wanted)


def join_regions() -> int:
    """Make TensorFlow's capped allocator of a CPU take the rest of its memory in one piece.

    It takes memory in regions, each twice the size of the one before, and no tensor spans two of
    them. Returns the bytes that it had taken before; 0 on a GPU, whose memory is one region. Only
    the first call in a process does anything.
    """
    cap = cpu_cap()
    return 0 if cap is None else _join_regions(cap)


@functools.cache
def _join_regions(limit: int) -> int:
    # Scalars, which may stay for ever, get gaps of their own: anywhere else they would cut free
    # memory into pieces.
    with tf.device("CPU:0"):
        small = [tf.raw_ops.Empty(shape=[ALIGNMENT], dtype=tf.uint8) for _ in range(2 * SCALARS)]
    _BETWEEN_SCALARS.extend(small[::2])
    del small
    used = used_bytes()
    taken, region = 0, FIRST_REGION_BYTES
    while taken < (1 if used is None else used[1]):
        taken, region = taken + region, 2 * region
    while taken < limit:
        # If this does not fit, after TensorFlow's 10 seconds of trying, there was another region.
        with contextlib.suppress(tf.errors.ResourceExhaustedError), tf.device("CPU:0"):
            tf.raw_ops.Empty(shape=[(limit - taken) // MIB, MIB], dtype=tf.uint8)
            break
        taken, region = taken + region, 2 * region
    return min(taken, limit)
