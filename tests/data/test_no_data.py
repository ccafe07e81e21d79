"""Pixels without data: what marks them is named, and they take the value that the user says."""

import math

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from dicom_files import dataset, save
from PIL import Image

from tfunet.data.check import case_defects, check
from tfunet.data.image_files import read_image
from tfunet.data.layouts import file_reader
from tfunet.data.lazy_image import open_image
from tfunet.data.preprocess import normalise
from tfunet.data.source import open_source
from tfunet.prediction.prepare import preparation

PIXELS = np.random.default_rng(0).integers(1, 200, (40, 48)).astype(np.float32)
BEYOND = -1.7976931348623157e308
HOLE = np.zeros((40, 48), bool)
HOLE[:7, 5:30] = True


def with_hole(value, dtype=np.float32):
    return np.where(HOLE, value, PIXELS).astype(dtype)


def tiff(path, pixels, nodata=None, **options):
    tags = [(42113, "s", 0, nodata, False)] if nodata else []
    tifffile.imwrite(path, pixels, extratags=tags, **options)


def masked_tiff(path):
    with tifffile.TiffWriter(path) as file:
        file.write(PIXELS, photometric="minisblack")
        file.write(~HOLE, subfiletype=4, photometric="mask")


def masked_beside(path):
    tifffile.imwrite(path, PIXELS)
    tifffile.imwrite(f"{path}.msk", (~HOLE * 255).astype(np.uint8))


def sparse_tiff(path):
    """Leave out a tile, as GDAL does where there is no data (SPARSE_OK)."""
    tiff(path, PIXELS, "-3.4028234663852886e+38", tile=(16, 16))
    with tifffile.TiffFile(path, mode="r+") as file:
        for name in ("TileOffsets", "TileByteCounts"):
            tag = file.pages[0].tags[name]
            tag.overwrite((*tag.value[:4], 0, *tag.value[5:]))


def hdf5(path):
    with h5py.File(path, "w") as file:
        file["raw"] = with_hole(-5)
        file["raw"].attrs["_FillValue"] = np.float32([-5])


def store(path):
    zarr.save_array(str(path), with_hole(np.nan))


def dicom(path, *, padding, **changes):
    one = dataset(with_hole(-2000, np.int16), PixelSpacing=[1, 1], **changes)
    one.add_new("PixelPaddingValue", "US" if padding > 0 else "SS", padding)
    save(path, one)


# The file, how it is written, and the words that name what marks the pixels.
MARKED = {
    "GDAL": ("a.tif", lambda path: tiff(path, with_hole(-9999), "-9999"), "no-data value is -9999"),
    # tifffile gives this one up.
    "lowest": (
        "a.tif",
        lambda path: tiff(path, with_hole(-3.4028235e38), "-3.4028234663852886e+38"),
        "no-data value is -3.40282e+38",
    ),
    "few digits": (
        "a.tif",
        lambda path: tiff(path, with_hole(-3.4028235e38), "-3.40282e+38"),
        "no-data value is -3.40282e+38",
    ),
    "whole numbers": (
        "a.tif",
        lambda path: tiff(path, with_hole(65535, np.uint16), "65535"),
        "no-data value is 65535",
    ),
    "tiles": (
        "a.tif",
        lambda path: tiff(path, with_hole(-9999), "-9999", tile=(16, 16)),
        "no-data value is -9999",
    ),
    "GDAL, beyond float32": (
        "a.tif",
        lambda path: tiff(path, wide(), str(BEYOND)),
        "no-data value is",
    ),
    "GDAL NaN": ("a.tif", lambda path: tiff(path, with_hole(np.nan), "nan"), "value is nan"),
    "no number": ("a.tif", lambda path: tiff(path, with_hole(np.nan), "-1.#IND"), "NaN"),
    "mask page": ("a.tif", masked_tiff, "its mask leaves them out"),
    "mask beside": ("a.tif", masked_beside, "its mask leaves them out"),
    "netCDF": ("a.h5:raw", lambda path: hdf5(str(path).split(":")[0]), "_FillValue is -5"),
    "DICOM": ("a.dcm", lambda path: dicom(path, padding=-2000), "PixelPaddingValue is -2000"),
    "DICOM, unsigned": ("a.dcm", lambda path: dicom(path, padding=63536), "ngValue is -2000"),
    "DICOM, range": (
        "a.dcm",
        lambda path: dicom(path, padding=-2048, PixelPaddingRangeLimit=-1999),
        "PixelPaddingValue is -2048 to -1999",
    ),
    "NIfTI": (
        "a.nii.gz",
        lambda path: nibabel.save(nibabel.Nifti1Image(with_hole(np.nan), np.eye(4)), path),
        "NaN or infinity",
    ),
    "NumPy": ("a.npy", lambda path: np.save(path, with_hole(np.inf)), "NaN or infinity"),
    "zarr": ("a.zarr", store, "NaN or infinity"),
}


