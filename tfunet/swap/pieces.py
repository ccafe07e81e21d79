"""What is free of an allocator's memory, in pieces: where a tensor finds room hangs on them."""

import tensorflow as tf

from tfunet.swap import budget
from tfunet.swap.arena import ALIGNMENT

# Smaller pieces are not looked for, nor those below such a part of what is free.
LEAST_BYTES, LEAST_SHARE = 2**16, 1 / 2048
# Such a part stays free: what does not fit TensorFlow tries for ten seconds.
LEFT_SHARE = 1 / 16


def free_pieces() -> tuple[int, ...]:
    """Return the bytes of each piece of a CPU's capped memory that is free now, the largest last,
    or little less than that.

    Blocks are allocated until little is left, and looked up where they lie; TensorFlow fills the
    smallest pieces first. Nothing is written to them. Empty where there is no cap, where the
    allocator keeps no account, where something else took what was left meanwhile, and on a GPU.
    """
    cap, used = budget.cpu_cap(), budget.used_bytes()
    if cap is None or used is None:
        return ()
    free = cap - used[0]
    block = int(max(LEAST_BYTES, free * LEAST_SHARE)) // ALIGNMENT * ALIGNMENT
    with tf.init_scope(), tf.device("CPU:0"), budget.uncounted():
        shape = tf.constant([block])
        number = int(free * (1 - LEFT_SHARE)) // block
        try:
            blocks = [tf.raw_ops.Empty(shape=shape, dtype=tf.uint8) for _ in range(number)]
        except tf.errors.ResourceExhaustedError:
            return ()
        # The memory itself: `numpy()` would copy it.
        addresses = [one._numpy().__array_interface__["data"][0] for one in blocks]
    pieces: list[int] = []
    end = None
    for address in addresses:
        if address == end:
            pieces[-1] += block
        else:
            pieces.append(block)
        end = address + block
    if pieces:
        # Free as well: what is left of each piece, and between scalars.
        lost = block * len(pieces) + budget.SCALARS * ALIGNMENT
        pieces[-1] += max(0, free - lost - sum(pieces))
    return tuple(sorted(pieces))
