"""Files of many makers, which come with packages on PyPI, beside another reader.

`public_files.tsv` names each file, its hash and what reading it gives.
"""

import hashlib
import importlib.util
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from other_readers import pixels_of
from paths import ROOT

from tfunet.data.defects import BadFileError
from tfunet.data.image_files import read_header, read_image

LINES = (ROOT / "tests" / "data" / "public_files.tsv").read_text().splitlines()
ROWS = [line.split("\t") for line in LINES if not line.startswith("#")]
PACKAGES = Counter(package for package, *_ in ROWS)
EQUAL = "equal"
# The code stream of JPEG 2000 is signed and the header is not: pydicom believes the code stream.
SIGN = "sign of the code stream"
SUFFIXES = (".png", ".jpg", ".nii.gz", ".nii")


def linked(folder, number, file):
    """Return a link that is named after the file's format: most DICOM files have no suffix."""
    suffix = next((suffix for suffix in SUFFIXES if file.name.lower().endswith(suffix)), ".dcm")
    link = folder / f"{number}{suffix}"
    link.symlink_to(file)
    return link


def test_the_list_is_long():
    assert len({digest for _, _, digest, _ in ROWS}) >= 200
    assert Counter(outcome == EQUAL for *_, outcome in ROWS)[True] >= 140


@pytest.mark.parametrize("package", PACKAGES)
def test_public_files_are_read_as_another_reader_does(tmp_path, package):
    home = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    wrong = []
    for number, (owner, name, digest, outcome) in enumerate(ROWS):
        if owner != package:
            continue
        content = (home / name).read_bytes()
        assert hashlib.sha256(content).hexdigest()[:16] == digest, f"{name} is another file"
        path = linked(tmp_path, number, home / name)
        with warnings.catch_warnings(action="ignore"):  # pydicom's, about what the files do wrong.
            try:
                found = compared(path)
            except BadFileError as error:
                found = str(error)
        if outcome not in found:
            wrong.append(f"{name}: expected {outcome!r}, got {found!r}")
    assert wrong == []


def compared(path):
    """Return whether both readers give the same; raise BadFileError for what cannot be read."""
    image, header = read_image(path), read_header(path)
    assert (*header.shape, header.channels) == image.shape
    other = pixels_of(path).astype(np.float32)
    if other.shape != image.shape:
        return f"shape {image.shape} beside {other.shape}"
    return EQUAL if np.array_equal(image, other) else f"{SIGN} or other pixels"
