"""Segmentations of DICOM (SEG): each frame shows one segment in one plane, in any order.

Planes without a segment are usually left out (PS3.3 A.51), so only its image says how many there
are.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tfunet.data.formats.dicom_frames import EVEN, TO_RAS, Frame, check_parallel, pixel_spacing
from tfunet.data.formats.stored import PlaneGrid, Stored

# A frame lies on a plane of its image if no corner is farther from its pixel, in pixels.
NEAR = 0.25


def is_segmentation(frames: Sequence[Frame]) -> bool:
    """Return whether the frames show segments."""
    return "SegmentationType" in frames[0].dataset


def segmentation(frames: Sequence[Frame], grid: PlaneGrid | None) -> Stored:
    """Describe the labels: on the grid of the image, else from the first plane to the last.

    Raises ValueError for what is no set of segments, or does not lie on the grid.
    """
    dataset = frames[0].dataset
    kind = dataset.SegmentationType
    numbers = [int(segment.SegmentNumber) for segment in dataset.get("SegmentSequence") or ()]
    if kind not in ("BINARY", "LABELMAP", "FRACTIONAL"):
        raise ValueError(
            f"its SegmentationType is {kind}; readable: BINARY, LABELMAP and FRACTIONAL. Export it "
            "as binary"
        )
    if kind == "FRACTIONAL" and (len(numbers) != 1 or not dataset.get("MaximumFractionalValue")):
        raise ValueError(
            f"its SegmentationType is FRACTIONAL, with {len(numbers)} segments and "
            f"MaximumFractionalValue = {dataset.get('MaximumFractionalValue')}; readable: one "
            "segment in parts of that value. Export each segment to a file, or as binary"
        )
    labels_dtype = "uint8" if max(numbers, default=0) < 256 else "uint16"
    if grid is None or grid.shape[1:] != (dataset.Rows, dataset.Columns):
        grid = _own_grid(frames)  # Another shape than its image has: whoever compares them says so.
    _places(frames, grid)
    sizes = np.linalg.norm(grid.affine[:3, :3], axis=0)
    return Stored(
        shape=grid.shape,
        axes="zyx",
        dtype="float32" if kind == "FRACTIONAL" else labels_dtype,
        spacing=dict(zip("zyx", map(float, sizes), strict=True)),
        unit="mm",
        affine=grid.affine,
    )


def segments(
    frames: Sequence[Frame], described: Stored, pixels_of: Callable[[Frame], np.ndarray]
) -> np.ndarray:
    """Return the labels (planes, rows, columns): the numbers of the segments, or of one segment
    its fractions from 0 to 1.

    Where two segments overlap, the one with the higher number wins.
    """
    if described.affine is None:
        raise ValueError("a segmentation without positions")
    places = _places(frames, PlaneGrid(shape=described.shape, affine=described.affine))
    labels = np.zeros(described.shape, described.dtype)
    if frames[0].dataset.SegmentationType == "FRACTIONAL":
        whole = np.float32(frames[0].dataset.MaximumFractionalValue)
        for place, frame in zip(places, frames, strict=True):
            labels[place] = pixels_of(frame) / whole
        return labels
    is_map = frames[0].dataset.SegmentationType == "LABELMAP"
    for number in sorted(range(len(frames)), key=lambda number: frames[number].segment):
        inside = pixels_of(frames[number])
        value = inside if is_map else frames[number].segment
        np.copyto(labels[places[number]], value, where=inside != 0, casting="unsafe")
    return labels


def _own_grid(frames: Sequence[Frame]) -> PlaneGrid:
    """Return the grid from the first plane with a segment to the last, along their normal."""
    check_parallel(frames)
    first = min(frames, key=lambda one: one.distance)
    distances = np.unique(np.round([frame.distance for frame in frames], 3))
    measures = first.group("PixelMeasuresSequence")
    steps = np.diff(distances)
    stated = measures.get("SpacingBetweenSlices") or measures.get("SliceThickness")
    step = float(steps.min()) if len(steps) else float(stated or 1)
    planes = (distances - distances[0]) / step
    if np.abs(planes - np.round(planes)).max() > EVEN:
        raise ValueError("its planes do not lie at multiples of one distance")
    spacing = pixel_spacing(first)
    if first.position is None or first.directions is None or len(spacing) != 2:
        raise ValueError("its frames state no position, orientation or pixel size")
    along_row, along_column = first.directions
    columns = [
        np.cross(along_row, along_column) * step,
        along_column * spacing[0],
        along_row * spacing[1],
        first.position,
    ]
    affine = np.eye(4)
    affine[:3] = TO_RAS @ np.stack(columns, -1)
    shape = (round(planes[-1]) + 1, int(first.dataset.Rows), int(first.dataset.Columns))
    return PlaneGrid(shape=shape, affine=affine)


def _places(frames: Sequence[Frame], grid: PlaneGrid) -> list[int]:
    """Return the plane of the grid in which each frame lies."""
    inverse = np.linalg.inv(grid.affine)
    rows, columns = (length - 1 for length in grid.shape[1:])
    places = []
    for frame in frames:
        found = np.array([TO_RAS @ corner for corner in _corners(frame, rows, columns)])
        found = found @ inverse[:3, :3].T + inverse[:3, 3]
        place = round(float(found[:, 0].mean()))
        off = np.abs(found - [[place, 0, 0], [place, 0, columns], [place, rows, 0]]).max()
        if off > NEAR or not 0 <= place < grid.shape[0]:
            raise ValueError(
                f"its frame {frame.number + 1} does not lie on the pixels of its image: it is "
                f"{off:.3g} pixels off, next to plane {place + 1} of {grid.shape[0]}. Resample it "
                "onto its image"
            )
        places.append(place)
    return places


def _corners(frame: Frame, rows: int, columns: int) -> list[np.ndarray]:
    """Return the positions of the first pixel, the last of its row and the last of its column."""
    spacing = pixel_spacing(frame)
    if frame.position is None or frame.directions is None or len(spacing) != 2:
        raise ValueError(f"its frame {frame.number + 1} states no position, orientation or size")
    along_row, along_column = frame.directions
    ends = along_row * spacing[1] * columns, along_column * spacing[0] * rows
    return [frame.position, *(frame.position + end for end in ends)]
