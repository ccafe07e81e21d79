"""The pieces in which a capped CPU's memory is free: a tensor needs one that is large enough."""

import tensorflow as tf

from tfunet.machine import device
from tfunet.swap.arena import budget
from tfunet.swap.arena.arena import ALIGNMENT

# Smaller pieces are not looked for, nor those below this share of the free memory.
LEAST_BYTES, LEAST_SHARE = 2**16, 1 / 2048
# This share and so many blocks stay free, since TensorFlow tries for ten seconds to allocate what
# does not fit. Nothing is looked for where there are fewer blocks.
LEFT_SHARE, LEAST_BLOCKS = 1 / 16, 64


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
    free = cap - used[0] - budget.SCALARS * ALIGNMENT
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
    # The memory itself: `numpy()` would copy it.
    return [block._numpy().__array_interface__["data"][0] for block in blocks]


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
