"""Orientation tags: where the first stored row and column belong (TIFF 6.0, tag 274; EXIF)."""

from dataclasses import replace

import numpy as np

from tfunet.data.formats.stored import Stored

TAG = 274
TRANSPOSED = (5, 6, 7, 8)
# After rows and columns were exchanged.
MIRRORED = {"y": (3, 4, 7, 8), "x": (2, 3, 6, 7)}


def upright(stored: Stored, orientation: int) -> Stored:
    """Describe the array after `upright_pixels`."""
    if orientation not in TRANSPOSED:
        return stored
    shape = list(stored.shape)
    y, x = (stored.axes.index(letter) for letter in "yx")
    shape[y], shape[x] = shape[x], shape[y]
    exchanged = {"y": "x", "x": "y"}
    spacing = {exchanged.get(letter, letter): size for letter, size in stored.spacing.items()}
    return replace(stored, shape=tuple(shape), spacing=spacing, transposed=True)


def upright_pixels(pixels: np.ndarray, axes: str, orientation: int) -> np.ndarray:
    """Return pixels as a viewer shows them; `axes` has a letter for each axis."""
    places = {letter: axes.index(letter) for letter in "yx"}
    if orientation in TRANSPOSED:
        pixels = pixels.swapaxes(*places.values())
    flipped = [places[letter] for letter, tags in MIRRORED.items() if orientation in tags]
    return np.flip(pixels, flipped) if flipped else pixels
