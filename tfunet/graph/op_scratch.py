"""Scratch memory of ops that is known before they run."""

import os
from math import ceil, prod

import tensorflow as tf

from tfunet.machine.device import uses_onednn

# TensorFlow's own gradient of a filter on a CPU unrolls images into columns, as many at once as
# fill a working set, whatever the batch is. In 2D the set has a fixed size, in 3D that of the
# last cache, and nothing is unrolled where that takes too many times the memory of the tensors
# (conv_grad_filter_ops.cc and conv_grad_ops_3d.cc).
WORKING_SET_BYTES = 30 * 2**20
MOST_TIMES = 25
# The size of the last cache; glibc's name for it is not in os.sysconf_names.
LEVEL3_CACHE_SIZE = 194


def unrolled_bytes(op: tf.Operation, share: float = 1.0) -> int:
    """Return the bytes of the columns that a filter's gradient unrolls; 0 for any other op.

    oneDNN and GPUs unroll nothing. `share` is the share of the op's rows that run at once.
    """
    if not op.type.startswith(("Conv2DBackpropFilter", "Conv3DBackpropFilter")):
        return 0
    image, _, gradient = op.inputs
    filters = op.outputs[0]
    shapes = (image.shape, gradient.shape, filters.shape)
    if uses_onednn() or "GPU" in op.device or not all(map(tf.TensorShape.is_fully_defined, shapes)):
        return 0
    is_3d = op.type.startswith("Conv3D")
    working_set_bytes = _last_cache_bytes() if is_3d else WORKING_SET_BYTES
    is_last = not op.get_attr("data_format").startswith(b"NC")
    voxels = ceil(share * prod(gradient.shape[1:-1] if is_last else gradient.shape[2:]))
    unrolled, channels = prod(filters.shape[:-1]), filters.shape[-1]
    item_bytes = filters.dtype.size
    image_items = voxels * (unrolled + channels) + unrolled * channels
    images = ceil(working_set_bytes // item_bytes / image_items)
    items = images * voxels * unrolled
    tensor_items = share * (prod(image.shape) + prod(gradient.shape)) + prod(filters.shape)
    return 0 if is_3d and items // tensor_items > MOST_TIMES else items * item_bytes


def _last_cache_bytes() -> int:
    try:
        return max(0, os.sysconf(LEVEL3_CACHE_SIZE))
    except (OSError, ValueError):
        return 0
