"""Prepares images for prediction exactly as for training. Imports no TensorFlow."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tfunet.data.formats.units import converted
from tfunet.data.lazy_image import LazyImage, joined, open_image, resized
from tfunet.data.preparation_options import read_preparation, sizes_along
from tfunet.data.preprocess import (
    Intensity,
    Statistics,
    normalise,
    resampled_shape,
    statistics_for,
)
from tfunet.process.terminal import counted, lines_of


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How a run prepared its images.

    Args:
        num_files: Files that make one image: as many as the data set has image patterns.
        intensity: See `tfunet.data.preprocess.normalise`.
        grey: Whether colours became their luminance.
        axes: Order of the axes if the files do not state it; see `open_folder`.
        alpha: What a channel with this tag was taken for; see `open_folder`.
        fill: What pixels without data became.
        pixel_size: Pixel size of every image, along its axes; None: the files state it.
        target_pixel_size: Pixel size that images were resampled to; None: they were not.
        unit: Its unit; empty where the files do not say.
    """

    num_files: int = 1
    intensity: Intensity = "none"
    grey: bool = False
    axes: str | None = None
    alpha: str | None = None
    fill: float | None = None
    pixel_size: Any = None
    target_pixel_size: Any = None
    unit: str = ""

    def open(self, files: Sequence[Path]) -> LazyImage:
        """Open one image, resampled, with its intensities as they are; NaN where it has no data.

        Only headers are read. A file that cannot be read in parts is read as a whole and must fit
        into memory. Raises ValueError for files that do not fit the run.
        """
        if len(files) != self.num_files:
            how = (
                "Give one file with all its channels."
                if self.num_files == 1
                else "Join their paths by commas, in the order of the run's images."
            )
            raise ValueError(
                f"{files[0]}: an image of this run is made of {counted(self.num_files, 'file')}, "
                f"got {len(files)}. {how}"
            )
        options: dict[str, Any] = {
            "grey": self.grey,
            "axes": self.axes,
            "alpha": self.alpha,
            "fill": None if self.fill is None else math.nan,
            "note": partial(_warn, files[0], set()),
        }
        image = joined([open_image(file, **options) for file in files])
        if not image.by_parts:
            check_memory(
                files[0],
                math.prod(image.shape) * image.channels * 4,
                "it cannot be read by parts; a tiled TIFF, an uncompressed NIfTI file, and HDF5 or "
                "zarr in chunks can",
            )
        if self.target_pixel_size is None:
            return image
        sizes = self._sizes(image, files[0])
        target = sizes_along(self.target_pixel_size, len(image.shape))
        shape = resampled_shape(image.shape, sizes, target)
        return replace(resized(image, shape, self.fill), spacing=target)

    def _sizes(self, image: LazyImage, file: Path) -> tuple[float, ...]:
        if self.pixel_size is not None:
            return sizes_along(self.pixel_size, len(image.shape))
        if image.spacing is None:
            raise ValueError(
                f"{file}: this run resampled its images to pixels of {self.target_pixel_size}, "
                "but the file states no pixel size, or two. Give it with --pixel_size."
            )
        return tuple(converted(size, image.unit, self.unit) for size in image.spacing)

    def statistics(self, image: LazyImage) -> Statistics | None:
        """Return the statistics of the image that `normalise` needs, in one pass over it."""
        return statistics_for(self.intensity, image.parts())

    def normalised(self, image: LazyImage, statistics: Statistics | None) -> LazyImage:
        """Return the image with normalised intensities."""
        return replace(
            image,
            read=lambda start, stop: normalise(
                image.read(start, stop), self.intensity, statistics, self.fill
            ),
        )


def preparation(
    recorded: Mapping[str, Any] | None, pixel_size: Sequence[float] | None = None
) -> Preparation:
    """Return how a run prepared its images.

    Args:
        recorded: What the run recorded; None if code of the data set prepared its images. Files are
            then taken as they are stored.
        pixel_size: Replaces the pixel size of the run's images.
    """
    prepared = Preparation()
    if recorded is not None:
        try:
            prepared = Preparation(**read_preparation(recorded))
        except ValueError as error:
            raise ValueError(f"The preparation in data.json cannot be used: {error}") from error
    if pixel_size is None:
        return prepared
    if prepared.target_pixel_size is None:
        raise ValueError("--pixel_size is for runs with target_pixel_size=. Leave it out.")
    return replace(prepared, pixel_size=pixel_size)


def check_memory(file: Path, needed: int, why: str) -> None:
    """Raise ValueError if `needed` bytes are more than this machine has free."""
    free = psutil.virtual_memory().available
    if needed > free:
        raise ValueError(
            f"{file}: its prediction needs {needed / 2**30:.1f} GiB of memory at once, but only "
            f"{free / 2**30:.1f} GiB are free: {why}."
        )


def _warn(file: Path, said: set[str], what: str) -> None:
    if what not in said:
        said.add(what)
        print(lines_of(f"warning: {file}: {what}"), file=sys.stderr, flush=True)
