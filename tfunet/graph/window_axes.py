"""How far convolutions and poolings of a traced step reach, along each spatial axis."""

from dataclasses import dataclass

import tensorflow as tf

from tfunet.geometry.reach import Reach, kernel_reach

CONVOLUTIONS = frozenset({"Conv2D", "Conv3D"})
FILTER_GRADIENTS = frozenset({"Conv2DBackpropFilter", "Conv3DBackpropFilterV2"})
# Transposed convolutions are these ops, too.
INPUT_GRADIENTS = frozenset({"Conv2DBackpropInput", "Conv3DBackpropInputV2"})
POOLS = frozenset({"AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D"})
POOL_GRADIENTS = frozenset({"MaxPool3DGrad", "MaxPoolGrad"})


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A spatial axis of a convolution or a pooling: rows of input and output, and its reach."""

    extent: int
    out_extent: int
    reach: Reach

    @property
    def padding(self) -> tuple[int, int]:
        """Rows of padding before the input, and after it."""
        return self.reach.padding(0, self.out_extent, self.extent)


def window_axes(op: tf.Operation) -> list[Axis] | None:
    """Return the spatial axes of a convolution or a pooling, or of the one that `op` is a gradient
    of; None if the axes or the padding are in another form than Keras has them."""
    if not channels_last(op) or op.get_attr("padding") not in (b"SAME", b"VALID"):
        return None
    if op.type in CONVOLUTIONS:
        source, kernel, target = op.inputs[0].shape, op.inputs[1].shape, op.outputs[0].shape
    elif op.type in FILTER_GRADIENTS:
        source, kernel, target = op.inputs[0].shape, op.outputs[0].shape, op.inputs[2].shape
    elif op.type in INPUT_GRADIENTS:
        source, kernel, target = op.outputs[0].shape, op.inputs[1].shape, op.inputs[2].shape
    else:
        source, kernel = op.inputs[0].shape, op.get_attr("ksize")[1:]
        target = (op.inputs[1] if op.type in POOL_GRADIENTS else op.outputs[0]).shape
    is_pool = op.type in POOLS | POOL_GRADIENTS
    strides = op.get_attr("strides")
    dilations = [1] * len(strides) if is_pool else op.get_attr("dilations")
    is_same = op.get_attr("padding") == b"SAME"
    return [
        Axis(
            extent=source[axis],
            out_extent=target[axis],
            reach=kernel_reach(
                kernel[axis - 1],
                stride=strides[axis],
                dilation=dilations[axis],
                same_extent=source[axis] if is_same else None,
            ),
        )
        for axis in range(1, source.rank - 1)
    ]


def channels_last(op: tf.Operation) -> bool:
    """Whether the channels are the last axis of what a convolution, pooling or bias reads."""
    return op.get_attr("data_format").decode() in ("NHWC", "NDHWC")
