"""What automatic settings need to know of a data set: sizes, values and classes of its cases.

Imports no TensorFlow.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from tfunet.data.check import raw_case
from tfunet.data.defects import BadFileError
from tfunet.data.preprocess import channel_statistics, pooled_statistics, resampled_shape
from tfunet.data.source import DataSource, RawCase

# Side of the tiles in which brightness is compared: about what a network sees at once.
TILE = {2: 128, 3: 64}
TILES_PER_CASE = 16
PIXELS_PER_CLASS = 100
# With more cases, only evenly spread ones are looked at for their brightness.
MOST_SAMPLED = 200


@final
@dataclass(frozen=True, kw_only=True)
class CaseMarks:
    """What a case is like, as its files hold it.

    Args:
        shape: Its spatial shape.
        spacing: Its pixel size along `shape`, where known.
        dtype: The type of the stored pixels.
        box_share: The share of it that lies in the smallest box around all pixels that are not 0.
        low: The lowest value of each channel.
        mean: The mean of each channel.
        deviation: The standard deviation of each channel.
        centres: Each label but the background to its centre, as shares of `shape`.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...] | None
    dtype: str
    box_share: float
    low: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    centres: Mapping[int, tuple[float, ...]]


@final
@dataclass(frozen=True, kw_only=True)
class Brightness:
    """Pixels of many cases, as many of each class in a tile.

    Args:
        stored: (pixels, channels), as in the files.
        by_image: The same, with mean 0 and deviation 1 in each image.
        by_tile: The same, with mean 0 and deviation 1 in each tile.
        labels: (pixels,).
        num_cases: Cases that they come from.
    """

    stored: np.ndarray
    by_image: np.ndarray
    by_tile: np.ndarray
    labels: np.ndarray
    num_cases: int

    def separations(self) -> tuple[float, float, float]:
        """Return how well brightness alone tells a class from the others: as stored, normalised
        by image, and by tile, for the class to which normalising by tile does the most harm.

        0 is chance and 1 is perfect: |2 AUC - 1| of the best channel.
        """
        rows = []
        # Ranks are those of all classes, and sorting takes long.
        ways = [
            [ranks(channel) for channel in values.T]
            for values in (self.stored, self.by_image, self.by_tile)
        ]
        for label in np.unique(self.labels):
            is_class = self.labels == label
            if is_class.all():
                continue
            rows.append(
                tuple(max(separation(channel, is_class) for channel in way) for way in ways)
            )
        if not rows:
            return 0.0, 0.0, 0.0
        stored, by_image, by_tile = max(rows, key=lambda row: max(row[:2]) - row[2])
        return stored, by_image, by_tile


@final
@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The cases of a data set that are trained on."""

    cases: tuple[CaseMarks, ...]
    brightness: Brightness
    label_names: Mapping[int, str]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.cases[0].shape)

    @property
    def spacings(self) -> np.ndarray | None:
        """Pixel sizes (cases, axes), or None where a case does not know its own."""
        sizes = [case.spacing for case in self.cases if case.spacing is not None]
        return np.array(sizes) if len(sizes) == len(self.cases) else None

    def shapes(self, target: Sequence[float] | None) -> np.ndarray:
        """Return the shapes (cases, axes) after resampling to the pixel size `target`."""
        if target is None:
            return np.array([case.shape for case in self.cases])
        return np.array(
            [resampled_shape(case.shape, case.spacing or target, target) for case in self.cases]
        )

    def statistics(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel over all pixels of all cases."""
        mean, deviation = pooled_statistics(
            [math.prod(case.shape) for case in self.cases],
            [case.mean for case in self.cases],
            [case.deviation for case in self.cases],
        )
        return mean.tolist(), deviation.tolist()


