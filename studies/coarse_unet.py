"""A U-Net that sees a volume at a lower resolution, and labels it at the volume's own.

For studies of resolution: both networks train on the same patches, and are scored on the same
masks. Means of blocks go in, and linear interpolation between the logits comes out.
"""

from typing import Any

import keras

from tfunet.models import unet
from tfunet.models.blocks import upsample

COARSER = (1, 2)


def build(
    *, image_shape: tuple[int, ...], num_classes: int, coarser: int = 1, **options: Any
) -> keras.Model:
    """Return the U-Net of `tfunet models show unet`, which sees `coarser` voxels as one.

    `coarser` is 1 or 2, and `options` are those of the U-Net.
    """
    if coarser not in COARSER:
        raise ValueError(f"coarser must be 1 or 2, got {coarser!r}.")
    *spatial, channels = image_shape
    if coarser == 1:
        return unet.build(image_shape=image_shape, num_classes=num_classes, **options)
    pool = {2: keras.layers.AveragePooling2D, 3: keras.layers.AveragePooling3D}[len(spatial)]
    shape = (*(size // coarser for size in spatial), channels)
    network = unet.build(image_shape=shape, num_classes=num_classes, **options)
    image = keras.Input(tuple(image_shape), name="image")
    logits = network(pool(coarser, name="coarser")(image))
    finer = upsample(logits, "linear", len(spatial), "finer", dtype="float32")
    return keras.Model(image, finer, name="coarse_unet")
