"""What a TIFF's tags say about its numbers: white at 0, palettes, inks."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet.data.check import check
from tfunet.data.image_files import read_header, read_image, read_mask
from tfunet.data.layouts.folder import open_folder
from tfunet.data.lazy_image import open_image, open_mask

RNG = np.random.default_rng(0)
GREY8 = RNG.integers(0, 256, (70, 90)).astype(np.uint8)
GREY16 = RNG.integers(0, 65536, (70, 90)).astype(np.uint16)
PALETTE = RNG.integers(0, 256, (3, 256)).astype(np.uint16) * 257
LAYOUTS = {
    "plain": {},
    "strips": {"rowsperstrip": 8, "compression": "zlib"},
    "tiles": {"tile": (16, 16), "compression": "zlib"},
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@layouts
@pytest.mark.parametrize(
    ("pixels", "white"),
    [
        (GREY8, 255),
        (GREY16, 65535),
        (np.stack([GREY16] * 4), 65535),
        (GREY16.astype(np.int16), -1),
        (GREY8 > 100, 1),
    ],
)
def test_white_at_zero_is_black_at_zero(tmp_path, layout, pixels, white):
    options = LAYOUTS[layout] if pixels.dtype != bool else {}
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="miniswhite", **options)
    expected = white - pixels.astype(np.float32)
    image, lazy = read_image(tmp_path / "a.tif")[..., 0], open_image(tmp_path / "a.tif")
    np.testing.assert_array_equal(image, expected)
    low, high = [0] * pixels.ndim, [7] * pixels.ndim
    high[0] = min(7, len(pixels))
    part = lazy.read(low, high)[..., 0]
    np.testing.assert_array_equal(part, expected[tuple(map(slice, low, high))])
    assert read_header(tmp_path / "a.tif").dtype == str(pixels.dtype)


def test_pillow_sees_the_same_white(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", GREY8, photometric="miniswhite")
    with Image.open(tmp_path / "a.tif") as image:
        np.testing.assert_array_equal(read_image(tmp_path / "a.tif")[..., 0], np.asarray(image))


def test_floating_point_with_white_at_zero_is_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", GREY8.astype(np.float32), photometric="miniswhite")
    with pytest.raises(ValueError, match=r"0 is white \(WhiteIsZero\), and floating point"):
        read_header(tmp_path / "a.tif")


def test_a_mask_with_white_at_zero(tmp_path):
    mask = np.where(GREY8 > 200, 255, 0).astype(np.uint8)
    # In one bit, the header is taken at its word, as by every viewer.
    tifffile.imwrite(tmp_path / "bit.tif", mask > 0, photometric="miniswhite")
    np.testing.assert_array_equal(read_mask(tmp_path / "bit.tif"), mask == 0)
    # ImageJ's "inverting LUT": 255 inside, shown in black.
    tifffile.imwrite(tmp_path / "imagej.tif", mask, imagej=True, photometric="miniswhite")
    np.testing.assert_array_equal(read_mask(tmp_path / "imagej.tif"), mask)
    # Others may mean either.
    tifffile.imwrite(tmp_path / "other.tif", mask, photometric="miniswhite")
    with pytest.raises(ValueError, match=r"0 is white \(WhiteIsZero\), so its labels may be"):
        read_mask(tmp_path / "other.tif")


@layouts
def test_a_palette_is_colours_in_an_image_and_labels_in_a_mask(tmp_path, layout):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, GREY8, photometric="palette", colormap=PALETTE, **LAYOUTS[layout])
    with Image.open(path) as image:
        colours = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(read_image(path), colours)
    np.testing.assert_array_equal(read_mask(path), GREY8)
    assert (read_header(path).channels, read_header(path, mask=True).channels) == (3, 1)
    box = (3, 5), (40, 37)
    cut = tuple(map(slice, *box))
    np.testing.assert_array_equal(open_image(path).read(*box), colours[cut])
    np.testing.assert_array_equal(open_mask(path).read(*box), GREY8[cut])
    in_colours = read_mask(path, colours=True)
    np.testing.assert_array_equal(open_mask(path, colours=True).read(*box), in_colours[cut])
    np.testing.assert_array_equal(in_colours >> 16, colours[..., 0])


def test_a_table_of_colours_beside_measured_values_changes_none(tmp_path):
    """ImageJ keeps one for its display."""
    lut = (PALETTE // 257).astype(np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", GREY8, imagej=True, metadata={"LUTs": [lut]})
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif")[..., 0], GREY8)
    options = {"photometric": "palette", "colormap": PALETTE}
    tifffile.imwrite(tmp_path / "a.ome.tif", GREY8, ome=True, **options)
    np.testing.assert_array_equal(read_image(tmp_path / "a.ome.tif")[..., 0], GREY8)


@layouts
def test_inks_are_colours(tmp_path, layout):
    inks = RNG.integers(0, 256, (70, 90, 4)).astype(np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", inks, photometric="separated", **LAYOUTS[layout])
    with Image.open(tmp_path / "a.tif") as image:
        assert image.mode == "CMYK"
        colours = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif"), colours)
    part = open_image(tmp_path / "a.tif").read((3, 5), (40, 37))
    np.testing.assert_array_equal(part, colours[3:40, 5:37])
    tifffile.imwrite(tmp_path / "b.tif", inks.astype(np.uint16), photometric="separated")
    with pytest.raises(ValueError, match="CMYK of another kind than 8 bits"):
        read_header(tmp_path / "b.tif")


@pytest.mark.parametrize(
    ("photometric", "name"), [("cielab", r"CIE L\*a\*b\*"), ("ycbcr", "YCbCr")]
)
def test_other_colours_are_named(tmp_path, photometric, name):
    colours = RNG.integers(0, 256, (16, 16, 3)).astype(np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", colours, photometric=photometric)
    with pytest.raises(ValueError, match=rf"its colours are {name}; convert it to RGB"):
        read_header(tmp_path / "a.tif")


def test_jpeg_in_a_tiff_is_decoded_to_colours(tmp_path):
    smooth = np.add.outer(np.arange(64), np.arange(80)).astype(np.uint8)
    colours = np.stack([smooth, smooth // 2, 255 - smooth], -1)
    tifffile.imwrite(tmp_path / "a.tif", colours, photometric="rgb", compression="jpeg")
    assert np.abs(read_image(tmp_path / "a.tif") - colours).max() < 12


@pytest.mark.parametrize("options", [{"threshold": 0}, {}])
def test_a_mask_of_bool_that_tifffile_wrote_inverted_is_said(tmp_path, options):
    for name in "abc":
        tifffile.imwrite(tmp_path / f"{name}.tif", GREY8)
        inside = {"photometric": "minisblack"} if name == "c" else {}
        tifffile.imwrite(tmp_path / f"{name}_m.tif", GREY8 > 200, **inside)
    source = open_folder(
        root=str(tmp_path), images="{case}.tif", masks={"cell": "{case}_m.tif"}, **options
    )
    warnings = [str(warning) for warning in check(source).warnings]
    said = [line for line in warnings if "what was True or 1 counts as background" in line]
    assert [line[:7] for line in said] == ["a_m.tif", "b_m.tif"]
