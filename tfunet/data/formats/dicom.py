"""DICOM with pydicom: a folder with the slices of one series, or a single file."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.pixels import apply_rescale

from tfunet.data.formats.stored import Stored

# Slices whose distances differ by more than this share of their median: one is missing.
EVEN = 0.05


def stored(path: Path) -> Stored:
    """Describe the series: planes in the order of their positions, rows, columns, colours."""
    return _stored(_slices(path, pixels=False))


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the series is and its pixels, with each slice's rescale slope and intercept."""
    slices = _slices(path, pixels=True)
    described = _stored(slices)
    planes = [apply_rescale(slice_.pixel_array, slice_) for slice_ in slices]
    return described, np.stack(planes).reshape(described.shape)


def _stored(slices: list[Any]) -> Stored:
    first = slices[0]
    planes = len(slices) * int(getattr(first, "NumberOfFrames", 1) or 1)
    sizes = [float(size) for size in getattr(first, "PixelSpacing", ())]
    spacing = dict(zip("yx", sizes, strict=False))
    depth = _plane_distance(slices)
    if depth:
        spacing["z"] = depth
    bits = int(first.BitsAllocated)
    return Stored(
        shape=(planes, int(first.Rows), int(first.Columns), int(first.SamplesPerPixel)),
        axes="zyxs",
        dtype=f"{'int' if first.PixelRepresentation else 'uint'}{bits}",
        spacing=spacing,
        unit="mm",
    )


def _slices(path: Path, *, pixels: bool) -> list[Any]:
    """Return the data sets of a series in the order of their positions along its normal."""
    files = [path] if path.is_file() else _files(path)
    slices = [slice_ for file in files if "Rows" in (slice_ := _read(file, pixels=pixels))]
    if not slices:
        raise ValueError("no DICOM image in it")
    series = sorted({str(slice_.get("SeriesInstanceUID", "")) for slice_ in slices})
    if len(series) > 1:
        raise ValueError(
            f"{len(series)} series in one folder ({', '.join(series[:3])}); give each its own"
        )
    kinds = {(slice_.Rows, slice_.Columns, slice_.SamplesPerPixel) for slice_ in slices}
    if len(kinds) > 1:
        raise ValueError(f"slices of {len(kinds)} sizes in one series: {sorted(kinds)}")
    if len(slices) > 1:
        slices.sort(key=_position)
        _check_distances([_position(slice_) for slice_ in slices])
    return slices


def _files(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return [path for path in paths if path.is_file() and path.name != "DICOMDIR"]


def _read(file: Path, *, pixels: bool) -> Any:
    try:
        content = pydicom.dcmread(file, stop_before_pixels=not pixels)
    except (pydicom.errors.InvalidDicomError, EOFError, ValueError) as error:
        raise ValueError(f"{file.name}: {error}") from error
    # pydicom reads a header that was cut off as far as it goes; reports and the like have no rows.
    kind = content.file_meta.get("MediaStorageSOPClassUID", pydicom.uid.UID("")).name
    if "Rows" not in content and kind.endswith("Image Storage"):
        raise ValueError(f"{file.name}: the file ends before its pixels")
    return content


def _position(slice_: Any) -> float:
    """Return where a slice lies along the normal of its plane, in mm (PS3.3 C.7.6.2)."""
    if "ImagePositionPatient" not in slice_ or "ImageOrientationPatient" not in slice_:
        raise ValueError("slices without ImagePositionPatient cannot be put in order")
    rows, columns = np.reshape([float(value) for value in slice_.ImageOrientationPatient], (2, 3))
    position = np.array([float(value) for value in slice_.ImagePositionPatient])
    return float(np.cross(rows, columns) @ position)


def _check_distances(positions: list[float]) -> None:
    distances = np.diff(positions)
    usual = float(np.median(distances))
    if usual <= 0 or np.abs(distances - usual).max() > EVEN * usual:
        raise ValueError(
            f"the slices lie {distances.min():g} to {distances.max():g} mm apart; one is missing "
            "or there twice"
        )


def _plane_distance(slices: list[Any]) -> float | None:
    if len(slices) > 1:
        return float(np.median(np.diff([_position(slice_) for slice_ in slices])))
    first = slices[0]
    stated = first.get("SpacingBetweenSlices") or first.get("SliceThickness")
    return float(stated) if stated else None
