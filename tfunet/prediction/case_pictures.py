"""Draws scored cases with their errors, once the scores are written. Imports no TensorFlow."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from tfunet.data.check import raw_case
from tfunet.data.image_files import read_mask
from tfunet.data.shown_planes import shown_channels
from tfunet.data.source import DataSource, RawCase
from tfunet.files.atomic import writing
from tfunet.prediction.mask_values import MaskValues
from tfunet.prediction.overlay_picture import write_errors
from tfunet.process.terminal import lines_of

# Cases drawn by default, evenly from the worst score over the median to the best.
NUM_PICTURES = 9
SECONDS_BETWEEN_LINES = 10

T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class Cases:
    """The cases that were scored, in the order of their scores' rows.

    Args:
        source: Their data set.
        indices: The index of each in the data set.
        stems: The name of each, as files have it.
        predictions: The file of each prediction.
        written: The values that they are written in; None for the labels themselves.
    """

    source: DataSource
    indices: Sequence[int]
    stems: Sequence[str]
    predictions: Sequence[Path]
    written: MaskValues | None = None

    def read(self, at: int) -> tuple[str, RawCase, np.ndarray]:
        """Return a case's name, what its files hold, and the labels that count."""
        index = self.indices[at]
        raw, name = raw_case(self.source, index), self.source.case_ids[index]
        return name, raw, self._counted(name, raw, self.predictions[at])

    def _counted(self, name: str, raw: RawCase, prediction: Path) -> np.ndarray:
        shape, ignored = raw.mask.shape, self.source.ignored
        if self.written is None:
            labels = read_mask(prediction, beside=shape)
        else:
            labels = self.written.read(prediction, shape)
        if labels.shape != shape:
            raise ValueError(
                f"{prediction} has shape {labels.shape}, and the mask of {name} {shape}."
            )
        return labels if ignored is None else np.where(raw.mask == ignored, 0, labels)

    def draw(self, rows: Sequence[Mapping[str, Any]], folder: Path, *, most: int) -> None:
        """Draw cases with their errors, the worst first; pictures that are there are replaced.

        Args:
            rows: Scores, of all regions of a case together.
            folder: For NAME.png.
            most: Cases to draw, evenly from the worst over the median to the best.
        """
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for stem in self.stems:  # They may be of an earlier prediction.
                (folder / f"{stem}.png").unlink(missing_ok=True)
        num_cases = len(self.indices)
        dice = np.array([row["dice"] for row in rows]).reshape(num_cases, -1)
        shown = spread_ranks(dice.mean(1), min(most, num_cases))
        if most < num_cases:
            line = (
                f"Drawing {most} of {num_cases} cases, from the worst over the median to the best"
            )
            print(f"{line} by their mean Dice; --pictures all draws every case.", flush=True)
        source = self.source
        for at in now_and_then(shown, "Drawn"):
            name, raw, labels = self.read(at)
            regions = zip(source.regions, dice[at], strict=True)
            told = ", ".join(f"{region} {value:.3f}" for region, value in regions)
            write_errors(
                folder / f"{self.stems[at]}.png",
                shown_channels(raw.image, in_colour=source.in_colour),
                raw.mask if source.ignored is None else _without(raw.mask, source.ignored),
                labels,
                source.label_names(),
                title=f"{name}, Dice {told}",
            )
        print(lines_of(f"Pictures: {folder}"), flush=True)


def spread_ranks(scores: np.ndarray, most: int) -> list[int]:
    """Return places of scores from the lowest to the highest, evenly by rank; of an odd number the
    median is one."""
    ranks = np.linspace(0, len(scores) - 1, most).round().astype(int)
    return np.argsort(scores, kind="stable")[ranks].tolist()


def now_and_then(items: Sequence[T], done: str) -> Iterator[T]:
    """Yield items, and say now and then how many are done."""
    said = time.perf_counter()
    for count, item in enumerate(items):
        if time.perf_counter() - said > SECONDS_BETWEEN_LINES:
            said = time.perf_counter()
            print(f"{done} {count} of {len(items)} cases.", flush=True)
        yield item


def _without(mask: np.ndarray, ignored: int) -> np.ndarray:
    return np.where(mask == ignored, 0, mask)
