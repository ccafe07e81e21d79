"""The layers that networks are made of, in two or three spatial dimensions, channels last."""

from typing import Any

import keras

from tfunet.models.style import DEFAULT_GROUPS, DEFAULT_NEGATIVE_SLOPE, Style

# All of ACTIVATIONS pass positive values and damp negative ones: He et al. 2015 (arXiv:1502.01852).
KERNEL_INITIALIZER = "he_normal"


def convolve(
    tensor: Any, filters: int, style: Style, name: str, *, size: int = 3, stride: int = 1
) -> Any:
    """Convolve with `filters` cubes of `size`, same padding."""
    layer = {2: keras.layers.Conv2D, 3: keras.layers.Conv3D}[style.dimensions]
    return layer(
        filters,
        size,
        strides=stride,
        padding="same",
        use_bias=style.convolution_bias,
        kernel_initializer=KERNEL_INITIALIZER,
        name=name,
    )(tensor)


def segment(tensor: Any, num_classes: int, dimensions: int, name: str, *, bias: bool = True) -> Any:
    """Logits from a convolution of size 1, in float32 under every precision policy.

    `keras.config.floatx` is float32 unless somebody asks for float64, as tests of exactness do.
    """
    layer = {2: keras.layers.Conv2D, 3: keras.layers.Conv3D}[dimensions]
    return layer(
        num_classes,
        1,
        use_bias=bias,
        kernel_initializer="glorot_uniform",
        dtype=keras.config.floatx(),
        name=name,
    )(tensor)


def drop(tensor: Any, style: Style, name: str) -> Any:
    """Drop whole feature maps (Tompson et al. 2015), because neighbouring voxels are alike."""
    if style.dropout == 0:
        return tensor
    layer = {2: keras.layers.SpatialDropout2D, 3: keras.layers.SpatialDropout3D}[style.dimensions]
    return layer(style.dropout, name=name)(tensor)


def normalize(tensor: Any, style: Style, name: str) -> Any:
    """Normalize over the batch, the replicas' batches, groups of channels or single channels."""
    affine = {"center": style.affine, "scale": style.affine, "name": name}
    match style.normalization:
        case "none":
            return tensor
        case "batch":
            return keras.layers.BatchNormalization(**affine)(tensor)
        case "synchronized_batch":
            return keras.layers.BatchNormalization(synchronized=True, **affine)(tensor)
        case "group":
            groups = style.groups or DEFAULT_GROUPS
            return keras.layers.GroupNormalization(groups, epsilon=1e-5, **affine)(tensor)
        case _:
            return keras.layers.GroupNormalization(-1, epsilon=1e-5, **affine)(tensor)


def activate(tensor: Any, style: Style, name: str) -> Any:
    """Apply the style's activation."""
    match style.activation:
        case "relu":
            return keras.layers.ReLU(name=name)(tensor)
        case "leaky_relu":
            slope = style.negative_slope
            slope = DEFAULT_NEGATIVE_SLOPE if slope is None else slope
            return keras.layers.LeakyReLU(slope, name=name)(tensor)
        case _:
            return keras.layers.Activation(style.activation, name=name)(tensor)


def block(
    tensor: Any, filters: int, style: Style, name: str, *, size: int = 3, stride: int = 1
) -> Any:
    """Convolution, dropout, normalization, activation: the order of nnU-Net and torchgpipe."""
    tensor = unactivated_block(tensor, filters, style, name, size=size, stride=stride)
    return activate(tensor, style, f"{name}_activation")


def unactivated_block(
    tensor: Any, filters: int, style: Style, name: str, *, size: int = 3, stride: int = 1
) -> Any:
    """A block without its activation, to be added to a shortcut first."""
    tensor = convolve(tensor, filters, style, f"{name}_convolution", size=size, stride=stride)
    tensor = drop(tensor, style, f"{name}_dropout")
    return normalize(tensor, style, f"{name}_normalization")


def upsample(
    tensor: Any, kind: str, dimensions: int, name: str, *, dtype: str | None = None
) -> Any:
    """Double each spatial size by repetition ("nearest") or interpolation ("linear")."""
    layer = {2: keras.layers.UpSampling2D, 3: keras.layers.UpSampling3D}[dimensions]
    tensor = layer(2, dtype=dtype, name=name)(tensor)
    return _smooth(tensor, dimensions, name, dtype) if kind == "linear" else tensor


def _smooth(tensor: Any, dimensions: int, name: str, dtype: str | None) -> Any:
    """Turn repetition into linear interpolation, with half-pixel centres and repeated borders.

    Repeated values, convolved with (1, 2, 1) / 4 in each dimension, are the interpolated ones. That
    is the mean of neighbours, taken twice. Keras itself interpolates in two dimensions only, and
    there in float32 with several copies.
    """
    layer = {2: keras.layers.AveragePooling2D, 3: keras.layers.AveragePooling3D}[dimensions]
    padding = [[0, 0], *[[1, 1]] * dimensions, [0, 0]]
    tensor = keras.ops.pad(tensor, padding, mode="symmetric")
    for half in (1, 2):
        tensor = layer(2, strides=1, dtype=dtype, name=f"{name}_mean{half}")(tensor)
    return tensor


def up_convolve(tensor: Any, filters: int, style: Style, name: str, *, bias: bool) -> Any:
    """Double each spatial size by a transposed convolution of size 2 and stride 2."""
    layer = {2: keras.layers.Conv2DTranspose, 3: keras.layers.Conv3DTranspose}[style.dimensions]
    return layer(
        filters,
        2,
        strides=2,
        padding="same",
        use_bias=bias,
        kernel_initializer=KERNEL_INITIALIZER,
        name=name,
    )(tensor)