def wide():
    """Return pixels of 64 bits whose no-data value float32 cannot hold."""
    pixels = with_hole(0).astype(np.float64)
    pixels[HOLE] = BEYOND
    return pixels


def opened(folder, name, **options):
    mask = folder / "mask.npy"
    labels = HOLE.astype(np.uint8)
    labels[-1, -1] = 1  # A class of which nothing counts would be a defect of its own.
    np.save(mask, labels)
    table = folder / "t.csv"
    table.write_text(f"image,mask\n{name},mask.npy\n")
    return open_source("csv", {"file": str(table), "intensity": "none", **options})


@pytest.mark.parametrize("kind", MARKED)
def test_pixels_without_data_are_a_defect_that_says_what_marks_them(tmp_path, kind):
    name, write, words = MARKED[kind]
    write(tmp_path / name)
    (defect,) = check(opened(tmp_path, name)).defects
    assert defect.file == name
    assert words in defect.what
    assert f"in {HOLE.sum()} of {HOLE.size}" in defect.what
    assert "say fill = NUMBER" in defect.what
    with pytest.raises(ValueError, match="fill = NUMBER"):
        opened(tmp_path, name).read(0)


@pytest.mark.parametrize("kind", MARKED)
def test_pixels_without_data_become_what_the_user_says(tmp_path, kind):
    name, write, _ = MARKED[kind]
    write(tmp_path / name)
    source = opened(tmp_path, name, fill=-7)
    image, mask = source.read(0)
    np.testing.assert_array_equal(image[..., 0], with_hole(-7))
    np.testing.assert_array_equal(mask == source.ignored, HOLE)
    assert check(source).defects == ()
    assert source.preparation["fill"] == -7
    assert source.fingerprint != opened(tmp_path, name, fill=-8).fingerprint
    part = open_image(tmp_path / name, fill=-7).read((0, 0), (12, 48))
    np.testing.assert_array_equal(part[..., 0], with_hole(-7)[:12])


