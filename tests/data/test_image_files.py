"""Readers: every format gives its exact pixels, and a bad file is named."""

import struct
import sys
from dataclasses import replace

import h5py
import imagecodecs
import nibabel
import numcodecs
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from PIL import Image

from tfunet.data.image_files import Header, read_header, read_image, read_mask
from tfunet.data.layouts.header_checks import misplaced
from tfunet.data.lazy_image import joined, open_image

RNG = np.random.default_rng(0)


def whole(shape, dtype, high):
    return RNG.integers(0, high, shape).astype(dtype)


def save(path, pixels, **options):
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


def cut(path, share=0.6):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flip_bytes(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(byte ^ 0x5A for byte in content[middle : middle + 40])
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.nii.gz", "a.nii"])
def test_a_truncated_file_is_named_when_it_is_read(tmp_path, name):
    save(tmp_path / name, whole((40, 41), np.uint8, 256))
    cut(tmp_path / name)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_image(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_truncated_png_or_jpeg_is_found_by_its_header_check(tmp_path, name):
    save(tmp_path / name, whole((40, 41), np.uint8, 256))
    cut(tmp_path / name)
    with pytest.raises(ValueError, match="truncated"):
        read_header(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.nii.gz"])
def test_a_damaged_file_is_named(tmp_path, name):
    save(tmp_path / name, whole((60, 61), np.uint8, 256))
    flip_bytes(tmp_path / name)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_image(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.nii", "a.nii.gz"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
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


def test_not_a_number_in_an_image_is_refused(tmp_path):
    save(tmp_path / "a.nii", np.where(VOLUME > 0, VOLUME, np.nan))
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        read_image(tmp_path / "a.nii")


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


def dicom_slice(path, pixels, *, position, series="1.2.3", slope=1, intercept=0):
    one = pydicom.Dataset()
    one.file_meta = pydicom.dataset.FileMetaDataset()
    one.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = pydicom.uid.CTImageStorage
    one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = pydicom.uid.generate_uid()
    one.SeriesInstanceUID = series
    one.Rows, one.Columns = pixels.shape
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
    one.BitsAllocated = one.BitsStored = 16
    one.HighBit, one.PixelRepresentation = 15, 1
    one.RescaleSlope, one.RescaleIntercept = slope, intercept
    one.PixelSpacing = [0.5, 0.25]
    one.ImageOrientationPatient = [1, 0, 0, 0, 0, -1]  # coronal
    one.ImagePositionPatient = [0, position, 0]
    one.PixelData = pixels.astype("<i2").tobytes()
    path.parent.mkdir(exist_ok=True)
    pydicom.dcmwrite(path, one, enforce_file_format=True)


def test_a_dicom_series_is_sorted_by_position_and_rescaled(tmp_path):
    volume = whole((4, 6, 7), np.int16, 3000) - 1000
    # Neither by name nor by number: files of a series come in any order.
    for name, plane in zip("dbca", range(4), strict=True):
        path = tmp_path / "ct" / name
        dicom_slice(path, volume[plane], position=3.0 * plane, slope=plane + 1, intercept=-1024)
    scale = np.arange(1, 5).reshape(4, 1, 1)
    expected = volume * scale - 1024
    np.testing.assert_array_equal(read_image(tmp_path / "ct")[..., 0], expected)
    header = read_header(tmp_path / "ct")
    assert (header.shape, header.channels, header.dtype) == ((4, 6, 7), 1, "int16")
    assert (header.spacing, header.unit) == ((3, 0.5, 0.25), "mm")


def test_a_dicom_series_with_a_gap_or_of_two_series_is_refused(tmp_path):
    plane = whole((6, 7), np.int16, 100)
    for number in (0, 1, 3):
        dicom_slice(tmp_path / "gap" / f"{number}.dcm", plane, position=number)
        dicom_slice(
            tmp_path / "two" / f"{number}.dcm", plane, position=number, series=f"1.{number}"
        )
    with pytest.raises(ValueError, match=r"slices lie 1 to 2 mm apart; one is missing"):
        read_header(tmp_path / "gap")
    with pytest.raises(ValueError, match=r"3 series in one folder"):
        read_header(tmp_path / "two")
    assert read_image(tmp_path / "gap" / "0.dcm").shape == (6, 7, 1)


def test_an_array_of_an_hdf5_file_is_named_after_a_colon(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["volumes/raw"] = STACK16
        file["volumes/labels"] = STACK16 % 3
    image = read_image(tmp_path / "a.h5:volumes/raw")
    np.testing.assert_array_equal(image[..., 0], STACK16.astype(np.float32))
    np.testing.assert_array_equal(read_mask(tmp_path / "a.h5:/volumes/labels"), STACK16 % 3)
    for name in ("a.h5", "a.h5:row"):
        with pytest.raises(ValueError, match=r"it has: volumes/labels, volumes/raw"):
            read_header(tmp_path / name)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("compressor", ["zstd", "blosc"])
def test_a_zarr_array_comes_back_and_a_truncated_chunk_is_named(tmp_path, version, compressor):
    codecs = {
        (2, "zstd"): numcodecs.Zstd(),
        (2, "blosc"): numcodecs.Blosc(),
        (3, "zstd"): zarr.codecs.ZstdCodec(),
        (3, "blosc"): zarr.codecs.BloscCodec(),
    }
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    codec = codecs[version, compressor]
    options = {"shape": STACK16.shape, "chunks": (2, 20, 31), "dtype": STACK16.dtype}
    array = group.create_array("raw", compressors=codec, **options)
    array[...] = STACK16
    for name in ("a.zarr/raw", "a.zarr:raw"):
        image = read_image(tmp_path / name)
        np.testing.assert_array_equal(image[..., 0], STACK16.astype(np.float32))
    with pytest.raises(ValueError, match=r"no OME-NGFF image; it has: raw"):
        read_header(tmp_path / "a.zarr")
    files = [file for file in (tmp_path / "a.zarr").rglob("*") if file.is_file()]
    cut(max(files, key=lambda one: one.stat().st_size))
    with pytest.raises(ValueError, match=r"a\.zarr:raw: cannot be read"):
        read_image(tmp_path / "a.zarr:raw")


@pytest.mark.parametrize("version", [2, 3])  # of zarr; OME-NGFF 0.4 and 0.5
def test_an_ome_ngff_image_is_read_at_full_size(tmp_path, version):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    pixels = np.stack([STACK16, STACK16 // 3])
    for level, array in enumerate((pixels, pixels[:, :, ::2, ::2])):
        group.create_array(str(level), data=np.ascontiguousarray(array))
    axes = [{"name": "c", "type": "channel"}, *({"name": n, "type": "space"} for n in "zyx")]
    scales = [{"type": "scale", "scale": [1, 2.0, 0.5, 0.25]}]
    images = [
        {
            "axes": axes,
            "datasets": [
                {"path": str(level), "coordinateTransformations": scales} for level in range(2)
            ],
        }
    ]
    if version == 2:
        group.attrs["multiscales"] = images
    else:
        group.attrs["ome"] = {"version": "0.5", "multiscales": images}
    header = read_header(tmp_path / "a.zarr")
    assert (header.shape, header.channels, header.spacing) == ((6, 20, 31), 2, (2, 0.5, 0.25))
    image = read_image(tmp_path / "a.zarr")
    np.testing.assert_array_equal(image, np.moveaxis(pixels, 0, -1).astype(np.float32))


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
