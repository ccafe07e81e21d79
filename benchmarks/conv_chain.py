"""A chain of convolutions that DistConv and ShardTensor split too; see spatial_peers.py."""

from typing import Any

import keras
from conv_sizes import CHANNELS, KERNEL, LAYERS


def build(image_shape: tuple[int, ...], num_classes: int) -> Any:
    """Return `LAYERS` convolutions in 3D, and one of a single voxel to the classes."""
    image = tensor = keras.Input(image_shape)
    for _ in range(LAYERS):
        tensor = keras.layers.Conv3D(CHANNELS, KERNEL, padding="same", activation="relu")(tensor)
    return keras.Model(image, keras.layers.Conv3D(num_classes, 1)(tensor))
