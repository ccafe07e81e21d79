"""Readers: which axis is depth, channel or time, and how large a pixel is."""

import numpy as np
import pytest
import tifffile
from small_images import COLOUR8, GREY8, GREY16, STACK16, VOLUME, save, whole

from tfunet.data.image_files import read_header, read_image
from tfunet.data.lazy_image import joined, open_image


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((3, 20, 31), None, (3, 20, 31, 1)),  # pages are planes
        ((3, 20, 31), "cyx", (20, 31, 3)),  # unless the user says that they are channels
        ((3, 20, 31), "yxc", (3, 20, 31)),
        ((2, 3, 4, 5), "czyx", (3, 4, 5, 2)),
        ((2, 3, 4, 5), None, (2, 3, 4, 5)),
    ],
)
def test_the_user_may_name_the_axes(tmp_path, shape, axes, expected):
    pixels = whole(shape, np.uint8, 256)
    np.save(tmp_path / "a.npy", pixels)
    image = read_image(tmp_path / "a.npy", axes=axes)
    assert image.shape == expected
    header = read_header(tmp_path / "a.npy", axes=axes)
    assert (*header.shape, header.channels) == expected
    order = [
        (axes or "zyxc").index(axis) for axis in "zyxc" if axis in (axes or "zyxc"[: len(shape)])
    ]
    np.testing.assert_array_equal(image.squeeze(), pixels.transpose(order).squeeze())


ALPHA8 = np.concatenate([COLOUR8, GREY8[..., None]], -1)
SAMPLES = {"photometric": "minisblack", "planarconfig": "contig"}


@pytest.mark.parametrize(
    ("name", "pixels", "saved", "read", "expected"),
    [
        ("a.png", COLOUR8, {}, {}, True),
        ("a.png", GREY8, {}, {}, False),
        ("a.png", np.stack([GREY8, GREY8], -1), {}, {"alpha": "keep"}, False),
        ("a.png", ALPHA8, {}, {}, True),
        ("a.png", ALPHA8, {}, {"alpha": "keep"}, True),
        ("a.png", COLOUR8, {}, {"axes": "yxc"}, True),  # the file knows it better
        ("a.jpg", COLOUR8, {}, {}, True),
        ("a.tif", COLOUR8, {"photometric": "rgb"}, {}, True),
        # Red, green, blue and infrared.
        ("a.tif", ALPHA8, {"photometric": "rgb", "extrasamples": ["unspecified"]}, {}, True),
        # As programs write scenes of 16 bits.
        ("a.tif", COLOUR8.astype(np.uint16), SAMPLES, {}, True),
        ("a.tif", np.ones((20, 31, 5), np.uint16), SAMPLES, {}, False),
        ("a.tif", np.stack([COLOUR8] * 2), {"photometric": "rgb"}, {}, False),  # a volume
        ("a.ome.tif", STACK16[:3], {"metadata": {"axes": "CYX"}}, {}, False),
        ("a.tif", STACK16[:3], {"photometric": "minisblack"}, {"axes": "cyx"}, False),
        ("a.npy", COLOUR8, {}, {"axes": "yxc"}, True),
        ("a.npy", ALPHA8, {}, {"axes": "yxc"}, False),
        ("a.npy", COLOUR8, {}, {}, False),  # planes
        ("a.nii", VOLUME, {}, {}, False),
    ],
)
def test_pictures_show_the_channels_of_a_colour_file_in_colour(
    tmp_path, name, pixels, saved, read, expected
):
    save(tmp_path / name, pixels, **saved)
    assert read_header(tmp_path / name, **read).in_colour == expected
    image = open_image(tmp_path / name, **read)
    assert image.in_colour == expected
    # Channels of several files are no colours, and grey = true leaves none.
    assert not joined([image, image]).in_colour
    assert joined([image]).in_colour == expected
    if image.channels == 3:
        assert not open_image(tmp_path / name, grey=True, **read).in_colour


def test_time_is_not_taken_for_depth(tmp_path):
    tifffile.imwrite(tmp_path / "a.ome.tif", STACK16, metadata={"axes": "TYX"})
    with pytest.raises(ValueError, match=r"its axes are 'tyx'.* Say with axes= what they are"):
        read_header(tmp_path / "a.ome.tif")
    assert read_image(tmp_path / "a.ome.tif", axes="zyx").shape == (6, 20, 31, 1)


def test_headers_give_the_pixel_size_of_ome_and_geo_tiff(tmp_path):
    sizes = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.25, "PhysicalSizeZ": 2}
    tifffile.imwrite(tmp_path / "a.ome.tif", STACK16, metadata={"axes": "ZYX", **sizes})
    header = read_header(tmp_path / "a.ome.tif")
    assert (header.spacing, header.unit) == ((2, 0.25, 0.5), "µm")
    sizes |= {f"PhysicalSize{letter}Unit": "nm" for letter in "XYZ"}
    tifffile.imwrite(tmp_path / "b.ome.tif", STACK16, metadata={"axes": "ZYX", **sizes})
    assert read_header(tmp_path / "b.ome.tif").unit == "nm"
    # ModelPixelScaleTag: x, y, z.
    tag = (33550, "d", 3, (10.0, 20.0, 0.0), True)
    tifffile.imwrite(tmp_path / "a.tif", GREY16, extratags=[tag])
    header = read_header(tmp_path / "a.tif")
    assert (header.spacing, header.unit) == ((20, 10), "")