def fingerprint(
    source: DataSource,
    indices: Sequence[int],
    *,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
    skip_bad: bool = False,
) -> Fingerprint:
    """Read the cases of these indices once; `progress` wraps the indices, as tqdm does.

    Raises ValueError for a data set without masks, and BadFileError for a case that cannot be read,
    unless `skip_bad` leaves it out.
    """
    if not source.has_masks:
        raise ValueError(
            f"The data set {source.name!r} has {source.instead_of_masks}, and settings are chosen "
            "for masks only."
        )
    cases: list[CaseMarks] = []
    samples: list[tuple[np.ndarray, ...]] = []
    num_sampled = 0
    every = max(1, -(-len(indices) // MOST_SAMPLED))
    for position, index in enumerate(progress(indices)):
        try:
            raw = raw_case(source, index)
        except BadFileError:
            if skip_bad:
                continue
            raise
        mean, deviation = channel_statistics([raw.image])
        cases.append(_marks(raw, mean, deviation, source.num_classes))
        if position % every == 0:
            rng = np.random.default_rng(position)
            classes = range(source.num_classes)
            samples += _sampled(raw.image, raw.mask, classes, mean, deviation, rng)
            num_sampled += 1
    if not cases:
        raise ValueError(f"No case of {source.name!r} that was looked at can be read.")
    if not samples:
        raise ValueError(f"The data set {source.name!r} has no pixel that counts in its masks.")
    stored, by_image, by_tile, labels = map(np.concatenate, zip(*samples, strict=True))
    return Fingerprint(
        cases=tuple(cases),
        brightness=Brightness(
            stored=stored,
            by_image=by_image,
            by_tile=by_tile,
            labels=labels,
            num_cases=num_sampled,
        ),
        label_names=source.label_names(),
    )


def _marks(raw: RawCase, mean: np.ndarray, deviation: np.ndarray, num_classes: int) -> CaseMarks:
    return CaseMarks(
        shape=raw.mask.shape,
        spacing=raw.spacing,
        dtype=raw.image_dtype,
        box_share=_box_share(raw.image),
        low=tuple(map(float, raw.image.min(tuple(range(raw.mask.ndim))))),
        mean=tuple(map(float, mean)),
        deviation=tuple(map(float, deviation)),
        centres=_centres(raw.mask, num_classes),
    )


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values (pixels,), from 1; equal ones share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def separation(ranks: np.ndarray, is_class: np.ndarray) -> float:
    """Return |2 AUC - 1| of values with these ranks that are to tell a class from the others."""
    inside = int(is_class.sum())
    outside = len(ranks) - inside
    area = (ranks[is_class].sum() - inside * (inside + 1) / 2) / (inside * outside)
    return float(abs(2 * area - 1))


def _box_share(image: np.ndarray) -> float:
    """Return the share of an image in the smallest box around all that is not 0."""
    inside = (image != 0).any(-1)
    share = 1.0
    for axis in range(inside.ndim):
        there = inside.any(tuple(other for other in range(inside.ndim) if other != axis))
        places = np.flatnonzero(there)
        share *= (places[-1] - places[0] + 1) / len(there) if len(places) else 1.0
    return share


def _centres(mask: np.ndarray, num_classes: int) -> dict[int, tuple[float, ...]]:
    centres = {}
    for label in range(1, num_classes):
        places = np.nonzero(mask == label)
        if len(places[0]):
            centres[label] = tuple(
                float(along.mean() / length)
                for along, length in zip(places, mask.shape, strict=True)
            )
    return centres


def _sampled(
    image: np.ndarray,
    mask: np.ndarray,
    classes: Collection[int],
    mean: np.ndarray,
    deviation: np.ndarray,
    rng: np.random.Generator,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield pixels of each tile of a case as `Brightness` has them; others than `classes` count for
    nothing."""
    side = TILE[mask.ndim]
    starts = list(itertools.product(*(range(0, length, side) for length in mask.shape)))
    for start in starts[:: max(1, len(starts) // TILES_PER_CASE)][:TILES_PER_CASE]:
        box = tuple(slice(first, first + side) for first in start)
        labels = mask[box].ravel()
        pixels = image[box].reshape(-1, image.shape[-1]).astype(np.float64)
        places = [
            np.flatnonzero(labels == label) for label in np.unique(labels) if label in classes
        ]
        if not places:
            continue
        chosen = np.concatenate(
            [
                rng.choice(place, min(PIXELS_PER_CLASS, len(place)), replace=False)
                for place in places
            ]
        )
        stored, spread = pixels[chosen], pixels.std(0)
        yield (
            stored,
            (stored - mean) / np.where(deviation > 0, deviation, 1),
            (stored - pixels.mean(0)) / np.where(spread > 0, spread, 1),
            labels[chosen],
        )
