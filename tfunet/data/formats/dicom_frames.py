"""The frames of DICOM data sets: where each lies and what its numbers are, with pydicom.

What a data set with one frame says itself, one with several says in its functional groups, shared
by all frames or for each (PS3.3 C.7.6.16).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Frames whose distances differ by more than this share of their median: one is missing.
EVEN = 0.05
# DICOM counts towards the left and the back, NIfTI towards the right and the front.
TO_RAS = np.diag([-1.0, -1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One plane of pixels.

    Args:
        dataset: What holds it.
        number: Its place there, from 0.
        position: Position of its first pixel, in mm; None where nothing is said.
        directions: (2, 3) unit vectors along a row and along a column; None where nothing is said.
        segment: Which segment it shows; 0 where it shows an image.
    """

    dataset: Any
    number: int
    position: np.ndarray | None
    directions: np.ndarray | None
    segment: int = 0

    def group(self, name: str) -> Any:
        """Return what holds the attributes of a functional group: its item, or the data set."""
        return _group(self.dataset, self.number, name)

    @property
    def distance(self) -> float:
        """Where it lies along the normal of its plane, in mm (PS3.3 C.7.6.2)."""
        if self.position is None or self.directions is None:
            raise ValueError("slices without ImagePositionPatient cannot be put in order")
        return float(np.cross(*self.directions) @ self.position)


def frames_of(dataset: Any) -> list[Frame]:
    """Return the frames of a data set, in its order."""
    if "TotalPixelMatrixRows" in dataset:
        raise ValueError(
            "it holds the tiles of a whole slide; readable: slices and volumes. Save the level "
            "that you need as a TIFF in tiles, for instance with bfconvert of Bio-Formats"
        )
    return [_frame(dataset, number) for number in range(num_frames(dataset))]


def num_frames(dataset: Any) -> int:
    """Return how many frames a data set claims to hold."""
    stated = dataset.get("NumberOfFrames") or 1
    try:
        return max(1, int(stated))
    except ValueError as error:
        raise ValueError(f"its NumberOfFrames is {stated!r}, and no number") from error


def ordered(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of one image in the order of their positions.

    Frames of one data set keep their order where they lie one after another, either way.

    Raises ValueError for frames that are not parallel, or do not lie at even distances.
    """
    several = len({id(frame.dataset) for frame in frames}) > 1
    if len(frames) < 2 or (not several and any(frame.position is None for frame in frames)):
        return list(frames)
    check_parallel(frames)
    places = np.array([frame.distance for frame in frames])
    if several or ((np.diff(places) <= 0).any() and (np.diff(places) >= 0).any()):
        frames = [frames[number] for number in np.argsort(places, kind="stable")]
    _check_distances(np.array([frame.distance for frame in frames]))
    return list(frames)


def plane_distance(frames: Sequence[Frame]) -> float | None:
    """Return the distance of planes in mm, by their positions or as the header says."""
    first = frames[0]
    if len(frames) > 1 and first.position is not None and first.directions is not None:
        return float(np.median(np.abs(np.diff([frame.distance for frame in frames]))))
    offsets = first.dataset.get("GridFrameOffsetVector")  # RT Dose has it.
    if len(frames) > 1 and offsets:
        return float(np.median(np.abs(np.diff([float(offset) for offset in offsets]))))
    measures = first.group("PixelMeasuresSequence")
    stated = measures.get("SpacingBetweenSlices") or measures.get("SliceThickness")
    return abs(float(stated)) if stated else None


def pixel_spacing(frame: Frame) -> list[float]:
    """Return the distances of rows and of columns in mm, or nothing."""
    stated = frame.group("PixelMeasuresSequence").get("PixelSpacing") or ()
    return [float(number) for number in stated]


def affine(frames: Sequence[Frame]) -> np.ndarray | None:
    """Return (plane, row, column) to position in mm, towards the right, the front and the head."""
    first, spacing, depth = frames[0], pixel_spacing(frames[0]), plane_distance(frames)
    if first.position is None or first.directions is None or len(spacing) != 2:
        return None
    along_row, along_column = first.directions
    step = np.cross(along_row, along_column) * (depth or 1)
    if len(frames) > 1:
        last = frames[-1]
        if last.position is None:
            return None
        step = (last.position - first.position) / (len(frames) - 1)
    result = np.eye(4)
    columns = [step, along_column * spacing[0], along_row * spacing[1], first.position]
    result[:3] = TO_RAS @ np.stack(columns, -1)
    return result


def check_parallel(frames: Sequence[Frame]) -> None:
    """Raise ValueError for frames in different directions, or with different pixel sizes."""
    turns = np.array([frame.directions for frame in frames if frame.directions is not None])
    if len(turns) and np.abs(turns - turns[0]).max() > 1e-3:
        raise ValueError(
            "its slices lie in different directions, such as those of a scout; put each direction "
            "into a series of its own"
        )
    sizes = np.array([size for frame in frames if (size := pixel_spacing(frame))])
    if len(sizes) and np.ptp(sizes, axis=0).max() > 1e-3 * sizes.max():
        raise ValueError(
            f"slices with pixels of {sizes.min(0)} to {sizes.max(0)} mm in one series; resample "
            "them to one size"
        )


def _frame(dataset: Any, number: int) -> Frame:
    position = _group(dataset, number, "PlanePositionSequence").get("ImagePositionPatient")
    turned = _group(dataset, number, "PlaneOrientationSequence").get("ImageOrientationPatient")
    segment = _group(dataset, number, "SegmentIdentificationSequence")
    # One position for many frames says where the first of them lies.
    one_for_all = num_frames(dataset) > 1 and "PerFrameFunctionalGroupsSequence" not in dataset
    return Frame(
        dataset=dataset,
        number=number,
        position=np.array(position, float) if position and not one_for_all else None,
        directions=np.array(turned, float).reshape(2, 3) if turned else None,
        segment=int(segment.get("ReferencedSegmentNumber") or 0),
    )


def _group(dataset: Any, number: int, name: str) -> Any:
    for groups, place in (
        ("PerFrameFunctionalGroupsSequence", number),
        ("SharedFunctionalGroupsSequence", 0),
    ):
        items = dataset.get(groups) or ()
        if place < len(items) and (found := items[place].get(name)):
            return found[0]
    return dataset


def _check_distances(places: np.ndarray) -> None:
    distances = np.abs(np.diff(places))
    usual = float(np.median(distances))
    if distances.min() <= EVEN * usual:
        same = len(places) - len(np.unique(np.round(places, 3)))
        raise ValueError(
            f"{same + 1 if same else 2} slices lie at the same place: it holds several times, "
            "echoes or directions, or slices twice. Export one of them alone"
        )
    if np.abs(distances - usual).max() > EVEN * usual:
        raise ValueError(
            f"the slices lie {distances.min():g} to {distances.max():g} mm apart; one is missing "
            "or there twice"
        )
