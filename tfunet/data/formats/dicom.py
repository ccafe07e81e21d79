"""DICOM with pydicom: a folder with the slices of one series, or a single file."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.pixels import apply_color_lut, apply_modality_lut, pixel_array

from tfunet.data.formats.claims import check_claim, check_regular, pointer
from tfunet.data.formats.dicom_decoders import add_decoders
from tfunet.data.formats.dicom_frames import (
    Frame,
    affine,
    frames_of,
    num_frames,
    ordered,
    pixel_spacing,
    plane_distance,
)
from tfunet.data.formats.dicom_segments import is_segmentation, segmentation, segments
from tfunet.data.formats.stored import PlaneGrid, Stored

# Modalities whose numbers are measurements in units, whatever is shown in white.
MEASURED = ("CT", "PT", "NM", "RTDOSE")
PALETTE = "PALETTE COLOR"
DECOMPRESS = "decompress it first, with 'gdcmconv --raw IN OUT' or 'dcmdjpeg IN OUT'"

add_decoders()


def stored(path: Path, *, labels: bool = False, grid: PlaneGrid | None = None) -> Stored:
    """Describe the series: planes in the order of their positions, rows, columns, colours.

    A segmentation (SEG) lies on the grid of its image.
    """
    frames = _frames(path, pixels=False)
    return segmentation(frames, grid) if is_segmentation(frames) else _stored(frames, labels=labels)


def decoded(
    path: Path, *, labels: bool = False, grid: PlaneGrid | None = None
) -> tuple[Stored, np.ndarray]:
    """Return what the series is and its pixels, in the units of the modality, 0 being black.

    Of a palette's labels they are its numbers, of a segmentation (SEG) its segments.
    """
    frames = _frames(path, pixels=True)
    if is_segmentation(frames):
        described = segmentation(frames, grid)
        return described, segments(frames, described, _stored_plane)
    described = _stored(frames, labels=labels)
    planes = [_plane(frame, labels=labels) for frame in frames]
    return described, np.stack(planes).reshape(described.shape)


def _stored(frames: Sequence[Frame], *, labels: bool) -> Stored:
    first = frames[0].dataset
    sizes = pixel_spacing(frames[0])
    spacing = dict(zip("yx", sizes, strict=False))
    depth = plane_distance(frames)
    if depth:
        spacing["z"] = depth
    samples, dtype = int(first.SamplesPerPixel), _dtype(first)
    if first.PhotometricInterpretation == PALETTE and not labels:
        samples = 3
        dtype = f"uint{first.RedPaletteColorLookupTableDescriptor[2]}"
    return Stored(
        shape=(len(frames), int(first.Rows), int(first.Columns), samples),
        axes="zyxs",
        dtype=dtype,
        spacing=spacing,
        unit="mm",
        affine=affine(frames),
        nodata_from="" if labels else _padding_words([frame.dataset for frame in frames]),
    )


def _dtype(dataset: Any) -> str:
    # Pixels in floating point have no PixelRepresentation (PS3.3 C.7.6.24).
    kinds = {None: "float", 0: "uint", 1: "int"}
    return f"{kinds[dataset.get('PixelRepresentation')]}{int(dataset.BitsAllocated)}"


def _plane(frame: Frame, *, labels: bool) -> np.ndarray:
    """Return the pixels of a frame in the units of its modality, or its colours."""
    dataset, stored = frame.dataset, _stored_plane(frame)
    pixels = stored
    meaning = dataset.PhotometricInterpretation
    if meaning == PALETTE:
        return pixels if labels else apply_color_lut(pixels, dataset)[..., :3]
    if meaning == "MONOCHROME1" and not labels:
        pixels = _inverted(dataset, pixels)
    if "DoseGridScaling" in dataset:
        return pixels * float(dataset.DoseGridScaling)
    plane = apply_modality_lut(pixels, frame.group("PixelValueTransformationSequence"))
    return plane if labels else _without_padding(plane, stored, dataset)


def _stored_plane(frame: Frame) -> np.ndarray:
    try:
        return pixel_array(frame.dataset, index=frame.number)
    except (RuntimeError, NotImplementedError) as error:
        syntax = frame.dataset.file_meta.TransferSyntaxUID.name
        raise ValueError(f"{error}; it is compressed as {syntax}: {DECOMPRESS}") from error


def _inverted(dataset: Any, pixels: np.ndarray) -> np.ndarray:
    """Return pixels with 0 as black, of a data set that says that it is white."""
    if "ModalityLUTSequence" in dataset or pixels.dtype.kind == "f":
        raise ValueError("MONOCHROME1 with a table or floating point: convert it to MONOCHROME2")
    bits = int(dataset.BitsStored)
    ends = -1 if dataset.PixelRepresentation else 2**bits - 1  # The lowest plus the highest.
    return (ends - pixels.astype(np.int64)).astype(pixels.dtype)


def _frames(path: Path, *, pixels: bool) -> list[Frame]:
    """Return the frames of a series in the order of their positions along its normal."""
    files = [path] if path.is_file() else _files(path)
    images = [image for file in files if "Rows" in (image := _read(file, pixels=pixels))]
    if not images:
        raise ValueError("no DICOM image in it")
    series = sorted({str(image.get("SeriesInstanceUID", "")) for image in images})
    if len(series) > 1:
        raise ValueError(
            f"{len(series)} series in one folder ({', '.join(series[:3])}); give each its own"
        )
    kinds = {(image.Rows, image.Columns, image.SamplesPerPixel) for image in images}
    if len(kinds) > 1:
        raise ValueError(f"slices of {len(kinds)} sizes in one series: {sorted(kinds)}")
    meanings = {(str(image.PhotometricInterpretation), _dtype(image)) for image in images}
    if len({meaning == PALETTE for meaning, _ in meanings}) > 1:
        raise ValueError(f"slices of {len(meanings)} kinds in one series: {sorted(meanings)}")
    for image in images:
        _check_white(image)
    frames = [frame for image in images for frame in frames_of(image)]
    return frames if is_segmentation(frames) else ordered(frames)


def _check_white(dataset: Any) -> None:
    """Raise ValueError where it is not clear which end of the numbers is white."""
    meaning, shape = dataset.PhotometricInterpretation, dataset.get("PresentationLUTShape")
    if meaning == "MONOCHROME2" and shape == "INVERSE":
        raise ValueError(
            "two statements about its white: PhotometricInterpretation MONOCHROME2 says that high "
            "values are white, PresentationLUTShape INVERSE that low ones are. Correct one of them"
        )
    if meaning == "MONOCHROME1" and dataset.get("Modality") in MEASURED:
        raise ValueError(
            f"its PhotometricInterpretation is MONOCHROME1 (low values are white), and values of "
            f"{dataset.Modality} are measured. If they are right, make it MONOCHROME2"
        )


def _files(folder: Path) -> list[Path]:
    names = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    return [name for name in names if not name.is_dir() and name.name != "DICOMDIR"]


def _read(file: Path, *, pixels: bool) -> Any:
    try:
        check_regular(file)
        _check_deflated(file)
        found = pydicom.dcmread(file, stop_before_pixels=not pixels)
    except pydicom.errors.InvalidDicomError as error:
        reason = _where(file) or (
            "it is no DICOM file (Part 10): it has no mark 'DICM' at byte 128. 'dcmconv IN OUT' "
            "of dcmtk adds it to a data set without"
        )
        raise ValueError(f"{file.name}: {reason}") from error
    except (EOFError, ValueError, FileNotFoundError) as error:
        raise ValueError(f"{file.name}: {_where(file) or error}") from error
    # pydicom reads a header that was cut off as far as it goes; reports and the like have no rows.
    kind = pydicom.uid.UID(found.file_meta.get("MediaStorageSOPClassUID") or "").name
    if "Rows" not in found:
        if kind.endswith("Image Storage"):
            raise ValueError(f"{file.name}: the file ends before its pixels")
        return found
    shape = (num_frames(found), found.Rows, found.Columns, found.SamplesPerPixel)
    check_claim(shape, -(-int(found.BitsAllocated) // 8), file.stat().st_size)
    return found


def _where(file: Path) -> str:
    where = pointer(file)
    return f"it is {where}" if where else ""


def _check_deflated(file: Path) -> None:
    """Raise ValueError where a data set that is deflated as a whole would fill the memory."""
    meta = pydicom.filereader.read_file_meta_info(file)
    if meta.get("TransferSyntaxUID") != pydicom.uid.DeflatedExplicitVRLittleEndian:
        return
    # Preamble, mark, and the group of 12 bytes that says how long the header is.
    start = 128 + 4 + 12 + int(meta.FileMetaInformationGroupLength)
    inflate, num_bytes = zlib.decompressobj(-zlib.MAX_WBITS), 0
    with file.open("rb") as content:
        content.seek(start)
        packed = content.read(2**20)
        while packed and not inflate.eof:
            num_bytes += len(inflate.decompress(packed, 2**20))
            check_claim((num_bytes,), 1, file.stat().st_size, "its deflated content")
            packed = inflate.unconsumed_tail or content.read(2**20)


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


def _without_padding(plane: np.ndarray, stored: np.ndarray, one: Any) -> np.ndarray:
    """Return a plane with NaN where it was filled up."""
    padding = _padding(one)
    if padding is None:
        return plane
    filled = (stored >= padding[0]) & (stored <= padding[1])
    return np.where(filled, np.nan, plane) if filled.any() else plane


def _padding_words(slices: list[Any]) -> str:
    ranges = sorted({padding for plane in slices if (padding := _padding(plane))})
    if not ranges:
        return ""
    low, high = ranges[0][0], ranges[-1][1]
    return f"its PixelPaddingValue is {low}{f' to {high}' if low != high else ''}"
