"""Decoders of imagecodecs for compressions of DICOM that pydicom cannot decode by itself."""

from collections.abc import Callable
from typing import Any

import imagecodecs
import numpy as np
from pydicom import uid
from pydicom.pixels import get_decoder

JPEG = (uid.JPEGExtended12Bit, uid.JPEGLossless, uid.JPEGLosslessSV1)
JPEG_LS = (uid.JPEGLSLossless, uid.JPEGLSNearLossless)
# Named by pydicom's protocol of plugins.
DECODER_DEPENDENCIES = dict.fromkeys((*JPEG, *JPEG_LS), ("imagecodecs",))


def is_available(transfer_syntax: str) -> bool:
    """Return whether a compression can be decoded, as pydicom asks every plugin."""
    return transfer_syntax in DECODER_DEPENDENCIES


def decode(content: bytes, runner: Any) -> bytearray:
    """Return the pixels of one frame, as pydicom asks every plugin."""
    several = runner.samples_per_pixel > 1
    # Named, or colours would be taken for YCbCr, which pydicom converts itself.
    colours = "rgb" if several else "grayscale"
    options = {"colorspace": colours, "outcolorspace": colours}
    decoder: Callable[..., np.ndarray] = imagecodecs.jpeg8_decode
    if runner.transfer_syntax in JPEG_LS:
        decoder, options = imagecodecs.jpegls_decode, {}
    pixels = decoder(bytes(content), **options)
    runner.set_option("bits_allocated", pixels.dtype.itemsize * 8)
    if several:
        runner.set_option("planar_configuration", 0)
    return bytearray(np.ascontiguousarray(pixels).tobytes())


def add_decoders() -> None:
    """Tell pydicom of these decoders; it tries its own first."""
    for package in DECODER_DEPENDENCIES:
        plugins = get_decoder(package)
        if "imagecodecs" not in plugins.available_plugins:
            plugins.add_plugin("imagecodecs", (__name__, "decode"))
