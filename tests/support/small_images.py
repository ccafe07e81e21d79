"""Small images, files of them, and ways to damage a file."""

import nibabel
import numpy as np
import tifffile
from PIL import Image

RNG = np.random.default_rng(0)


def whole(shape, dtype, high):
    return RNG.integers(0, high, shape).astype(dtype)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith((".nii", ".nii.gz")):
        nibabel.save(nibabel.Nifti1Image(pixels, np.diag([0.5, 1, 2, 1])), path)
    elif path.suffix == ".npy":
        np.save(path, pixels)
    elif path.suffix in (".tif", ".tiff"):
        tifffile.imwrite(path, pixels, **options)
    else:
        Image.fromarray(pixels).save(path, **options)


GREY8 = whole((20, 31), np.uint8, 256)
GREY16 = whole((20, 31), np.uint16, 65536)
COLOUR8 = whole((20, 31, 3), np.uint8, 256)
STACK16 = whole((6, 20, 31), np.uint16, 65536)
VOLUME = RNG.normal(0, 1e5, (9, 7, 5)).astype(np.float32)


def cut(path, share=0.6):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flip_bytes(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(byte ^ 0x5A for byte in content[middle : middle + 40])
    path.write_bytes(content)
