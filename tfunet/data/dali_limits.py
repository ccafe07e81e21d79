"""What NVIDIA DALI can decode and augment, and what it holds. Imports no TensorFlow.

DALI does not mirror at the border. So each patch is first surrounded by as much of its mirror image
as the sample shows.
"""

import math
from collections.abc import Sequence

from tfunet.config.augmentation import Amount, Augmentation, chosen_axes
from tfunet.config.not_installed import NotInstalledError
from tfunet.data.encoded import EncodedCases
from tfunet.data.source import DataSource

AFFINE = ("rotation", "scale", "shear", "translation")
GREY = ("blur", "brightness", "contrast", "gamma", "noise")
INSTEAD = "pipeline = 'tf' does it"
# Patch lengths on each side of the patch: 25 times its pixels.
MOST_LENGTHS = 2
# Pipelines of DALI that work on a batch each.
AT_ONCE = 2


def encoded_cases(source: DataSource) -> EncodedCases:
    """Return the files that DALI decodes; ValueError, which says why, if it cannot."""
    try:
        import nvidia.dali  # noqa: F401  # that it loads is what is asked
    except ImportError as error:
        raise NotInstalledError(
            f"pipeline = 'dali' needs NVIDIA DALI, which cannot be imported ({error}). Install it "
            f"with: pip install 'tfunet[dali]'. Or leave it out: {INSTEAD}, too."
        ) from error
    try:
        if source.encoded is None:
            raise ValueError("the data set has none")
        return source.encoded()
    except ValueError as error:
        raise ValueError(
            "pipeline = 'dali' decodes planes in PNG, JPEG and TIFF files, whose masks hold a "
            f"value a pixel; {source.name!r}: {error}. Leave it out: {INSTEAD}."
        ) from error


def check_patch(augmentation: Augmentation, patch: Sequence[int]) -> None:
    """Raise ValueError if samples of this spatial shape need too much of the mirror image."""
    for axis, (pixels, length) in enumerate(zip(farthest(augmentation, patch), patch, strict=True)):
        most = MOST_LENGTHS * (length - 1)
        if pixels > most > 0:
            raise ValueError(
                "Rotation, scale, shear and translation together may reach "
                f"{math.ceil(pixels)} pixels beyond the patch of {length} along axis {axis}; DALI "
                f"needs the mirror image there in memory, and at most {most} pixels are allowed. "
                f"Choose smaller ranges, or leave out pipeline = 'dali': {INSTEAD}."
            )


def held_pixels(
    augmentation: Augmentation, patch: Sequence[int], shapes: Sequence[Sequence[int]]
) -> int:
    """Return of how many pixels DALI holds image and mask for each sample of a batch, at most."""
    beyond = farthest(augmentation, patch)
    mirrored = math.prod(
        length + 2 * max(pixels, 0) for pixels, length in zip(beyond, patch, strict=True)
    )
    grey = sum(getattr(augmentation, name) is not None for name in GREY)
    # A case: its file, decoded, normalised. A patch: cropped, in and out of each op.
    whole = max(map(math.prod, shapes))
    held = 3 * whole + math.prod(patch) * (3 + 2 * grey) + 2 * math.ceil(mirrored)
    return AT_ONCE * held


def farthest(augmentation: Augmentation, patch: Sequence[int]) -> list[float]:
    """Return an upper bound of how far beyond the patch, along each axis, a pixel may come from.

    It follows from the bounds of each augmentation alone, and is not the least one.
    """
    rank = len(patch)
    middle = [(length - 1) / 2 for length in patch]
    away = list(middle)
    if augmentation.translation is not None:
        for axis in chosen_axes(augmentation.translation.axes, rank):
            away[axis] += _most(augmentation.translation) * patch[axis]
    if augmentation.rotation is not None:
        diagonal = math.hypot(*away)
        sine = math.sin(math.radians(min(_most(augmentation.rotation), 90)))
        away = [
            min(along + sine * across, diagonal)
            for along, across in zip(away, reversed(away), strict=True)
        ]
    if augmentation.shear is not None:
        away[0] += math.tan(math.radians(_most(augmentation.shear))) * away[1]
    if augmentation.scale is not None:
        for axis in chosen_axes(augmentation.scale.axes, rank):
            away[axis] /= min(augmentation.scale.low, 1)
    if augmentation.rotation90:
        away = [max(away)] * rank
    return [pixels - half for pixels, half in zip(away, middle, strict=True)]


def _most(amount: Amount) -> float:
    return max(abs(amount.low), abs(amount.high))
