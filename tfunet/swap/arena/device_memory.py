"""A device's memory before a step: the budget, what it holds, and the pieces that are free."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfunet.config.amount import MIB, parse
from tfunet.graph import reader
from tfunet.graph.step import Trace
from tfunet.inside.of_tensorflow import address_of
from tfunet.machine import device
from tfunet.state.home import home_of
from tfunet.state.shared_slot import SharedSlot, with_slots
from tfunet.swap.arena.arena import ALIGNMENT, FIRST_REGION_BYTES, Memory

# How many scalars have a place of their own.
SCALARS = 2**11
_BETWEEN_SCALARS: list[tf.Tensor] = []
# Smaller pieces are not looked for, nor those below this share of the free memory.
LEAST_BYTES, LEAST_SHARE = 2**16, 1 / 2048
# This share and so many blocks stay free, since TensorFlow tries for ten seconds to allocate what
# does not fit. Nothing is looked for where there are fewer blocks.
LEFT_SHARE, LEAST_BLOCKS = 1 / 16, 64


def in_bytes(budget: str | float) -> int:
    """Return the bytes of a budget on each device; ValueError if it has no limit to go by."""
    wanted = parse(budget)
    if isinstance(wanted, int):
        return wanted
    limit = device.device_bytes()
    if limit is None:
        raise ValueError(
            f"swap budget {budget!r} depends on the device's memory, and a CPU has no limit of its "
            "own. Give an amount such as '4GiB', or cap TensorFlow's allocator with "
            "TF_CPU_ALLOCATOR_USE_BFC=true and TF_CPU_BFC_MEM_LIMIT_IN_MB."
        )
    return limit if wanted is None else int(limit * wanted)


def join_regions(budget: str | float | None = None) -> int:
    """Make TensorFlow's capped allocator of a CPU take the rest of its memory in one piece.

    It takes memory in regions, each twice the size of the one before, and no tensor spans two of
    them. So does the allocator of a GPU that takes memory as it needs it: with a budget it takes
    that, on each GPU. Returns the bytes that it had taken before; 0 where the memory is one region.
    Only the first call in a process with a budget does anything.
    """
    cap = device.cpu_cap()
    if cap is not None:
        with device.uncounted():  # The rest of the memory is no need of the run.
            return _join_regions("CPU:0", cap)
    if budget is None or not device.has_regions():
        return 0
    limit = min(in_bytes(budget), device.device_bytes() or 0)
    return max(_join_regions(name, limit) for name in device.own_gpus())


@functools.cache
def _join_regions(name: str, limit: int) -> int:
    # Scalars, which may stay for ever, get gaps of their own: anywhere else they would cut free
    # memory into pieces.
    with tf.device(name):
        small = [
            tf.raw_ops.Empty(shape=[ALIGNMENT // 4], dtype=tf.float32) for _ in range(2 * SCALARS)
        ]
    _BETWEEN_SCALARS.extend(small[::2])
    del small
    used = device.peak_of(name)
    taken, region = 0, FIRST_REGION_BYTES
    while taken < max(used, 1):
        taken, region = taken + region, 2 * region
    while taken < limit:
        # If this does not fit, after TensorFlow's 10 seconds of trying, there was another region.
        with contextlib.suppress(tf.errors.ResourceExhaustedError), tf.device(name):
            tf.raw_ops.Empty(shape=[(limit - taken) // MIB, MIB // 4], dtype=tf.float32)
            break
        taken, region = taken + region, 2 * region
    return min(taken, limit)


def before_step(
    resident: Sequence[int],
    limit_bytes: int,
    first_bytes: int,
    trace: Trace,
    handles: Sequence[tf.Tensor],
) -> Memory:
    """Return a device's memory before a step, beside its variables of `resident` bytes each.

    Tensors that none of the step's ops makes are the batch.
    """
    batch_bytes = sum(
        reader.num_bytes(handle)
        for tensor, handle in zip(trace.tensors, handles, strict=True)
        if tensor.producer < 0 and handle.op.type != "Const"
    )
    return Memory(
        limit_bytes=limit_bytes,
        first_bytes=first_bytes,
        resident=resident,
        more_bytes=max(batch_bytes, more_bytes(resident, limit_bytes)),
    )


def more_bytes(resident: Sequence[int], limit_bytes: int) -> int:
    """Return the bytes of the budget in use beside variables; 0 where the allocator keeps no
    account."""
    most = device.device_bytes()
    used = device.used_bytes() if most is not None else None
    if most is None or used is None:
        return 0
    return max(0, used[0] - sum(resident) - max(0, most - limit_bytes))


def resident_bytes(model: keras.Model) -> int:
    """Return the bytes of the weights and of the optimizer's variables."""
    return sum(variable_bytes(model))


def variable_bytes(model: keras.Model, num_devices: int = 1) -> list[int]:
    """Return the bytes of each weight and of each of the optimizer's variables; see `sizes`."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = optimizer.variables if optimizer else ()
    return sizes((*model.variables, *optimizer), num_devices)


def sizes(variables: Sequence[Any], num_devices: int = 1) -> list[int]:
    """Return the bytes that each variable takes of the device: none if it is off the device.

    What devices share out takes as much of each of the `num_devices` of this process.
    """
    return [
        one.num_bytes // num_devices if isinstance(one, SharedSlot) else reader.num_bytes(one.value)
        for one in with_slots(variables)
        if home_of(one) is None
    ]


def free_pieces() -> tuple[int, ...]:
    """Return the bytes, or little less, of each free piece of a capped CPU's memory, the largest
    last.

    Allocates blocks, never written to, until little is left, and reads their addresses; TensorFlow
    fills the smallest pieces first. Empty on a GPU, and where there is no cap, where the allocator
    keeps no account, or where little is free or only in small pieces.
    """
    cap, used = device.cpu_cap(), device.used_bytes()
    if cap is None or used is None:
        return ()
    # The gaps between scalars only have room for scalars.
    free = cap - used[0] - SCALARS * ALIGNMENT
    block = int(max(LEAST_BYTES, free * LEAST_SHARE)) // ALIGNMENT * ALIGNMENT
    number = int(free * (1 - LEFT_SHARE)) // block - LEAST_BLOCKS
    if number < LEAST_BLOCKS:
        return ()
    with tf.init_scope(), tf.device("CPU:0"), device.uncounted():
        try:
            pieces = _pieces(_addresses(block, number), block)
            # The rest of each piece, too small for a block, is free as well.
            pieces[-1] += max(0, free - block * len(pieces) - sum(pieces))
            # Fails if the rest lies in many small pieces instead.
            _addresses(pieces[-1], 1)
        except tf.errors.ResourceExhaustedError:
            return ()
    return tuple(sorted(pieces))


def _addresses(num_bytes: int, number: int) -> list[int]:
    """Return the addresses of so many blocks, allocated together and freed again."""
    shape = tf.constant([num_bytes // ALIGNMENT, ALIGNMENT])
    blocks = [tf.raw_ops.Empty(shape=shape, dtype=tf.uint8) for _ in range(number)]
    return [address_of(block) for block in blocks]


def _pieces(addresses: list[int], block: int) -> list[int]:
    pieces: list[int] = []
    end = None
    for address in addresses:
        if address == end:
            pieces[-1] += block
        else:
            pieces.append(block)
        end = address + block
    return pieces
