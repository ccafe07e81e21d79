"""Folders of images and masks, and what `tfunet init` writes for them."""

import itertools
import tomllib

import nibabel
import numpy as np
import tifffile
from PIL import Image

from tfunet.arguments import from_dict
from tfunet.data.check import check
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.early_checks import check_early
from tfunet.data.source import open_source
from tfunet.data.split import split_of

RNG = np.random.default_rng(0)


def save(path, pixels, spacing=(1, 1, 1)):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(pixels, np.diag([*spacing, 1])), path)
    elif path.suffix == ".tif":
        tifffile.imwrite(path, pixels)
    else:
        Image.fromarray(pixels).save(path)


def grey(*shape):
    return RNG.integers(0, 256, shape or (32, 48)).astype(np.uint8)


def square(*values, shape=(32, 48)):
    mask = np.zeros(shape, np.uint8)
    for number, value in enumerate(values):
        mask[4 * number : 4 * number + 3, 5:15] = value
    return mask


def five_pairs(folder, image=grey, mask=None):
    """Save five images, and their masks, which are a white square by default."""
    for name in "abcde":
        save(folder / "images" / f"{name}.png", image())
        save(folder / "masks" / f"{name}.png", square(255) if mask is None else mask)


def begun(folder, **given):
    """Return the table that `tfunet init` writes, which can be checked and trained."""
    run = describe_folder(str(folder), **given)
    text = run.text(["head"])
    table = tomllib.loads(text)
    config = from_dict(table)
    source = open_source(config.data, config.data_options)
    report = check(source, split_of(config, source))
    assert report.defects == ()
    check_early(config)
    samples = len(split_of(config, source).train) * config.patches_per_case
    assert samples >= config.global_batch
    # Each line has its reason.
    lines = [line for line in text.splitlines() if line]
    for before, line in itertools.pairwise(lines):
        is_given = line.split(" = ")[0] in ("masks", "images", "alpha", "classes")
        assert line[0] in "#[" or before[0] == "#" or is_given, line
    return table
