"""The arithmetic of a step is that of the layers that are made."""

import math

import pytest

from tfunet.models import unet
from tfunet.models.unet_flops import PASSES, step_flops


@pytest.mark.parametrize(
    ("image_shape", "options"),
    [
        ((32, 64, 3), {"filters": 4, "levels": 3}),
        ((16, 16, 32, 2), {"filters": 2, "levels": 2, "convolutions": 3, "max_filters": 4}),
    ],
)
def test_flops_are_those_of_the_convolutions(image_shape, options):
    model = unet.build(image_shape=image_shape, num_classes=3, **options)
    products = 0
    for layer in model.layers:
        if not hasattr(layer, "kernel"):
            continue
        is_transposed = "Transpose" in type(layer).__name__
        voxels = (layer.input if is_transposed else layer.output).shape[1:-1]
        products += math.prod(voxels) * math.prod(layer.kernel.shape)
    flops = step_flops(image_shape, num_classes=3, batch=5, **options)
    assert flops == 2 * PASSES * 5 * products
