"""What is free of an allocator's memory, in pieces: where a tensor finds room hangs on them."""

import tensorflow as tf

from tfunet.machine import device
from tfunet.swap.arena import budget
from tfunet.swap.arena.arena import ALIGNMENT

# Smaller pieces are not looked for, nor those below such a part of what is free.
LEAST_BYTES, LEAST_SHARE = 2**16, 1 / 2048
# Such a part stays free, and so many blocks: what does not fit TensorFlow tries for
# ten seconds. Nothing is looked for where there are fewer.
LEFT_SHARE, LEAST_BLOCKS = 1 / 16, 64


def free_pieces() -> tuple[int, ...]:
    """Return the bytes of each piece of a CPU's capped memory that is free now, the largest last,
    or little less than that.

    Blocks are allocated until little is left, and looked up where they lie; TensorFlow fills the
    smallest pieces first. Nothing is written to them. Empty where there is no cap, where the
    allocator keeps no account, where little is free or in small pieces only, and on a GPU.
    """
    cap, used = device.cpu_cap(), device.used_bytes()
    if cap is None or used is None:
        return ()
    # Between scalars there is room for scalars alone.
    free = cap - used[0] - budget.SCALARS * ALIGNMENT
    block = int(max(LEAST_BYTES, free * LEAST_SHARE)) // ALIGNMENT * ALIGNMENT
    number = int(free * (1 - LEFT_SHARE)) // block - LEAST_BLOCKS
    if number < LEAST_BLOCKS:
        return ()
    with tf.init_scope(), tf.device("CPU:0"), device.uncounted():
        try:
            pieces = _pieces(_addresses(block, number), block)
            # Free as well: what is left of each piece that is too small for a block.
            pieces[-1] += max(0, free - block * len(pieces) - sum(pieces))
            # Of small pieces that nobody looked for there may be many.
            _addresses(pieces[-1], 1)
        except tf.errors.ResourceExhaustedError:
            return ()
    return tuple(sorted(pieces))


def _addresses(num_bytes: int, number: int) -> list[int]:
    """Return where so many blocks lie that are there together, and free again."""
    shape = tf.constant([num_bytes // ALIGNMENT, ALIGNMENT])
    blocks = [tf.raw_ops.Empty(shape=shape, dtype=tf.uint8) for _ in range(number)]
    # The memory itself: `numpy()` would copy it.
    return [one._numpy().__array_interface__["data"][0] for one in blocks]


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
