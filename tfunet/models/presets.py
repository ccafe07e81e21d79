"""Published networks as settings of `unet.build` and `isensee.build`; any option can be changed."""

from collections.abc import Callable
from typing import Any

import keras

from tfunet.config.refs import call
from tfunet.models import isensee, unet
from tfunet.models.options import Shape, check_at_least, check_dimensions


def ronneberger2d(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """The U-Net of Ronneberger et al. 2015.

    Padding is same, where the paper's convolutions are valid and its skips cropped. The paper's
    dropout "at the end of the contracting path" is here at the bottom's output, at rate 0.5.
    """
    published = {
        "filters": 64,
        "normalization": "none",
        "activation": "relu",
        "bottom_dropout": 0.5,
    }
    check_dimensions("ronneberger2d", image_shape, 2)
    return _build(unet.build, image_shape, num_classes, published, options)


def cicek3d(
    *, image_shape: Shape, num_classes: int, filters: int = 32, levels: int = 3, **options: Any
) -> keras.Model:
    """The 3D U-Net of Cicek et al. 2016, with same padding.

    Channels double in each level's second convolution, and the transposed convolutions, without
    bias, keep their number. 19,069,955 parameters beside those of the batch normalization for 3
    channels and 3 classes, as published.
    """
    check_dimensions("cicek3d", image_shape, 3)
    check_at_least("filters", filters, 1)
    check_at_least("levels", levels, 1)
    doubled = [2 * filters * 2**level for level in range(levels + 1)]
    published = {
        "levels": levels,
        "normalization": "batch",
        "activation": "relu",
        "bias": True,
        "upsampling_bias": False,
        "encoder_filters": [[count // 2, count] for count in doubled],
        "decoder_filters": [[count, count] for count in doubled[:-1]],
        "upsampling_filters": doubled[1:],
    }
    return _build(unet.build, image_shape, num_classes, published, options)


def summit_5_2(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """72,301,856 parameters for 4 channels and 1 class."""
    return _summit("summit_5_2", image_shape, num_classes, options, levels=5, convolutions=2)


def summit_5_5(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """232,687,904 parameters for 4 channels and 1 class."""
    return _summit("summit_5_5", image_shape, num_classes, options, levels=5, convolutions=5)


def summit_6_2(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """289,357,088 parameters for 4 channels and 1 class."""
    return _summit("summit_6_2", image_shape, num_classes, options, levels=6, convolutions=2)


def summit_7_2(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """1,157,578,016 parameters for 4 channels and 1 class."""
    return _summit("summit_7_2", image_shape, num_classes, options, levels=7, convolutions=2)


def nnunet2d(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """nnU-Net's plain 2D network for patches of 512 by 512; deep supervision is an option."""
    check_dimensions("nnunet2d", image_shape, 2)
    published = {"levels": 7, "max_filters": 512, "downsampling": "strided", "bias": True}
    return _build(unet.build, image_shape, num_classes, published, options)


def nnunet3d(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """nnU-Net's plain 3D network for patches of 128 cubed; deep supervision is an option."""
    check_dimensions("nnunet3d", image_shape, 3)
    published = {"levels": 5, "max_filters": 320, "downsampling": "strided", "bias": True}
    return _build(unet.build, image_shape, num_classes, published, options)


def isensee_3dunetcnn(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """Isensee's network as arranged in 3DUnetCNN, the code of IBM's large-model case study.

    Blocks normalize and activate after each convolution, localization modules have half the
    channels, convolutions have a bias, and the slope is that of LeakyReLU in Keras 2.
    """
    published = {
        "pre_activation": False,
        "narrow_localization": True,
        "bias": True,
        "negative_slope": 0.3,
    }
    return _build(isensee.build, image_shape, num_classes, published, options)


def _summit(
    name: str,
    image_shape: Shape,
    num_classes: int,
    options: dict[str, Any],
    *,
    levels: int,
    convolutions: int,
) -> keras.Model:
    """The U-Net of torchgpipe's benchmarks, as trained in "Toward ... Segmentation on Summit".

    The bottom's last convolution and all of each level on the way up have half the channels, so
    that up-sampling by repetition needs no convolution of its own.
    """
    check_dimensions(name, image_shape, 2)
    filters = options.pop("filters", 64)
    check_at_least("filters", filters, 2)
    counts = [filters * 2**level for level in range(levels + 1)]
    published = {
        "levels": levels,
        "normalization": "instance",
        "affine": False,
        "activation": "leaky_relu",
        "negative_slope": 0.01,
        "dropout": 0.1,
        "bias": False,
        "output_bias": False,
        "upsampling": "nearest",
        "encoder_filters": [[count] * convolutions for count in counts[:-1]]
        + [[counts[-1]] * (convolutions - 1) + [counts[-1] // 2]],
        "decoder_filters": [[count // 2] * convolutions for count in counts[:-1]],
    }
    return _build(unet.build, image_shape, num_classes, published, options)


def _build(
    builder: Callable[..., keras.Model],
    image_shape: Shape,
    num_classes: int,
    published: dict[str, Any],
    options: dict[str, Any],
) -> keras.Model:
    """Call the builder with the published settings, the user's options over them."""
    settings = {**published, **options}
    # The published slope is no longer meant where the user asks for another activation.
    if settings.get("activation", "leaky_relu") != "leaky_relu" and "negative_slope" not in options:
        settings.pop("negative_slope", None)
    return call("model", builder, settings, image_shape=image_shape, num_classes=num_classes)
