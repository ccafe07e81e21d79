"""Rules that choose settings from a data set's fingerprint. Pure, without TensorFlow.

Those of nnU-Net are of Isensee et al. 2021 (https://doi.org/10.1038/s41592-020-01008-z), in the
form of its version 2 (`default_experiment_planner.py`, `nnUNetTrainer.py`). Each function returns a
value and the reason for it.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfunet.data.discovery.fingerprint import Fingerprint
from tfunet.data.doubts import SAME_SPACING
from tfunet.data.formats.units import sizes_in_words

# nnU-Net: an axis is anisotropic if its voxels are longer, and fewer, by more than this factor.
ANISOTROPIC = 3
# nnU-Net: the bottom of the network has at least so many voxels along each axis.
LEAST_EDGE = 4
# Networks of fewer halvings see too little at once.
LEAST_LEVELS = 2
# nnU-Net: the largest patch has the volume of a cube, or square, of this side.
LARGEST_PATCH = {2: 2048, 3: 256}
# nnU-Net: filters of the first level, and the most that a level has.
FILTERS, MOST_FILTERS = 32, {2: 512, 3: 320}
# Ours, for memory in which nnU-Net's network does not fit with a patch that is worth it.
FEWER_FILTERS = (24, 16, 12, 8)
WORTHWHILE_PATCH = {2: 128, 3: 48}
# nnU-Net: at least so many samples, and at most this share of all voxels, in a step.
LEAST_BATCH, MOST_COVERED = 2, 0.05
# nnU-Net: of patches, so many are centred on a foreground voxel.
FOREGROUND_SHARE = 0.33
# nnU-Net: with less of an image inside the box around its values, only these are normalised.
MOST_EMPTY = 0.75
# nnU-Net's normalisation of CT clips at these percentiles of the foreground.
CT_PERCENTILES = (0.5, 99.5)
# Air is -1000 Hounsfield units.
AIR = -900
# Ours: brightness counts if normalising takes away more than this of what it tells (0 to 1), in at
# least so many cases.
WORTH, LEAST_CASES = 0.1, 8
# nnU-Net: degrees of rotation in a plane; the smaller ones where the patch is long. Ours: also
# where classes lie in one order along an axis.
ANY_TURN, SMALL_TURN = 180, 15
# Ours: classes lie in one order along an axis if they do so in this share of as many cases.
SAME_ORDER, LEAST_ORDERED = 0.95, 10

Reasoned = tuple[Any, str]


def target_spacing(spacings: np.ndarray, shapes: np.ndarray) -> Reasoned:
    """Return the pixel size to resample to; None where all cases have the same one already.

    Args:
        spacings: Pixel sizes, (cases, axes).
        shapes: Sizes in pixels, (cases, axes).
    """
    low, high = spacings.min(0), spacings.max(0)
    if not (high > SAME_SPACING * low).any():
        return None, ""
    target, size = np.median(spacings, 0), np.median(shapes, 0)
    span = f"Pixel sizes go from {sizes_in_words(low)} to {sizes_in_words(high)}."
    reason = f"{span} All images are resampled to the median (nnU-Net)."
    worst = int(target.argmax())
    others = [axis for axis in range(len(target)) if axis != worst]
    is_long = target[worst] > ANISOTROPIC * target[others].max()
    if is_long and size[worst] * ANISOTROPIC < size[others].min():
        target[worst] = max(np.percentile(spacings[:, worst], 10), target[others].max())
        reason = (
            f"{span} All images are resampled to the median; along axis {worst}, whose voxels are "
            f"more than {ANISOTROPIC} times as long and fewer, to the 10th percentile (nnU-Net)."
        )
    return tuple(float(f"{along:.4g}") for along in target), reason


def first_patch(median: Sequence[float], spacing: Sequence[float] | None) -> tuple[int, ...]:
    """Return nnU-Net's patch without a limit of memory: of the proportions of the pixels, and at
    most as large as the median image."""
    rank = len(median)
    inverse = 1 / np.array(spacing if spacing is not None else [1.0] * rank)
    scale = LARGEST_PATCH[rank] / np.prod(inverse) ** (1 / rank)
    sizes = np.minimum(np.rint(inverse * scale), median).astype(int).tolist()
    return _rounded(sizes, num_levels(sizes))


def num_levels(patch: Sequence[int]) -> int:
    """Return how often a patch is halved: nnU-Net's rule for the shortest axis, because the U-Net
    halves all axes together."""
    shortest = max(1, min(patch))
    return max(LEAST_LEVELS, math.floor(math.log2(shortest / LEAST_EDGE)))


def smaller_patches(patch: Sequence[int], median: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Yield a patch and ever smaller ones: each shorter along the axis that covers most of the
    median image, by what the network halves (nnU-Net)."""
    patch = tuple(patch)
    while True:
        yield patch
        axis = int((np.array(patch) / np.array(median)).argmax())
        step = 2 ** num_levels(patch)
        shorter = [*patch]
        shorter[axis] -= step
        # Less may do: 224 is a patch, too, where 256 - 64 is 192.
        shorter[axis] = patch[axis] - 2 ** num_levels(shorter)
        if min(shorter) < LEAST_EDGE * 2:
            return
        patch = _rounded(shorter, num_levels(shorter))


