"""The arithmetic of a step with a U-Net, before its layers are made. Imports no Keras."""

import math
from collections.abc import Sequence
from typing import Any

from tfunet.models.unet_plan import UnetOptions, plan_widths

# The backward pass multiplies twice as much as the forward pass: for inputs and for kernels.
PASSES = 3


def step_flops(
    image_shape: Sequence[int], *, num_classes: int, batch: int, **options: Any
) -> float:
    """Return the multiplications and additions of the convolutions of a training step.

    Args:
        image_shape: (*spatial, channels).
        num_classes: Labels of the mask, with background.
        batch: Samples of a step.
        **options: Options of the model "unet", without an encoder.
    """
    *spatial, channels = image_shape
    widths = plan_widths(UnetOptions(**options))
    rank, total = len(spatial), 0
    for level, row in enumerate(widths.encoder):
        inputs = [channels if level == 0 else widths.encoder[level - 1][-1], *row[:-1]]
        total += _voxels(spatial, level) * 3**rank * _products(inputs, row)
    below = widths.encoder[-1][-1]
    for level in reversed(range(len(widths.decoder))):
        row, count = widths.decoder[level], widths.upsampling[level]
        # Each voxel of a transposed convolution of size 2 and stride 2 has one voxel below.
        total += _voxels(spatial, level) * below * count
        inputs = [widths.encoder[level][-1] + count, *row[:-1]]
        total += _voxels(spatial, level) * 3**rank * _products(inputs, row)
        below = row[-1]
    total += _voxels(spatial, 0) * below * num_classes
    return 2.0 * PASSES * batch * total


def _voxels(spatial: Sequence[int], level: int) -> int:
    return math.prod(size // 2**level for size in spatial)


def _products(inputs: Sequence[int], outputs: Sequence[int]) -> int:
    return sum(first * second for first, second in zip(inputs, outputs, strict=True))
