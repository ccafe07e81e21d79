"""Readers: every format gives its exact pixels, and masks their whole numbers."""

import struct
from dataclasses import replace

import imagecodecs
import nibabel
import numpy as np
import pytest
from PIL import Image
from small_images import COLOUR8, GREY8, GREY16, STACK16, VOLUME, save, whole

from tfunet.data.image_files import Header, read_header, read_image, read_mask
from tfunet.data.layouts.header_checks import misplaced


@pytest.mark.parametrize(
    ("name", "pixels", "options", "expected"),
    [
        ("a.png", GREY8, {}, GREY8[..., None]),
        ("a.png", GREY16, {}, GREY16[..., None]),
        ("a.png", COLOUR8, {}, COLOUR8),
        ("a.PNG", GREY8, {}, GREY8[..., None]),
        # Alpha says how a viewer shows a pixel, not what was measured.
        ("a.png", np.stack([GREY8, GREY8 // 2], -1), {}, GREY8[..., None]),
        ("a.png", np.concatenate([COLOUR8, GREY8[..., None]], -1), {}, COLOUR8),
        ("a.png", GREY8 > 100, {}, (GREY8 > 100)[..., None]),
        ("a.tif", GREY16, {}, GREY16[..., None]),
        ("a.tif", GREY16.astype(np.float32) / 7, {}, GREY16[..., None].astype(np.float32) / 7),
        ("a.tiff", GREY16, {"compression": "lzw"}, GREY16[..., None]),
        ("a.tif", COLOUR8, {"photometric": "rgb"}, COLOUR8),
        ("a.tif", STACK16, {"photometric": "minisblack"}, STACK16[..., None]),
        # Channels come first in microscopy's files, and last in ours.
        (
            "a.tif",
            STACK16[:3],
            {"imagej": True, "metadata": {"axes": "CYX"}},
            np.moveaxis(STACK16[:3], 0, -1),
        ),
        ("a.webp", COLOUR8, {"lossless": True}, COLOUR8),
        (
            "a.tif",
            (GREY16.astype(np.uint32) * 70000),
            {},
            (GREY16.astype(np.uint32) * 70000)[..., None],
        ),
        (
            "a.tif",
            GREY16.astype(np.int32) - 40000,
            {},
            (GREY16.astype(np.int32) - 40000)[..., None],
        ),
        # Four bands of a satellite are not colours with alpha, and RGBA is.
        (
            "a.tif",
            np.concatenate([COLOUR8, GREY8[..., None]], -1),
            {"photometric": "minisblack", "planarconfig": "contig", "tile": (16, 16)},
            np.concatenate([COLOUR8, GREY8[..., None]], -1),
        ),
        (
            "a.tif",
            np.concatenate([COLOUR8, GREY8[..., None]], -1),
            {"photometric": "rgb", "extrasamples": ["unassalpha"]},
            COLOUR8,
        ),
        (
            "a.ome.tif",
            np.stack([STACK16, STACK16 // 2], 1),
            {"metadata": {"axes": "ZCYX"}},
            np.stack([STACK16, STACK16 // 2], -1),
        ),
        ("a.npy", VOLUME, {}, VOLUME[..., None]),
        ("a.npy", np.stack([VOLUME, -VOLUME], -1), {}, np.stack([VOLUME, -VOLUME], -1)),
        ("a.nii", VOLUME, {}, VOLUME[..., None]),
        ("a.nii.gz", VOLUME, {}, VOLUME[..., None]),
        ("a.nii.gz", np.stack([VOLUME, -VOLUME], -1), {}, np.stack([VOLUME, -VOLUME], -1)),
        ("a.nii.gz", VOLUME[..., :1], {}, VOLUME[..., :1]),
    ],
)
def test_every_format_gives_its_exact_pixels_as_float32_with_channels_last(
    tmp_path, name, pixels, options, expected
):
    save(tmp_path / name, pixels, **options)
    image = read_image(tmp_path / name)
    header = read_header(tmp_path / name)
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, expected.astype(np.float32))
    assert (*header.shape, header.channels) == image.shape


def test_a_jpeg_is_read_to_within_its_compression(tmp_path):
    smooth = np.add.outer(np.arange(64), np.arange(80)).astype(np.uint8)
    save(tmp_path / "a.jpg", smooth, quality=95)
    image = read_image(tmp_path / "a.jpg")
    assert image.shape == (64, 80, 1)
    assert np.abs(image[..., 0] - smooth).max() < 6


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_a_colour_png_of_16_bits_keeps_all_of_them(tmp_path, channels):
    pixels = whole((12, 9, channels), np.uint16, 65536)
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(pixels))
    expected = pixels[..., : {2: 1, 3: 3, 4: 3}[channels]]
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), expected.astype(np.float32))


@pytest.mark.parametrize(("content", "name"), [("a.png", "b.jpg"), ("a.jpg", "b.png")])
def test_an_image_under_the_name_of_another_format_is_refused(tmp_path, content, name):
    save(tmp_path / content, GREY8)
    (tmp_path / name).write_bytes((tmp_path / content).read_bytes())
    for read in (read_header, read_image, read_mask):
        with pytest.raises(ValueError, match=rf"{name}: .*its content is .*; rename it"):
            read(tmp_path / name)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_colour_of_a_png_is_a_colour_like_others(tmp_path, channels):
    pixels = COLOUR8 if channels == 3 else GREY8
    transparent = tuple(map(int, COLOUR8[0, 0])) if channels == 3 else int(GREY8[0, 0])
    save(tmp_path / "a.png", pixels, transparency=transparent)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png").squeeze(), pixels)


def test_grey_gives_the_luminance_of_colours(tmp_path):
    save(tmp_path / "a.png", COLOUR8)
    with Image.open(tmp_path / "a.png") as image:
        expected = np.asarray(image.convert("L")).astype(np.float32)
    read = read_image(tmp_path / "a.png", grey=True)
    assert read.shape == (20, 31, 1)
    assert np.abs(read[..., 0] - expected).max() <= 1


def test_a_palette_is_colours_in_an_image_and_labels_in_a_mask(tmp_path):
    labels = whole((8, 8), np.uint8, 3)
    image = Image.fromarray(labels, "P")
    image.putpalette([0, 0, 0, 200, 10, 20, 30, 200, 40])
    image.save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "a.png"), labels)
    assert read_image(tmp_path / "a.png").shape == (8, 8, 3)
    assert read_header(tmp_path / "a.png").channels == 3


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("m.png", whole((8, 9), np.uint8, 4)),
        ("m.png", whole((8, 9), np.uint16, 900)),
        ("m.tif", whole((6, 8, 9), np.uint16, 900)),
        ("m.png", whole((8, 9), np.uint8, 2).astype(bool)),
        ("m.nii.gz", whole((4, 8, 9), np.uint8, 3)),
        ("m.nii.gz", whole((4, 8, 9), np.float32, 3)),
        ("m.nii.gz", whole((4, 8, 9), np.float64, 3)),
        ("m.nii.gz", whole((4, 8, 9), np.int16, 3) - 1),
    ],
)
def test_masks_come_back_as_the_whole_numbers_that_were_stored(tmp_path, name, pixels):
    save(tmp_path / name, pixels)
    mask = read_mask(tmp_path / name)
    assert mask.dtype.kind in "ui"
    np.testing.assert_array_equal(mask, pixels)


