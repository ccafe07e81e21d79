"""Which augmentation DALI can do, and how far its pixels come from. Imports no TensorFlow.

DALI does not mirror at the border. So each patch is first surrounded by as much of its mirror image
as the sample shows.
"""

import math
from collections.abc import Sequence
from itertools import combinations

from tfunet.config.augmentation import Amount, Augmentation, chosen_axes

GREY = ("blur", "brightness", "contrast", "gamma", "noise")
INSTEAD = "or use pipeline = 'tf'"
# Patch lengths on each side of the patch: 25 times its pixels in 2D, 125 times in 3D.
MOST_LENGTHS = 2


def check_installed() -> None:
    """Raise ValueError if DALI cannot be imported."""
    try:
        import nvidia.dali  # noqa: F401  # that it loads is what is asked
    except ImportError as error:
        raise ValueError(
            f"pipeline = 'dali' needs NVIDIA DALI, which cannot be imported ({error}). Install it "
            f"with: pip install 'tfunet[dali]', {INSTEAD}."
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
                f"Choose smaller ranges, {INSTEAD}."
            )


def held_batches(augmentation: Augmentation, patch: Sequence[int]) -> int:
    """Return how many batches of samples are held by DALI and on the way to it.

    Measured with batches of 8 x 512^2: at most twice as many.
    """
    beyond = farthest(augmentation, patch)
    mirrored = math.prod(
        1 + 2 * max(pixels, 0) / length for pixels, length in zip(beyond, patch, strict=True)
    )
    grey = sum(getattr(augmentation, name) is not None for name in GREY)
    return 8 + math.ceil(2 * mirrored) + 2 * grey


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
        distance = math.hypot(*away)
        sine = math.sin(math.radians(min(_most(augmentation.rotation), 90)))
        for first, second in combinations(chosen_axes(augmentation.rotation.axes, rank), 2):
            along, across = away[first], away[second]
            diagonal = math.hypot(along, across)
            away[first] = min(along + sine * across, diagonal)
            away[second] = min(across + sine * along, diagonal)
        away = [min(pixels, distance) for pixels in away]
    if augmentation.shear is not None:
        slope = math.tan(math.radians(_most(augmentation.shear)))
        straight = list(away)
        for first, second in combinations(chosen_axes(augmentation.shear.axes, rank), 2):
            away[first] += slope * straight[second]
    if augmentation.scale is not None:
        for axis in chosen_axes(augmentation.scale.axes, rank):
            away[axis] /= min(augmentation.scale.low, 1)
    turned = chosen_axes(augmentation.rotation90, rank)
    for axis in turned:
        away[axis] = max(away[other] for other in turned)
    return [pixels - half for pixels, half in zip(away, middle, strict=True)]


def _most(amount: Amount) -> float:
    return max(abs(amount.low), abs(amount.high))