@pytest.mark.parametrize("target", [None, [1.5, 0.8]])
def test_filled_pixels_are_not_in_statistics_and_have_a_label_of_their_own(
    tmp_path, monkeypatch, target
):
    resolution = {"resolution": (1, 1), "resolutionunit": "CENTIMETER"}
    tiff(tmp_path / "a.tif", with_hole(-9999), "-9999", tile=(16, 16), **resolution)
    sizes = {} if target is None else {"pixel_size": [1, 1], "target_pixel_size": target}
    options = {"intensity": "zscore", "fill": 0, **sizes}
    source = opened(tmp_path, "a.tif", **options)
    image, mask = source.read(0)
    gaps = mask == source.ignored
    assert 0.1 < gaps.sum() / HOLE.sum() * np.prod(target or 1) < 1.5
    assert abs(image[~gaps].mean()) < 1e-5
    assert abs(image[~gaps].std() - 1) < 1e-5
    if target is None:
        np.testing.assert_array_equal(gaps, HOLE)
        pixels = PIXELS[~HOLE]
        np.testing.assert_allclose(image[gaps], -pixels.mean() / pixels.std(), rtol=1e-5)
    # Part by part it is the same, to the bit; and so is what is prepared for a prediction.
    monkeypatch.setattr(file_reader, "LARGE_BYTES", 1)
    in_parts = opened(tmp_path, "a.tif", **options)
    case = in_parts.stored(0)
    parts = list(case.parts)
    pixels = np.concatenate([part for part, _ in parts])
    normalised = normalise(pixels, in_parts.intensity, case.statistics)
    np.testing.assert_array_equal(normalised, image)
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), mask)
    prepare = preparation(source.preparation)
    read = prepare.open([tmp_path / "a.tif"])
    prepared = prepare.normalised(read, prepare.statistics(read))
    np.testing.assert_array_equal(prepared.read((0, 0), prepared.shape), image)
    assert np.isfinite(source.raw(0).image).all()
    assert case_defects(source, image, mask) == []
    (facts,) = check(source).cases
    assert facts.label_pixels == (HOLE.size - HOLE.sum() - 1, 1)
    assert facts.low[0] == PIXELS[~HOLE].min()


def test_an_image_without_any_data_is_a_defect(tmp_path):
    tiff(tmp_path / "a.tif", np.full_like(PIXELS, -9999), "-9999")
    (defect,) = check(opened(tmp_path, "a.tif", fill=0)).defects
    assert defect.what == "no pixel has data. Leave it out."


def test_a_tile_that_is_left_out_has_no_data(tmp_path):
    sparse_tiff(tmp_path / "a.tif")
    expected = PIXELS.copy()
    expected[16:32, 16:32] = -7
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif", fill=-7)[..., 0], expected)
    by_parts = open_image(tmp_path / "a.tif", fill=-7)
    assert by_parts.by_parts
    np.testing.assert_array_equal(by_parts.read((0, 0), (40, 48))[..., 0], expected)
    with pytest.raises(ValueError, match="no data in 256 of 1920 pixels"):
        read_image(tmp_path / "a.tif")


def test_colours_have_no_data_only_where_all_of_them_say_so(tmp_path):
    colours = np.random.default_rng(0).integers(0, 2, (40, 48, 3)).astype(np.uint8)
    tiff(tmp_path / "a.tif", colours, "0", photometric="rgb")
    filled = read_image(tmp_path / "a.tif", fill=9)
    np.testing.assert_array_equal(filled == 9, np.repeat((colours == 0).all(-1)[..., None], 3, -1))
    # In measured bands, one without data is enough.
    bands = np.stack([PIXELS, with_hole(-9999)], -1)
    tiff(tmp_path / "b.tif", bands, "-9999", photometric="minisblack", planarconfig="contig")
    assert (read_image(tmp_path / "b.tif", fill=9)[..., 0] == 9)[HOLE].all()


@pytest.mark.parametrize("first", [0, 1])
def test_one_of_two_files_of_a_case_may_lack_data(tmp_path, first):
    tiff(tmp_path / "a.tif", with_hole(-9999), "-9999")
    tiff(tmp_path / "b.tif", PIXELS, "-9999")
    files = ("a.tif", "b.tif") if first == 0 else ("b.tif", "a.tif")
    np.save(tmp_path / "m.npy", HOLE)
    (tmp_path / "t.csv").write_text(f"one,two,mask\n{files[0]},{files[1]},m.npy\n")
    source = open_source("csv", {"file": str(tmp_path / "t.csv"), "images": ["one", "two"]})
    assert [defect.file for defect in check(source).defects] == ["a.tif"]


