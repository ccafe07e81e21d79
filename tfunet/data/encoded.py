"""Cases as files that a decoder in C reads to the pixels of `DataSource.read`. No TensorFlow."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from tfunet.data.preprocess import Intensity

# The code of a stored value that no class has.
UNKNOWN = 254


@final
@dataclass(frozen=True, kw_only=True)
class EncodedMask:
    """What the values in one mask file of each case mean.

    Args:
        codes: (256,) or (65536,) uint8: the label of each stored value, 0 for one outside of the
            class, IGNORED for one that counts for nothing, UNKNOWN for one that no class has. The
            values of 1 bit are 0 and 255.
        holds_one_value: Whether a file may hold one value only beside 0.
    """

    codes: np.ndarray
    holds_one_value: bool


@final
@dataclass(frozen=True, kw_only=True)
class EncodedCases:
    """Planes in files whose stored numbers are their pixels: PNG, JPEG and TIFF.

    Args:
        images: The image of each case.
        shapes: Rows and columns of each case as stored; training may see it resampled.
        masks: The masks of each case. In a pixel with several labels the last one counts.
        image_dtype: Stored type of all images: "uint8", "uint16" or "float32".
        in_colour: Whether images are red, green and blue; others have one channel.
        grey: Whether colours become luminance.
        intensity: How images are normalised, by statistics of the whole image.
        labels: What the masks' values mean, one for each mask of a case.
        around: The label around an image that is smaller than the patch.
        read: As `DataSource.read`: the same pixels, slower, and what is wrong with a bad file.
    """

    images: tuple[Path, ...]
    masks: tuple[tuple[Path, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    image_dtype: str
    in_colour: bool
    grey: bool
    intensity: Intensity
    labels: tuple[EncodedMask, ...]
    around: int
    read: Callable[[int], tuple[np.ndarray, np.ndarray]]
