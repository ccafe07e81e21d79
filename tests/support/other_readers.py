"""Pixels of image files without tfunet: Pillow, nibabel, and DICOM decoded by hand."""

import struct

import imagecodecs
import nibabel
import numpy as np
import pydicom
from PIL import Image, ImageOps
from pydicom import uid
from pydicom.encaps import generate_frames

# ITU-R BT.601, as PS3.3 C.7.6.3.1.2 writes it.
TO_RGB = np.array([[1, 0, 1.402], [1, -0.344136, -0.714136], [1, 1.772, 0]])


def pixels_of(path):
    """Return the image in a file as (*spatial, channels), float64."""
    name = path.name.lower()
    if name.endswith((".png", ".jpg")):
        return drawn(path)
    if name.endswith((".nii", ".nii.gz")):
        pixels = np.asarray(nibabel.load(path).dataobj, float)
        return pixels.reshape(*pixels.shape[:3], -1)
    return dicom(path)


def drawn(path):
    with Image.open(path) as image:
        image = ImageOps.exif_transpose(image)
        if image.mode == "P":
            image = image.convert("RGBA").convert("RGB")
        pixels = np.asarray(image, float)
        alpha = image.mode.endswith("A")
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return pixels[..., :-1] if alpha else pixels


def dicom(path):
    one = pydicom.dcmread(path)
    syntax = one.file_meta.TransferSyntaxUID
    samples, frames = one.SamplesPerPixel, int(one.get("NumberOfFrames") or 1)
    shape = (frames, one.Rows, one.Columns, samples)
    pixels = encapsulated(one, syntax, shape) if syntax.is_encapsulated else native(one, shape)
    meaning = one.PhotometricInterpretation
    if "SegmentSequence" in one:
        return pixels[0] * int(one.SegmentSequence[0].SegmentNumber)
    if meaning.startswith("YBR") and not (syntax.is_encapsulated and "JPEG" in syntax.name):
        pixels = np.rint((pixels - [0, 128, 128]) @ TO_RGB.T).clip(0, 255)
    if meaning == "PALETTE COLOR":
        pixels = np.stack(
            [table(one, name, pixels[..., 0]) for name in ("Red", "Green", "Blue")], -1
        )
    if meaning == "MONOCHROME1":
        pixels = (-1 if one.PixelRepresentation else 2**one.BitsStored - 1) - pixels
    slope = one.get("DoseGridScaling") or one.get("RescaleSlope", 1)
    pixels = pixels * float(slope) + float(one.get("RescaleIntercept", 0))
    return pixels[0] if frames == 1 else pixels


def native(one, shape):
    order = "<" if one.original_encoding[1] else ">"
    kind = "ui"[one.PixelRepresentation] + str(one.BitsAllocated // 8)
    content = one.PixelData
    if one.BitsAllocated == 1:
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        return bits[: np.prod(shape)].reshape(shape).astype(float)
    if order == ">" and one.BitsAllocated == 8 and one["PixelData"].VR == "OW":
        content = np.frombuffer(content, "<u2").byteswap().tobytes()
    if one.PhotometricInterpretation == "YBR_FULL_422":
        packed = np.frombuffer(content, np.uint8)[: np.prod(shape) * 2 // 3].reshape(-1, 4)
        y0, y1, blue, red = packed.T
        pairs = np.stack([np.stack([y0, blue, red], -1), np.stack([y1, blue, red], -1)], 1)
        return pairs.reshape(shape).astype(float)
    pixels = np.frombuffer(content, order + kind)[: np.prod(shape)]
    if shape[-1] == 3 and one.PlanarConfiguration:
        frames, rows, columns, samples = shape
        return np.moveaxis(pixels.reshape(frames, samples, rows, columns), 1, -1).astype(float)
    return pixels.reshape(shape).astype(float)


def encapsulated(one, syntax, shape):
    frames = list(generate_frames(one.PixelData, number_of_frames=shape[0]))
    if syntax == uid.RLELossless:
        planes = [run_lengths(frame, one.BitsAllocated // 8, shape[1:]) for frame in frames]
    else:
        decode = {
            uid.JPEGBaseline8Bit: imagecodecs.jpeg8_decode,
            uid.JPEGExtended12Bit: imagecodecs.jpeg8_decode,
            uid.JPEGLosslessSV1: imagecodecs.ljpeg_decode,
            uid.JPEGLSLossless: imagecodecs.jpegls_decode,
            uid.JPEGLSNearLossless: imagecodecs.jpegls_decode,
            uid.JPEG2000: imagecodecs.jpeg2k_decode,
            uid.JPEG2000Lossless: imagecodecs.jpeg2k_decode,
        }[syntax]
        as_stored = {"colorspace": "rgb", "outcolorspace": "rgb"}
        is_plain = decode is imagecodecs.jpeg8_decode and one.PhotometricInterpretation == "RGB"
        planes = [decode(frame, **(as_stored if is_plain else {})) for frame in frames]
    pixels = np.stack(planes).reshape(shape)
    if one.PixelRepresentation:
        pixels = pixels.astype(f"i{pixels.dtype.itemsize}")
    return pixels.astype(float)


def run_lengths(frame, itemsize, shape):
    """PS3.5 annex G: a segment a byte, the highest first, sample by sample."""
    number, *offsets = struct.unpack("<16L", frame[:64])
    ends = [*offsets[1:number], len(frame)]
    size = shape[0] * shape[1]
    segments = [
        np.frombuffer(imagecodecs.packbits_decode(frame[start:end]), np.uint8)[:size]
        for start, end in zip(offsets[:number], ends, strict=True)
    ]
    samples = [
        np.stack(segments[first : first + itemsize], -1).copy().view(f">u{itemsize}")
        for first in range(0, number, itemsize)
    ]
    return np.concatenate(samples, -1).astype(f"u{itemsize}").reshape(shape)


def table(one, name, indices):
    entries, first, bits = getattr(one, f"{name}PaletteColorLookupTableDescriptor")
    content = getattr(one, f"{name}PaletteColorLookupTableData")
    values = np.frombuffer(content, f"<u{bits // 8}")[: entries or 65536]
    return values[(indices.astype(int) - first).clip(0, len(values) - 1)].astype(float)
