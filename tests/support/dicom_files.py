"""Small DICOM files: single slices, frames in functional groups, segments."""

import numpy as np
import pydicom
from pydicom.uid import (
    CTImageStorage,
    EnhancedCTImageStorage,
    ExplicitVRLittleEndian,
    SegmentationStorage,
    generate_uid,
)

SERIES = generate_uid(entropy_srcs=["series"])
AXIAL = [1, 0, 0, 0, 1, 0]


def item(**values):
    one = pydicom.Dataset()
    for name, value in values.items():
        setattr(one, name, value)
    return one


def dataset(pixels, storage=CTImageStorage, *, meaning="MONOCHROME2", bits_stored=None, **values):
    """Return a data set of pixels (rows, columns), (frames, rows, columns) or with 3 colours."""
    one = pydicom.Dataset()
    one.file_meta = pydicom.dataset.FileMetaDataset()
    one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = storage
    one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = generate_uid()
    one.SeriesInstanceUID = SERIES
    one.SamplesPerPixel = 3 if meaning == "RGB" else 1
    one.PhotometricInterpretation = meaning
    shape = pixels.shape[:-1] if one.SamplesPerPixel == 3 else pixels.shape
    one.Rows, one.Columns = shape[-2:]
    if len(shape) == 3:
        one.NumberOfFrames = shape[0]
    if one.SamplesPerPixel == 3:
        one.PlanarConfiguration = 0
    one.BitsAllocated = pixels.dtype.itemsize * 8
    one.BitsStored = bits_stored or one.BitsAllocated
    one.HighBit = one.BitsStored - 1
    one.PixelRepresentation = int(pixels.dtype.kind == "i")
    content = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    one.PixelData = content + b"\0" * (len(content) % 2)
    for name, value in values.items():
        setattr(one, name, value)
    return one


def save(path, one):
    path.parent.mkdir(parents=True, exist_ok=True)
    pydicom.dcmwrite(path, one, enforce_file_format=True)
    return path


def slices(folder, volume, *, first=0.0, step=2.0, **values):
    """Write planes as the files of a series, in no order of names."""
    for number, plane in enumerate(volume):
        one = dataset(
            plane,
            PixelSpacing=[0.5, 0.25],
            ImageOrientationPatient=AXIAL,
            ImagePositionPatient=[10, 20, first + step * number],
            **values,
        )
        save(folder / f"{(number * 7) % 11}.dcm", one)
    return folder


def per_frame(positions, **groups):
    """Return an item for each frame: its position, and in each group the frame's values."""
    items = []
    for number, position in enumerate(positions):
        place = item(ImagePositionPatient=list(position))
        frame = item(PlanePositionSequence=[place])
        for name, values in groups.items():
            setattr(frame, name, [item(**values[number])])
        items.append(frame)
    return items


def shared(*, spacing=(0.5, 0.25), step=2.0, turned=AXIAL, **groups):
    measures = item(PixelSpacing=list(spacing), SliceThickness=step, SpacingBetweenSlices=step)
    one = item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=turned)],
        PixelMeasuresSequence=[measures],
    )
    for name, values in groups.items():
        setattr(one, name, [item(**values)])
    return [one]


def enhanced(pixels, positions, *, shared_groups=None, frame_groups=None, **values):
    """Return an enhanced CT with its geometry in functional groups."""
    return dataset(
        pixels,
        EnhancedCTImageStorage,
        SharedFunctionalGroupsSequence=shared(**(shared_groups or {})),
        PerFrameFunctionalGroupsSequence=per_frame(positions, **(frame_groups or {})),
        **values,
    )


def segmentation(masks, positions, numbers, *, kind="BINARY", shared_groups=None, **values):
    """Return a SEG of masks (frames, rows, columns), each of a segment."""
    if kind == "BINARY":
        one = dataset(masks.astype(np.uint8), SegmentationStorage)
        one.BitsAllocated = one.BitsStored = 1
        one.HighBit = 0
        packed = np.packbits((masks != 0).ravel(), bitorder="little").tobytes()
        one.PixelData = packed + b"\0" * (len(packed) % 2)
    else:
        one = dataset(masks.astype(np.uint8), SegmentationStorage)
    one.SegmentationType = kind
    one.SegmentSequence = [item(SegmentNumber=int(segment)) for segment in sorted(set(numbers))]
    groups = {}
    if kind != "LABELMAP":
        identified = [{"ReferencedSegmentNumber": int(number)} for number in numbers]
        groups = {"SegmentIdentificationSequence": identified}
    one.SharedFunctionalGroupsSequence = shared(**(shared_groups or {}))
    one.PerFrameFunctionalGroupsSequence = per_frame(positions, **groups)
    for name, value in values.items():
        setattr(one, name, value)
    return one
