"""Readers: a truncated or damaged file, or one that is no image, is named with its reason."""

import sys

import numpy as np
import pytest
import tifffile
from PIL import Image
from small_images import COLOUR8, GREY8, VOLUME, cut, flip_bytes, save, whole

from tfunet.data.image_files import read_header, read_image, read_mask


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_truncated_png_or_jpeg_is_found_by_its_header_check(tmp_path, name):
    save(tmp_path / name, whole((40, 41), np.uint8, 256))
    cut(tmp_path / name)
    with pytest.raises(ValueError, match="truncated"):
        read_header(tmp_path / name)


@pytest.mark.parametrize(
    ("harm", "name"),
    # Other formats, cut off: tests/data/test_bad_files.py.
    [(cut, "a.jpg"), (cut, "a.nii"), (flip_bytes, "a.png"), (flip_bytes, "a.nii.gz")],
)
def test_a_damaged_file_is_named(tmp_path, harm, name):
    save(tmp_path / name, whole((60, 61), np.uint8, 256))
    harm(tmp_path / name)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_image(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.nii", "a.nii.gz"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"this is no image" * 40, "cannot be read"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_image_says_why(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for read in (read_header, read_image, read_mask):
        with pytest.raises(ValueError, match=reason) as caught:
            read(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        # NumPy would drop the imaginary part.
        ("a.tif", GREY8.astype(np.complex64), "values of type complex64; readable: whole and real"),
        ("a.npy", GREY8 * 1j, "values of type complex128"),
        ("a.npy", GREY8.astype("M8[s]"), r"values of type datetime64\[s\]"),
        ("a.npy", GREY8.astype("U3"), "values of type <U3"),
        ("a.npy", GREY8.view([("a", "u1")]), r"values of type \[\('a', 'u1'\)\]"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, name, values, reason):
    path = tmp_path / name
    tifffile.imwrite(path, values) if path.suffix == ".tif" else np.save(path, values)
    for read in (read_header, read_image, read_mask):
        with pytest.raises(ValueError, match=reason):
            read(path)


def test_an_archive_of_arrays_is_no_array(tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, a=GREY8)
    with pytest.raises(ValueError, match=r"archive of arrays \(.npz\); save each"):
        read_header(tmp_path / "a.npy")


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_a_film_is_no_picture(tmp_path, mode):
    pictures = [Image.fromarray(plane).convert(mode) for plane in (GREY8, GREY8[::-1].copy())]
    for name in ("a.png", "a.webp"):
        options = {"save_all": True, "append_images": pictures[1:]}
        pictures[0].save(tmp_path / name, **options)
        with pytest.raises(ValueError, match="it is a film of 2 pictures; save each to its own"):
            read_header(tmp_path / name)
    pictures[0].save(tmp_path / "b.png", save_all=True)
    assert read_header(tmp_path / "b.png").shape == pictures[0].size[::-1]


def test_an_unknown_suffix_lists_the_readable_ones(tmp_path):
    (tmp_path / "a.bmp").write_bytes(b"BM")
    with pytest.raises(ValueError, match=r"a\.bmp: unknown format.*\.nii\.gz"):
        read_image(tmp_path / "a.bmp")


@pytest.mark.filterwarnings("error")
def test_numbers_that_float32_cannot_hold_are_said(tmp_path):
    image = np.ones((8, 8))
    image[2, 3:5] = 1e300, -1e39
    np.save(tmp_path / "a.npy", image)
    with pytest.raises(ValueError, match=r"holds numbers beyond 3\.4e\+38 in 2 of 64 values"):
        read_image(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.clip(image, -3e38, 3e38))
    assert np.isfinite(read_image(tmp_path / "a.npy")).all()


@pytest.mark.parametrize(
    ("name", "pixels", "reason"),
    [
        ("m.nii", np.full((4, 4, 4), 0.5, np.float32), "holds 0.5; labels must be whole numbers"),
        (
            "m.nii",
            np.full((4, 4, 4), np.nan, np.float32),
            "holds NaN or infinity; a mask needs a value in every pixel",
        ),
        ("m.png", COLOUR8, "3 different channels"),
    ],
)
def test_a_mask_of_fractions_or_colours_is_refused(tmp_path, name, pixels, reason):
    save(tmp_path / name, pixels)
    with pytest.raises(ValueError, match=reason):
        read_mask(tmp_path / name)


def test_a_missing_library_names_what_to_install(tmp_path, monkeypatch):
    save(tmp_path / "a.nii", VOLUME)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    monkeypatch.delitem(sys.modules, "tfunet.data.formats.nifti", raising=False)
    with pytest.raises(ValueError, match=r"a\.nii.*pip install 'tfunet\[io\]'"):
        read_header(tmp_path / "a.nii")
