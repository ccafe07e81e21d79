"""The published networks as settings of other models. Imports no Keras."""

from collections.abc import Mapping
from typing import Any

from tfunet.models.options import Shape, check_at_least, check_dimensions

UNET_LEVELS = {"summit_5_2": 5, "summit_5_5": 5, "summit_6_2": 6, "summit_7_2": 7}
DIMENSIONS = {
    **dict.fromkeys(("ronneberger2d", "nnunet2d", *UNET_LEVELS), 2),
    **dict.fromkeys(("cicek3d", "nnunet3d"), 3),
}
NNUNET = {"downsampling": "strided", "bias": True}
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    # The paper's dropout "at the end of the contracting path" is at the bottom's output.
    "ronneberger2d": {
        "filters": 64,
        "normalization": "none",
        "activation": "relu",
        "bottom_dropout": 0.5,
    },
    "nnunet2d": {"levels": 7, "max_filters": 512, **NNUNET},
    "nnunet3d": {"levels": 5, "max_filters": 320, **NNUNET},
    "isensee_3dunetcnn": {
        "pre_activation": False,
        "narrow_localization": True,
        "bias": True,
        "negative_slope": 0.3,
    },
    "cosmoflow2020": {"pool_size": 3},
}


def base_of(model: str) -> str:
    """Return the model whose options a model has."""
    if model in DIMENSIONS:
        return "unet"
    return "isensee" if model == "isensee_3dunetcnn" else model


def settings_of(model: str, image_shape: Shape, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the published settings of a model, the user's options over them."""
    if model in DIMENSIONS:
        check_dimensions(model, image_shape, DIMENSIONS[model])
    given = dict(options)
    if model == "cicek3d":
        published = _cicek(given.pop("filters", 32), given.pop("levels", 3))
    elif model in UNET_LEVELS:
        convolutions = given.pop("convolutions", int(model.rpartition("_")[2]))
        published = _summit(given.pop("filters", 64), UNET_LEVELS[model], convolutions)
    else:
        published = dict(PUBLISHED.get(model, {}))
    settings = {**published, **given}
    # The published slope is no longer meant where the user asks for another activation.
    if settings.get("activation", "leaky_relu") != "leaky_relu" and "negative_slope" not in given:
        settings.pop("negative_slope", None)
    return settings


def _cicek(filters: int, levels: int) -> dict[str, Any]:
    check_at_least("filters", filters, 1)
    check_at_least("levels", levels, 1)
    doubled = [2 * filters * 2**level for level in range(levels + 1)]
    return {
        "levels": levels,
        "normalization": "batch",
        "activation": "relu",
        "bias": True,
        "upsampling_bias": False,
        "encoder_filters": [[count // 2, count] for count in doubled],
        "decoder_filters": [[count, count] for count in doubled[:-1]],
        "upsampling_filters": doubled[1:],
    }


def _summit(filters: int, levels: int, convolutions: int) -> dict[str, Any]:
    """The U-Net of torchgpipe's benchmarks, as trained in "Toward ... Segmentation on Summit".

    The bottom's last convolution and all of each level on the way up have half the channels, so
    that up-sampling by repetition needs no convolution of its own.
    """
    check_at_least("filters", filters, 2)
    check_at_least("convolutions", convolutions, 1)
    counts = [filters * 2**level for level in range(levels + 1)]
    return {
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
