"""The columns that TensorFlow's own gradients of a convolution unroll on a CPU.

They unroll as many images at once as fill a working set, whatever the batch is. In 2D the set has a
fixed size, in 3D that of the last cache, and nothing is unrolled where that takes too many times
the memory of the tensors. The gradient of an image unrolls one image at a time if there is only
one, and in 2D if each thread has enough to do with one. oneDNN and GPUs unroll nothing.
(conv_grad_filter_ops.cc, conv_grad_input_ops.h and conv_grad_ops_3d.cc of TensorFlow)
"""

import os
import re
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Any

WORKING_SET_BYTES = 30 * 2**20
THREAD_BYTES = 2**18
MOST_TIMES = 25
# A slab reads rows of its neighbours and padding, so its tensors are larger than their share.
MOST_TIMES_OF_SLAB = 32
# The size of the last cache; glibc's name for it is not in os.sysconf_names.
LEVEL3_CACHE_SIZE = 194


@dataclass(frozen=True, kw_only=True)
class Unrolled:
    """The columns of one gradient of a convolution.

    Args:
        working_set_items: As many numbers fill the working set.
        voxels: Voxels of one image of the upstream gradient.
        column_items: Numbers in a column: the voxels and channels that a filter reads.
        filters: Channels of the upstream gradient.
        tensor_items: Numbers in the image and the upstream gradient.
        one_from_items: An image with so many numbers is unrolled alone.
        is_limited: Whether nothing is unrolled where it would be too much.
    """

    working_set_items: int
    voxels: int
    column_items: int
    filters: int
    tensor_items: int
    item_bytes: int
    one_from_items: float
    is_limited: bool

    def num_bytes(self, share: float = 1.0) -> int:
        """Return the bytes of the columns where a share of the op's rows runs at once.

        They do not shrink with the share: of smaller images, more fill the working set.
        """
        voxels, filter_items = ceil(share * self.voxels), self.column_items * self.filters
        image_items = voxels * (self.column_items + self.filters) + filter_items
        is_alone = image_items >= self.one_from_items
        images = 1 if is_alone else ceil(self.working_set_items / image_items)
        items = images * voxels * self.column_items
        tensor_items = share * self.tensor_items + filter_items
        most_times = MOST_TIMES if share == 1 else MOST_TIMES_OF_SLAB
        is_too_much = self.is_limited and items // tensor_items > most_times
        return 0 if is_too_much else self.item_bytes * items


def unrolled(op: Any) -> Unrolled | None:
    """Return what an op of TensorFlow unrolls; None for one that unrolls nothing."""
    if not re.match(r"Conv[23]DBackprop(Filter|Input)", op.type):
        return None
    from tfunet.inside.of_tensorflow import uses_onednn

    gradient = op.inputs[2]
    is_of_filter = "Filter" in op.type
    image, filters = (
        (op.inputs[0], op.outputs[0]) if is_of_filter else (op.outputs[0], op.inputs[1])
    )
    are_known = all(tensor.shape.is_fully_defined() for tensor in (image, gradient, filters))
    if uses_onednn() or "GPU" in op.device or not are_known:
        return None
    is_3d = op.type.startswith("Conv3D")
    is_last = not op.get_attr("data_format").startswith(b"NC")
    item_bytes = filters.dtype.size
    return Unrolled(
        working_set_items=(_last_cache_bytes() if is_3d else WORKING_SET_BYTES) // item_bytes,
        voxels=prod(gradient.shape[1:-1] if is_last else gradient.shape[2:]),
        column_items=prod(filters.shape[:-1]),
        filters=filters.shape[-1],
        tensor_items=prod(image.shape) + prod(gradient.shape),
        item_bytes=item_bytes,
        one_from_items=inf if is_of_filter else _one_from_items(image, item_bytes, is_3d=is_3d),
        is_limited=is_3d,
    )


def _one_from_items(image: Any, item_bytes: int, *, is_3d: bool) -> float:
    import tensorflow as tf

    if image.shape[0] == 1:
        return 0
    threads = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    return inf if is_3d else threads * (THREAD_BYTES // item_bytes)


def _last_cache_bytes() -> int:
    try:
        return max(0, os.sysconf(LEVEL3_CACHE_SIZE))
    except (OSError, ValueError):
        return 0
