"""NIfTI: headers that say two things about where the voxels lie, and content behind the voxels."""

import gzip
import struct

import nibabel
import numpy as np
import pytest

from tfunet.data.image_files import read_header, read_image
from tfunet.data.layouts.folder import open_folder

RNG = np.random.default_rng(0)
VOLUME = RNG.normal(size=(12, 10, 8)).astype(np.float32)
FINE, COARSE = np.diag([0.5, 0.5, 2, 1]), np.eye(4)
TURNED = FINE @ np.array([[0, -1, 0, 3], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
MIRRORED = np.diag([-0.5, 0.5, 2, 1])
SHIFTED = FINE + np.array([[0, 0, 0, 0.4], [0] * 4, [0] * 4, [0] * 4])
NEAR = FINE + np.array([[0, 0, 0, 0.2], [0] * 4, [0] * 4, [0] * 4])


def save(path, *, sform=None, qform=None, pixdim=None):
    """Write a volume; sform and qform are (affine, code)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(VOLUME, None)
    image.set_sform(*(sform or (None, 0)))
    image.set_qform(*(qform or (None, 0)))
    if pixdim is not None:
        image.header["pixdim"][1:4] = pixdim
    nibabel.save(image, path)
    return path


SIZES = (1, 1, 1)
CONTRADICTIONS = {
    "sform and pixdim": ({"sform": (FINE, 2), "pixdim": SIZES}, "pixdim says 1 x 1 x 1, sform 0.5"),
    "sform of the scanner": ({"sform": (FINE, 1), "pixdim": SIZES}, "sform 0.5 x 0.5 x 2"),
    "sform and qform of other sizes": (
        {"sform": (FINE, 2), "qform": (COARSE, 1)},
        "pixdim says 1 x 1 x 1, sform 0.5",
    ),
    "turned": ({"sform": (TURNED, 1), "qform": (FINE, 1), "pixdim": (0.5, 0.5, 2)}, "qform"),
    "mirrored": ({"sform": (MIRRORED, 2), "qform": (FINE, 1)}, "qform .code 1. and sform .code 2."),
    "shifted": ({"sform": (SHIFTED, 1), "qform": (FINE, 1)}, "up to 0.4 apart"),
    "a template alone": ({"sform": (FINE, 4), "pixdim": SIZES}, "pixdim says 1 x 1 x 1, sform"),
}
AGREEMENTS = {
    "sform alone": {"sform": (FINE, 2), "pixdim": (0.5, 0.5, 2)},
    "qform alone": {"qform": (TURNED, 1)},
    "pixdim alone": {"qform": (FINE, 0)},
    "both": {"sform": (FINE, 1), "qform": (FINE, 1)},
    "less than half a voxel": {"sform": (NEAR, 1), "qform": (FINE, 1)},
    # Its coordinates lie elsewhere by their meaning.
    "a template beside the scanner": {"sform": (COARSE, 4), "qform": (FINE, 1)},
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_two_statements_are_both_named(tmp_path, name, suffix):
    header, words = CONTRADICTIONS[name]
    save(tmp_path / f"a{suffix}", **header)
    save(tmp_path / "masks" / f"a{suffix}", **header)
    folder = {
        "root": str(tmp_path),
        "images": f"{{case}}{suffix}",
        "masks": f"masks/{{case}}{suffix}",
    }
    with pytest.raises(ValueError, match=rf"a{suffix}: makes two statements .*{words}") as caught:
        open_folder(**folder)
    assert f"(1 more like it: masks/a{suffix})" in str(caught.value)
    with pytest.raises(ValueError, match=words):
        open_folder(**folder, target_pixel_size=1.0)
    # The user's word ends it.
    sizes = {"pixel_size": [0.5, 0.5, 2], "target_pixel_size": 1.0}
    source = open_folder(**folder, **sizes, classes={"cell": 1})
    assert source.defects == ()


@pytest.mark.parametrize("name", AGREEMENTS)
def test_one_statement_is_believed(tmp_path, name):
    header = read_header(save(tmp_path / "a.nii", **AGREEMENTS[name]))
    assert header.contradiction == ""
    assert header.spacing == (0.5, 0.5, 2)


def behind(path, rest):
    save(path, sform=(FINE, 1), qform=(FINE, 1))
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + rest))


def test_what_lies_behind_the_voxels_is_not_unpacked_into_memory(tmp_path):
    behind(tmp_path / "a.nii.gz", bytes(100))
    np.testing.assert_array_equal(read_image(tmp_path / "a.nii.gz")[..., 0], VOLUME)
    behind(tmp_path / "b.nii.gz", bytes(40 * 2**20))
    with pytest.raises(ValueError, match=r"bytes follow its last voxel"):
        read_image(tmp_path / "b.nii.gz")


@pytest.mark.parametrize("offset", [1e12, -352, float("nan")])
def test_voxels_that_begin_nowhere_are_refused(tmp_path, offset):
    path = save(tmp_path / "a.nii", sform=(FINE, 1))
    content = bytearray(path.read_bytes())
    content[108:112] = struct.pack("<f", offset)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read"):
        read_header(path)


@pytest.mark.parametrize("offset", [0, 16])
def test_voxels_cannot_begin_in_the_header(tmp_path, offset):
    path = save(tmp_path / "a.nii")
    content = bytearray(path.read_bytes())
    struct.pack_into("<f", content, 108, offset)
    path.write_bytes(bytes(content))
    for read in (read_header, read_image):
        with pytest.raises(
            ValueError, match=f"begin at byte {offset} .vox|offset {offset} too low"
        ):
            read(path)


@pytest.mark.parametrize(("highest", "words"), [(2**24, ""), (2**24 + 1, "go beyond 16777216")])
def test_whole_numbers_that_float32_cannot_tell_apart_are_said(tmp_path, highest, words):
    said = []
    np.save(tmp_path / "a.npy", np.array([[0, -5], [highest, 7]], np.int32))
    image = read_image(tmp_path / "a.npy", note=said.append)
    assert image.max() == np.float32(highest)
    assert len(said) == bool(words)
    assert all(words in line for line in said)
