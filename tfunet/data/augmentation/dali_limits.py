"""What DALI can do of the augmentation, and how far that reaches. Imports no TensorFlow.

DALI resamples by affine maps, and knows no mirror image beyond the border: as much of it as a
sample shows is put around its patch before.
"""

import math
from collections.abc import Sequence
from itertools import combinations

from tfunet.config.augmentation import Amount, Augmentation, chosen_axes

GREY = ("blur", "brightness", "contrast", "gamma", "noise")
INSTEAD = "or use pipeline = 'tf'"
# Of the patch on each side of it: 25 times its pixels in 2D, and 125 times in 3D.
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
    """Raise ValueError where samples of this spatial shape would need too much around them."""
    for axis, (pixels, length) in enumerate(zip(farthest(augmentation, patch), patch, strict=True)):
        most = MOST_LENGTHS * (length - 1)
        if pixels > most > 0:
            raise ValueError(
                "Rotation, scale, shear and translation together may reach "
                f"{math.ceil(pixels)} pixels beyond the patch of {length} along axis {axis}, where "
                f"its mirror image lies; DALI needs that in memory, and at most {most} are "
                f"allowed. Choose smaller ranges, {INSTEAD}."
            )


def held_batches(augmentation: Augmentation, patch: Sequence[int]) -> int:
    """Return how many batches of samples DALI, and handing over to it, hold at a time.

    Measured with batches of 8 x 512^2: at most twice as many.
    """
    beyond = farthest(augmentation, patch)
    mirrored = math.prod(
        1 + 2 * max(pixels, 0) / length for pixels, length in zip(beyond, patch, strict=True)
    )
    grey = sum(getattr(augmentation, name) is not None for name in GREY)
    return 8 + math.ceil(2 * mirrored) + 2 * grey


def farthest(augmentation: Augmentation, patch: Sequence[int]) -> list[float]:
    """Return how many pixels beyond the patch, at most, one may come from, along each axis.

    A bound from what each augmentation may do alone, not the least one.
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
            one, other = away[first], away[second]
            across = math.hypot(one, other)
            away[first] = min(one + sine * other, across)
            away[second] = min(other + sine * one, across)
        away = [min(one, distance) for one in away]
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
        away[axis] = max(away[one] for one in turned)
    return [one - start for one, start in zip(away, middle, strict=True)]


def _most(amount: Amount) -> float:
    return max(abs(amount.low), abs(amount.high))
