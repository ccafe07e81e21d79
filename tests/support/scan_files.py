"""Volumes in the layouts of docs/data.md: slices, MetaImage and NRRD."""

import numpy as np
import SimpleITK
from PIL import Image

SHAPE = (12, 40, 48)


def write_volume(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = SimpleITK.GetImageFromArray(pixels)
    image.SetSpacing((0.7, 0.7, 2.5))
    SimpleITK.WriteImage(image, str(path))


def write_scans(folder):
    """Write slices with a mask as NRRD, and two sequences with labels, of five cases each."""
    rng = np.random.default_rng(0)
    places = np.indices(SHAPE).transpose(1, 2, 3, 0)
    for number in range(5):
        centre = rng.integers(14, 26, 3) * [0, 1, 1] + [6, 0, 0]
        distance = np.linalg.norm((places - centre) * [2.5, 0.7, 0.7], axis=-1)
        inside = (distance < 10).astype(np.uint8)
        image = (rng.normal(60, 8, SHAPE) + 80 * inside).clip(1, 255).astype(np.uint8)
        case = folder / "scans" / f"p{number}"
        write_volume(case / "nodule.nrrd", inside)
        (case / "slices").mkdir()
        for plane, pixels in enumerate(image):
            Image.fromarray(pixels).save(case / f"slices/{plane}.png")
        brain = distance < 25
        labels = inside + (distance < 6) + (distance < 4).astype(np.uint8)
        for name, part in (("t1.mhd", image * brain), ("t2.nrrd", (255 - image) * brain)):
            write_volume(folder / "sequences" / f"p{number}_{name}", part.astype(np.int16))
        write_volume(folder / "sequences" / f"p{number}_labels.mha", labels.astype(np.uint8))
