"""Published networks as settings of `unet.build` and `isensee.build`; any option can be changed."""

from typing import Any

import keras

from tfunet.models import isensee, unet
from tfunet.models.options import Shape
from tfunet.models.plans import plan_model
from tfunet.models.preset_settings import base_of


def ronneberger2d(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """The U-Net of Ronneberger et al. 2015.

    Padding is same, where the paper's convolutions are valid and its skips cropped. The paper's
    dropout "at the end of the contracting path" is here at the bottom's output, at rate 0.5.
    """
    return _build("ronneberger2d", image_shape, num_classes, options)


def cicek3d(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """The 3D U-Net of Cicek et al. 2016, with same padding.

    Channels double in each level's second convolution, and the transposed convolutions, without
    bias, keep their number. 19,069,955 parameters beside those of the batch normalization for 3
    channels and 3 classes, as published.
    """
    return _build("cicek3d", image_shape, num_classes, options)


def summit_5_2(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """72,301,856 parameters for 4 channels and 1 class."""
    return _build("summit_5_2", image_shape, num_classes, options)


def summit_5_5(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """232,687,904 parameters for 4 channels and 1 class."""
    return _build("summit_5_5", image_shape, num_classes, options)


def summit_6_2(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """289,357,088 parameters for 4 channels and 1 class."""
    return _build("summit_6_2", image_shape, num_classes, options)


def summit_7_2(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """1,157,578,016 parameters for 4 channels and 1 class."""
    return _build("summit_7_2", image_shape, num_classes, options)


def nnunet2d(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """nnU-Net's plain 2D network for patches of 512 by 512; deep supervision is an option."""
    return _build("nnunet2d", image_shape, num_classes, options)


def nnunet3d(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """nnU-Net's plain 3D network for patches of 128 cubed; deep supervision is an option."""
    return _build("nnunet3d", image_shape, num_classes, options)


def isensee_3dunetcnn(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """Isensee's network as arranged in 3DUnetCNN, the code of IBM's large-model case study.

    Blocks normalize and activate after each convolution, localization modules have half the
    channels, convolutions have a bias, and the slope is that of LeakyReLU in Keras 2.
    """
    return _build("isensee_3dunetcnn", image_shape, num_classes, options)


def _build(name: str, image_shape: Shape, num_classes: int, options: dict[str, Any]) -> keras.Model:
    """Make the layers of the published settings, the user's options over them."""
    planned = plan_model(name, options, image_shape=image_shape, num_classes=num_classes)
    return {"unet": unet, "isensee": isensee}[base_of(name)].assemble(planned)