def test_a_tag_without_such_pixels_changes_nothing(tmp_path):
    tiff(tmp_path / "a.tif", PIXELS, "-9999")
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif")[..., 0], PIXELS)
    tiff(tmp_path / "b.tif", PIXELS.astype(np.uint8), "-9999")  # No byte has this value.
    np.testing.assert_array_equal(read_image(tmp_path / "b.tif")[..., 0], PIXELS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masks": {"cell": "{case}_m.tif"}, "threshold": 0}, "have the value 255, which marks"),
        ({"masks": {"cell": "{case}_m.tif"}}, "have the value 255, which marks missing"),
        ({"masks": "{case}_m.tif", "classes": {"cell": 1}}, "name the value in one mask with cla"),
        ({"masks": "{case}_m.tif", "classes": {"cell": 1, "background": [0, 255]}}, None),
    ],
)
def test_a_mask_with_missing_labels_is_refused_unless_they_are_named(tmp_path, options, words):
    tiff(tmp_path / "a.tif", PIXELS)
    mask = np.where(HOLE, 255, PIXELS > 100).astype(np.uint8)
    tiff(tmp_path / "a_m.tif", mask, "255")
    source = open_source("folder", {"root": str(tmp_path), "images": "{case}.tif", **options})
    defects = check(source).defects
    assert len(defects) == (words is not None)
    if words:
        assert words in defects[0].what
    else:
        np.testing.assert_array_equal(source.read(0)[1], ~HOLE & (PIXELS > 100))
    # 0 is the background of most masks, whatever the tag says.
    tiff(tmp_path / "a_m.tif", (PIXELS > 100).astype(np.uint8), "0")
    plain = {"root": str(tmp_path), "images": "{case}.tif", "masks": {"cell": "{case}_m.tif"}}
    assert check(open_source("folder", plain)).defects == ()


NEAR_INFRARED = np.random.default_rng(1).integers(1, 255, (40, 48)).astype(np.uint8)


def four_bands(path, fourth, scale=1):
    bands = np.stack([PIXELS.astype(np.uint8)] * 3 + [fourth], -1)
    if path.suffix == ".tif":
        bands = bands.astype(np.uint16) * scale
        tifffile.imwrite(path, bands, photometric="rgb", extrasamples=["unassalpha"])
    else:
        Image.fromarray(bands).save(path, lossless=True)
    return bands


@pytest.mark.parametrize("name", ["a.tif", "a.png", "a.webp"])
def test_a_channel_tagged_alpha_is_left_out_with_a_word_or_kept(tmp_path, name):
    bands = four_bands(tmp_path / name, NEAR_INFRARED, scale=257)
    (warning,) = check(opened(tmp_path, name)).warnings
    assert str(warning).startswith(f"{name}: its channel 4 is tagged alpha, is not opaque, and is")
    assert opened(tmp_path, name).channels == 3
    quiet = opened(tmp_path, name, alpha="drop")
    assert check(quiet).warnings == ()
    kept = opened(tmp_path, name, alpha="keep")
    assert kept.channels == 4
    np.testing.assert_array_equal(kept.read(0)[0], bands)
    np.testing.assert_array_equal(quiet.read(0)[0], bands[..., :3])
    assert check(kept).warnings == ()
    with pytest.raises(ValueError, match="alpha='kept'; allowed: 'drop'"):
        opened(tmp_path, name, alpha="kept")


@pytest.mark.parametrize("name", ["a.tif", "a.png"])
def test_opaque_alpha_is_left_out_and_alpha_may_be_a_mask(tmp_path, name):
    four_bands(tmp_path / name, np.full((40, 48), 255, np.uint8), scale=257)
    assert check(opened(tmp_path, name)).warnings == ()
    bands = four_bands(tmp_path / name, ~HOLE * np.uint8(255), scale=257)
    (defect,) = check(opened(tmp_path, name, alpha="mask")).defects
    assert f"no data in {HOLE.sum()} of" in defect.what
    filled = opened(tmp_path, name, alpha="mask", fill=0).read(0)[0]
    np.testing.assert_array_equal(filled, bands[..., :3] * ~HOLE[..., None])
    with pytest.raises(ValueError, match="fill=inf; allowed: the number"):
        opened(tmp_path, name, fill=math.inf)