def networks(
    patch: Sequence[int], median: Sequence[float]
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield (patch, levels, filters) from nnU-Net's network on the whole patch down to the least.

    Its patch shrinks first. Where that would leave less than a worthwhile patch, the network gets
    fewer filters instead; the least network has the smallest patches.
    """
    rank = len(patch)
    floor = np.minimum(patch, WORTHWHILE_PATCH[rank])
    patches = list(smaller_patches(patch, median))
    for filters in (FILTERS, *FEWER_FILTERS):
        for size in patches:
            if filters == FEWER_FILTERS[-1] or (np.array(size) >= floor).all():
                yield size, num_levels(size), filters


def most_batch(patch: Sequence[int], shapes: np.ndarray) -> int:
    """Return the largest batch: nnU-Net's share of the voxels of all training cases."""
    voxels = float(np.prod(shapes, 1, dtype=float).sum())
    return max(LEAST_BATCH, round(MOST_COVERED * voxels / math.prod(patch)))


def intensity(found: Fingerprint, *, channel_names: Sequence[str] = ()) -> Reasoned:
    """Return how to normalise the intensities of images."""
    stored, by_image, _ = found.brightness.separations()
    is_ct = any(name.strip().lower() == "ct" for name in channel_names)
    has_air = len(found.cases[0].low) == 1 and all(case.low[0] < AIR for case in found.cases)
    if is_ct or has_air:
        why = "dataset.json says CT" if is_ct else "All images hold values of air in Hounsfield"
        return _of_foreground(found), (
            f"{why}: clipped at the percentiles {CT_PERCENTILES[0]} and {CT_PERCENTILES[1]} of "
            "foreground pixels, less their mean, over their deviation (nnU-Net for CT)."
        )
    if stored - by_image > WORTH and found.brightness.num_cases >= LEAST_CASES:
        told = (
            f"Absolute brightness matters: alone it tells classes apart by {stored:.2f} (0 chance, "
            f"1 perfect), and by {by_image:.2f} after each image is normalised."
        )
        if all(case.dtype == "uint8" for case in found.cases):
            return [0, 255], f"{told} 0 to 255 becomes 0 to 1 (nnU-Net for 8-bit colours)."
        mean, deviation = found.statistics()
        value = {"mean": _short(mean), "deviation": _short(deviation)}
        number = len(found.cases)
        return value, f"{told} Mean and deviation are those of {number} training images."
    empty = float(np.median([case.box_share for case in found.cases]))
    if empty < MOST_EMPTY:
        return "zscore_nonzero", (
            f"Around the values lie zeros: the box of the others is {empty:.0%} of the median "
            "image. Only pixels that are not 0 get mean 0 and deviation 1 (nnU-Net)."
        )
    return "zscore", (
        "Each image gets mean 0 and standard deviation 1 (nnU-Net). Brightness alone tells classes "
        f"apart by {by_image:.2f} then (0 chance, 1 perfect), as stored by {stored:.2f}."
        + (_too_few(found) if stored - by_image > WORTH else "")
    )


def normalization(found: Fingerprint, batch: int) -> Reasoned:
    """Return how the network normalises its feature maps."""
    stored, by_image, by_tile = found.brightness.separations()
    kept = max(stored, by_image)
    if kept - by_tile <= WORTH or found.brightness.num_cases < LEAST_CASES:
        return "instance", (
            "As nnU-Net: each sample alone, so that nothing depends on the batch. Brightness tells "
            f"classes apart by {kept:.2f} before, and by {by_tile:.2f} with each tile normalised "
            "alone." + (_too_few(found) if kept - by_tile > WORTH else "")
        )
    told = (
        f"Not nnU-Net's instance normalisation, which takes the brightness of a sample away: alone "
        f"it tells classes apart by {kept:.2f}, and by {by_tile:.2f} within a tile."
    )
    if batch < 2 * LEAST_BATCH:
        return "none", f"{told} A batch of {batch} is too small for batch normalisation."
    return "synchronized_batch", f"{told} Statistics are those of the whole batch."


def flips(found: Fingerprint) -> Reasoned:
    """Return the axes along which samples are mirrored: all, none or some."""
    ordered: dict[int, str] = {}
    labels = sorted({label for case in found.cases for label in case.centres})
    for first, second in itertools.combinations(labels, 2):
        places = [
            np.subtract(case.centres[first], case.centres[second])
            for case in found.cases
            if first in case.centres and second in case.centres
        ]
        if len(places) < LEAST_ORDERED:
            continue
        before = (np.array(places) > 0).mean(0)
        for axis in np.flatnonzero(np.maximum(before, 1 - before) >= SAME_ORDER):
            names = found.label_names
            ordered.setdefault(int(axis), f"{names[first]} and {names[second]}")
    if not ordered:
        return True, ""
    free = [axis for axis in range(found.rank) if axis not in ordered]
    told = "; ".join(f"classes {pair} along axis {axis}" for axis, pair in ordered.items())
    return free or False, (
        f" But not where classes lie in one order in nearly all cases, and are told apart by that: "
        f"{told}."
    )


def augmentation(
    patch: Sequence[int], found: Fingerprint, *, stated_flips: Reasoned | None = None
) -> dict[str, Reasoned]:
    """Return nnU-Net's random changes of samples, as far as tfunet has them.

    `stated_flips` are the axes that the user names, with the reason.
    """
    mirrored, why = flips(found)
    flipping = stated_flips or (mirrored, f"Mirrored along the axes (nnU-Net).{why}")
    mirrored = flipping[0]
    rank, ratio = len(patch), max(patch) / min(patch)
    turned: dict[str, Any] = {"range": 30, "probability": 0.2}
    turn = "A fifth of the samples, by up to 30 degrees in volumes (nnU-Net)."
    scaled: dict[str, Any] = {"range": [0.7, 1.4], "probability": 0.2}
    if rank == 2:
        turned["range"] = SMALL_TURN if ratio > 1.5 else ANY_TURN
        turn = (
            "A fifth of the samples, by up to 180 degrees, or 15 where the patch is long (nnU-Net)."
        )
    elif ratio > ANISOTROPIC:
        plane = sorted(np.argsort(patch)[-2:].tolist())
        turned |= {"range": ANY_TURN, "axes": plane}
        scaled["axes"] = plane
        turn = "In the planes only, since the patch is flat (nnU-Net)."
    free = range(rank) if mirrored is True else mirrored or ()
    if turned["range"] == ANY_TURN and not set(turned.get("axes", range(rank))) <= set(free):
        turned["range"] = SMALL_TURN
        turn += (
            f" But by up to {SMALL_TURN} degrees only: half a turn reverses the order of classes "
            "just as the flips that are left out would. nnU-Net has no such rule."
        )
    return {
        "flips": flipping,
        "rotation": (turned, turn),
        "scale": (scaled, "A fifth of the samples are shrunk or magnified (nnU-Net)."),
        "noise": (
            {"range": [0, 0.1], "probability": 0.1},
            "A tenth of the samples; the amount is drawn from this range (nnU-Net).",
        ),
        "blur": ({"range": [0.5, 1], "probability": 0.2}, "A fifth of the samples (nnU-Net)."),
        "contrast": (
            {"range": [0.75, 1.25], "probability": 0.15},
            "15 % of the samples (nnU-Net).",
        ),
        "gamma": (
            {"range": [0.7, 1.5], "probability": 0.3},
            "30 % of the samples; mean and deviation stay (nnU-Net).",
        ),
    }


def _rounded(sizes: Sequence[int], levels: int) -> tuple[int, ...]:
    factor = 2**levels
    return tuple(-(-int(size) // factor) * factor for size in sizes)


def _too_few(found: Fingerprint) -> str:
    return (
        f" {found.brightness.num_cases} cases are too few to go by: below {LEAST_CASES}, chance "
        "may be the reason."
    )


def _of_foreground(found: Fingerprint) -> Mapping[str, list[float]]:
    pixels = found.brightness
    is_inside = pixels.labels > 0
    inside = pixels.stored[is_inside] if is_inside.any() else pixels.stored
    low, high = np.percentile(inside, CT_PERCENTILES, axis=0)
    clipped = np.clip(inside, low, high)
    values = {"mean": clipped.mean(0), "deviation": clipped.std(0), "low": low, "high": high}
    return {name: _short(value.tolist()) for name, value in values.items()}


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