def test_a_grey_mask_stored_as_colour_is_grey(tmp_path):
    save(tmp_path / "m.png", np.repeat(GREY8[..., None], 3, -1))
    np.testing.assert_array_equal(read_mask(tmp_path / "m.png"), GREY8)


@pytest.mark.parametrize("step", [255, 41])  # as float32, 1 / 255 is too high, 1 / 41 too low
def test_scaled_nifti_labels_are_rounded_where_scaling_moved_them(tmp_path, step):
    labels = whole((4, 5, 6), np.int16, 3)
    save(tmp_path / "m.nii", labels * step)
    content = bytearray((tmp_path / "m.nii").read_bytes())
    content[112:116] = struct.pack("<f", 1 / step)  # scl_slope
    (tmp_path / "m.nii").write_bytes(content)
    assert not np.array_equal(np.asanyarray(nibabel.load(tmp_path / "m.nii").dataobj), labels)
    np.testing.assert_array_equal(read_mask(tmp_path / "m.nii"), labels)


def test_nifti_headers_give_the_voxel_size(tmp_path):
    save(tmp_path / "a.nii.gz", VOLUME)
    assert read_header(tmp_path / "a.nii.gz").spacing == (0.5, 1.0, 2.0)
    save(tmp_path / "a.png", GREY8)
    assert read_header(tmp_path / "a.png").spacing is None


def test_a_mask_that_lies_elsewhere_than_its_image_is_told_by_the_headers():
    affine = np.diag([0.5, 0.5, 2, 1.0])
    image = Header(shape=(8, 9, 5), channels=1, dtype="u1", spacing=(0.5, 0.5, 2), affine=affine)

    def other(change):
        return replace(image, affine=affine + change)

    shift, flip, turn = np.zeros((3, 4, 4))
    shift[0, 3], flip[0, 0] = 0.2, -1
    turn[1, 2] = 0.2
    assert misplaced(image, image) == ""
    assert misplaced(image, other(shift)) == ""  # less than half a pixel
    assert "puts it up to 0.6 from" in misplaced(image, other(shift * 3))
    assert "puts it up to 7 from its image" in misplaced(image, other(flip))
    assert "puts it up to 0.8 from its image" in misplaced(image, other(turn))
    wider = replace(other(np.diag([0.1, 0, 0, 0])), spacing=(0.6, 0.5, 2))
    assert "has pixels of 0.6 x 0.5 x 2, and its image of 0.5" in misplaced(image, wider)
    # A format that states no affine, and one that states nothing.
    assert "has pixels of" in misplaced(replace(image, affine=None), wider)
    assert misplaced(image, replace(image, affine=None, spacing=None)) == ""
