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
    planes = [_without_padding(apply_rescale(one.pixel_array, one), one) for one in slices]
    return described, np.stack(planes).reshape(described.shape)


def _stored(slices: list[Any]) -> Stored:
    first = slices[0]
    planes = len(slices) * int(getattr(first, "NumberOfFrames", 1) or 1)
    sizes = [float(one) for one in getattr(first, "PixelSpacing", ())]
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
        nodata_from=_padding_words(slices),
    )


def _slices(path: Path, *, pixels: bool) -> list[Any]:
    """Return the data sets of a series in the order of their positions along its normal."""
    files = [path] if path.is_file() else _files(path)
    slices = [one for file in files if "Rows" in (one := _read(file, pixels=pixels))]
    if not slices:
        raise ValueError("no DICOM image in it")
    series = sorted({str(one.get("SeriesInstanceUID", "")) for one in slices})
    if len(series) > 1:
        raise ValueError(
            f"{len(series)} series in one folder ({', '.join(series[:3])}); give each its own"
        )
    kinds = {(one.Rows, one.Columns, one.SamplesPerPixel) for one in slices}
    if len(kinds) > 1:
        raise ValueError(f"slices of {len(kinds)} sizes in one series: {sorted(kinds)}")
    if len(slices) > 1:
        slices.sort(key=_position)
        _check_distances([_position(one) for one in slices])
    return slices


def _files(folder: Path) -> list[Path]:
    names = sorted(one for one in folder.iterdir() if not one.name.startswith("."))
    return [one for one in names if one.is_file() and one.name != "DICOMDIR"]


def _read(file: Path, *, pixels: bool) -> Any:
    try:
        found = pydicom.dcmread(file, stop_before_pixels=not pixels)
    except (pydicom.errors.InvalidDicomError, EOFError, ValueError) as error:
        raise ValueError(f"{file.name}: {error}") from error
    # pydicom reads a header that was cut off as far as it goes; reports and the like have no rows.
    kind = found.file_meta.get("MediaStorageSOPClassUID", pydicom.uid.UID("")).name
    if "Rows" not in found and kind.endswith("Image Storage"):
        raise ValueError(f"{file.name}: the file ends before its pixels")
    return found


def _position(one: Any) -> float:
    """Return where a slice lies along the normal of its plane, in mm (PS3.3 C.7.6.2)."""
    if "ImagePositionPatient" not in one or "ImageOrientationPatient" not in one:
        raise ValueError("slices without ImagePositionPatient cannot be put in order")
    rows, columns = np.reshape([float(value) for value in one.ImageOrientationPatient], (2, 3))
    position = np.array([float(value) for value in one.ImagePositionPatient])
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
        return float(np.median(np.diff([_position(one) for one in slices])))
    first = slices[0]
    stated = first.get("SpacingBetweenSlices") or first.get("SliceThickness")
    return float(stated) if stated else None


def _padding(one: Any) -> tuple[int, int] | None:
    """Return the range of stored values that fill up an image beyond what was measured."""
    value = one.get("PixelPaddingValue")
    if value is None:
        return None
    limit = one.get("PixelPaddingRangeLimit", value)
    # Many write it without its sign.
    size = 1 << int(one.BitsAllocated)
    low = -size // 2 if one.PixelRepresentation else 0
    first, last = sorted((int(end) - low) % size + low for end in (value, limit))
    return first, last


def _without_padding(plane: np.ndarray, one: Any) -> np.ndarray:
    """Return a plane with NaN where it was filled up."""
    padding = _padding(one)
    if padding is None:
        return plane
    stored = one.pixel_array
    filled = (stored >= padding[0]) & (stored <= padding[1])
    return np.where(filled, np.nan, plane) if filled.any() else plane


def _padding_words(slices: list[Any]) -> str:
    ranges = sorted({padding for one in slices if (padding := _padding(one))})
    if not ranges:
        return ""
    low, high = ranges[0][0], ranges[-1][1]
    return f"its PixelPaddingValue is {low}{f' to {high}' if low != high else ''}"
