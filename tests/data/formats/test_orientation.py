"""Tags that turn or mirror stored pixels: images and masks come as a viewer shows them."""

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps, PngImagePlugin

from tfunet.data.image_files import read_header, read_image, read_mask
from tfunet.data.layouts.folder import open_folder
from tfunet.data.lazy_image import open_image, open_mask

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (20, 33, 3)).astype(np.uint8)
GREY = COLOURS[..., 0]
# A pattern with a number in each corner, and what each tag makes of it.
CORNERS = np.array([[1, 2], [3, 4]], np.uint8)
SHOWN = {
    1: [[1, 2], [3, 4]],
    2: [[2, 1], [4, 3]],
    3: [[4, 3], [2, 1]],
    4: [[3, 4], [1, 2]],
    5: [[1, 3], [2, 4]],
    6: [[3, 1], [4, 2]],
    7: [[4, 2], [3, 1]],
    8: [[2, 4], [1, 3]],
}
TAG = 274


def exif(orientation):
    tags = Image.Exif()
    tags[TAG] = orientation
    return tags


def save(path, pixels, orientation):
    if path.suffix == ".tif":
        tag = [(TAG, "H", 1, orientation, True)]
        options = {"photometric": "rgb"} if pixels.ndim == 3 else {}
        tifffile.imwrite(path, pixels, extratags=tag, **options)
        return
    options = {".webp": {"lossless": True}, ".jpg": {"quality": 100, "subsampling": 0}}
    image = Image.fromarray(pixels)
    image.save(path, exif=exif(orientation), **options.get(path.suffix, {}))


def shown(path):
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".tif"])
@pytest.mark.parametrize("orientation", SHOWN)
def test_an_image_is_turned_as_its_header_says(tmp_path, suffix, orientation):
    path = tmp_path / f"a{suffix}"
    save(path, COLOURS, orientation)
    image, header, lazy = read_image(path), read_header(path), open_image(path)
    np.testing.assert_array_equal(image, shown(path))
    assert header.shape == lazy.shape == image.shape[:2]
    np.testing.assert_array_equal(lazy.read((2, 3), (9, 17)), image[2:9, 3:17])


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize(("orientation", "expected"), SHOWN.items())
def test_a_mask_is_turned_as_its_image(tmp_path, suffix, orientation, expected):
    path = tmp_path / f"m{suffix}"
    save(path, CORNERS, orientation)
    np.testing.assert_array_equal(read_mask(path), expected)
    np.testing.assert_array_equal(open_mask(path).read((0, 0), (2, 2)), expected)


def palette_png(path, orientation):
    image = Image.fromarray(CORNERS, "P")
    image.putpalette(list(range(15)))
    image.save(path, exif=exif(orientation))


def one_bit_png(path, orientation):
    Image.fromarray(CORNERS > 2).save(path, exif=exif(orientation))


def sixteen_bit_png(path, orientation):
    Image.fromarray(CORNERS.astype(np.uint16)).save(path, exif=exif(orientation))


def late_png(path, orientation):
    """The tag behind the pixels, where the standard allows it."""
    save(path, CORNERS, orientation)
    content = path.read_bytes()
    at = content.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(content[at : at + 4], "big")
    path.write_bytes(content[:at] + content[end:-12] + content[at:end] + content[-12:])


def raw_profile_png(path, orientation):
    """As ImageMagick wrote it before PNG had a chunk for it."""
    content = exif(orientation).tobytes()
    texts = PngImagePlugin.PngInfo()
    texts.add_text(
        "Raw profile type exif", f"\nexif\n{len(content):8}\n{content.hex()}\n", zip=True
    )
    Image.fromarray(CORNERS).save(path, pnginfo=texts)


def xmp_png(path, orientation):
    texts = PngImagePlugin.PngInfo()
    packet = f'<rdf:Description tiff:Orientation="{orientation}"/>'
    texts.add_itxt("XML:com.adobe.xmp", packet)
    Image.fromarray(CORNERS).save(path, pnginfo=texts)


@pytest.mark.parametrize(
    "write", [palette_png, one_bit_png, sixteen_bit_png, late_png, raw_profile_png, xmp_png]
)
@pytest.mark.parametrize("orientation", [3, 6])
def test_a_png_may_state_its_orientation_in_many_places(tmp_path, write, orientation):
    write(tmp_path / "m.png", orientation)
    expected = np.array(SHOWN[orientation])
    if write is one_bit_png:
        np.testing.assert_array_equal(read_mask(tmp_path / "m.png") > 0, expected > 2)
    else:
        np.testing.assert_array_equal(read_mask(tmp_path / "m.png"), expected)


def test_a_stack_is_turned_in_its_planes_with_its_pixel_size(tmp_path):
    stack = RNG.integers(0, 256, (3, 20, 33)).astype(np.uint8)
    tifffile.imwrite(
        tmp_path / "a.tif",
        stack,
        photometric="minisblack",
        extratags=[(TAG, "H", 1, 6, True), (33550, "d", 3, (10.0, 20.0, 0.0), True)],
    )
    image = read_image(tmp_path / "a.tif")[..., 0]
    np.testing.assert_array_equal(image, np.rot90(stack, -1, (1, 2)))
    tifffile.imwrite(
        tmp_path / "b.tif",
        GREY,
        extratags=[(TAG, "H", 1, 6, True), (33550, "d", 3, (10.0, 20.0, 0.0), True)],
    )
    # Stored columns, 10 wide, are rows when they are seen.
    assert read_header(tmp_path / "b.tif").spacing == (10, 20)


@pytest.mark.parametrize("content", [b"Exif\0\0no tags", b"Exif\0\0II*\0\x08\0\0\0"])
def test_unreadable_exif_is_no_reason_to_refuse_an_image(tmp_path, content):
    Image.fromarray(GREY).save(tmp_path / "a.png", exif=content)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png")[..., 0], GREY)


def test_a_mask_drawn_on_the_stored_pixels_is_told_of_the_tag(tmp_path):
    save(tmp_path / "a.jpg", COLOURS, 6)
    Image.fromarray((GREY > 100).astype(np.uint8)).save(tmp_path / "a_mask.png")
    with pytest.raises(ValueError, match=r"has shape \(20, 33\).*\(33, 20\).*orientation tag"):
        open_folder(root=str(tmp_path), images="{case}.jpg", masks="{case}_mask.png")
