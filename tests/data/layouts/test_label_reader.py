"""Masks of few bits, of one-hot channels and with odd axes: the same labels as a plain mask."""

import struct
import zlib

import h5py
import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet.data.check import check
from tfunet.data.layouts import file_reader
from tfunet.data.source import open_source

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (40, 48)).astype(np.uint8)
INSIDE = RNG.random((40, 48)) < 0.3


def png(path, values, bits):
    """Write a grey PNG of 1, 2 or 4 bits, as libpng-based tools do."""
    height, width = values.shape
    shifts = np.arange(8 - bits, -1, -bits)
    rows = (values.reshape(height, -1, 8 // bits) << shifts).sum(-1).astype(np.uint8)
    packed = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind, content):
        ending = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + ending

    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(packed)), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def tiff(path, values, bits):
    if bits == 1:
        tifffile.imwrite(path, values.astype(bool), photometric="minisblack")
        return
    # tifffile packs no 2 and 4 bits: the pixels are written as bytes, and the header corrected.
    height, width = values.shape
    shifts = np.arange(8 - bits, -1, -bits)
    rows = (values.reshape(height, -1, 8 // bits) << shifts).sum(-1).astype(np.uint8)
    tifffile.imwrite(path, rows, photometric="minisblack")
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages[0].tags["ImageWidth"].overwrite(width)
        file.pages[0].tags["BitsPerSample"].overwrite(bits)


def array(path, values, bits):
    np.save(path, values.astype(bool))


def dataset(path, values, bits):
    with h5py.File(str(path).split(":")[0], "w") as file:
        file["m"] = values.astype(bool)


WRITERS = {".png": png, ".tif": tiff, ".npy": array, ".h5:m": dataset}


def opened(folder, suffix, **options):
    Image.fromarray(IMAGE).save(folder / "a_i.png")
    masks = options.pop("masks", {"cell": f"{{case}}_m{suffix}"})
    return open_source(
        "folder", {"root": str(folder), "images": "{case}_i.png", "masks": masks, **options}
    )


@pytest.mark.parametrize("options", [{}, {"threshold": 127}, {"threshold": 0}, "255", "own"])
@pytest.mark.parametrize(
    ("suffix", "bits"),
    [(s, b) for s in (".png", ".tif") for b in (1, 2, 4)] + [(".npy", 1), (".h5:m", 1)],
)
def test_white_is_white_in_any_number_of_bits(tmp_path, suffix, bits, options):
    values = INSIDE * (2**bits - 1)
    WRITERS[suffix](tmp_path / f"a_m{suffix}", values, bits)
    if isinstance(options, str):
        value = 255 if options == "255" else 2**bits - 1
        options = {"masks": f"{{case}}_m{suffix}", "classes": {"cell": value}}
    source = opened(tmp_path, suffix, **options)
    np.testing.assert_array_equal(source.read(0)[1], INSIDE)
    report = check(source)
    assert (report.defects, report.warnings) == ((), ())
    assert report.cases[0].mask_dtype == ("bool" if bits == 1 else f"uint{bits}")


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("bits", [2, 4])
def test_labels_in_few_bits_are_the_stored_numbers(tmp_path, suffix, bits):
    values = RNG.integers(0, 2**bits, (40, 48))
    WRITERS[suffix](tmp_path / f"a_m{suffix}", values, bits)
    classes = {f"c{value}": value for value in range(1, 2**bits)}
    mask = opened(tmp_path, suffix, masks=f"{{case}}_m{suffix}", classes=classes).read(0)[1]
    np.testing.assert_array_equal(mask, values)
    # Or as an 8-bit viewer shows them.
    step = 255 // (2**bits - 1)
    classes = {name: value * step for name, value in classes.items()}
    mask = opened(tmp_path, suffix, masks=f"{{case}}_m{suffix}", classes=classes).read(0)[1]
    np.testing.assert_array_equal(mask, values)


def test_a_threshold_for_another_range_of_values_is_a_defect_and_a_near_one_a_warning(tmp_path):
    Image.fromarray(INSIDE.astype(np.uint8)).save(tmp_path / "a_m.png")
    (defect,) = check(opened(tmp_path, ".png", threshold=127)).defects
    assert "its values reach 1, and none is above threshold = 127: the mask would be" in defect.what
    np.save(tmp_path / "a_m.npy", INSIDE * np.float32(0.9))
    assert len(check(opened(tmp_path, ".npy", threshold=127)).defects) == 1
    Image.fromarray(INSIDE * np.uint8(100)).save(tmp_path / "a_m.png")
    report = check(opened(tmp_path, ".png", threshold=127))
    assert [str(warning) for warning in report.warnings][:2] == [
        "a_m.png: its values reach 100, and none is above threshold = 127",
        "a_i.png: its mask is empty",
    ]
    # The only mask of the data set is empty.
    (defect,) = report.defects
    assert "no case has a pixel of the class 1 cell" in defect.what
    Image.fromarray(np.zeros((40, 48), np.uint8)).save(tmp_path / "a_m.png")
    assert check(opened(tmp_path, ".png", threshold=127)).defects == (defect,)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.where(IMAGE > 200, 255, INSIDE), "value 255 stands apart from the others (up to 1)"),
        (np.where(IMAGE > 200, 255, INSIDE * 200), None),  # Smooth borders.
        (INSIDE * 255, None),
        (IMAGE % 250, None),  # Instances.
        (np.where(IMAGE > 200, -1, INSIDE), "values go down to -1, which counts as background"),
    ],
)
def test_a_mark_of_pixels_to_ignore_is_noted_where_a_threshold_takes_it(tmp_path, values, words):
    np.save(tmp_path / "a_m.npy", values.astype(np.int16 if values.min() < 0 else np.uint8))
    notes = check(opened(tmp_path, ".npy", threshold=0)).warnings
    assert [words in note.what for note in notes] == [True] * (words is not None)


def test_the_file_of_a_case_with_odd_intensities_is_named(tmp_path, monkeypatch):
    for name, pixels in (("a", IMAGE), ("b", np.where(INSIDE, -9999, IMAGE)), ("m", INSIDE)):
        np.save(tmp_path / f"1_{name}.npy", pixels.astype(np.float32))
    options = {"images": ["{case}_a.npy", "{case}_b.npy"], "masks": "{case}_m.npy"}
    source = open_source("folder", {"root": str(tmp_path), **options})
    assert [note.file for note in check(source).warnings] == ["1_b.npy"]
    monkeypatch.setattr(file_reader, "LARGE_BYTES", 0)
    source = open_source("folder", {"root": str(tmp_path), **options})
    assert all(True for _ in source.stored(0).parts)
    assert [note.file for note in source.notes(0)] == ["1_b.npy"]


def test_a_map_of_probabilities_becomes_a_class_by_a_threshold(tmp_path):
    probabilities = RNG.random((40, 48)).astype(np.float32)
    np.save(tmp_path / "a_m.npy", probabilities)
    mask = opened(tmp_path, ".npy", threshold=0.25).read(0)[1]
    np.testing.assert_array_equal(mask, probabilities > 0.25)
    (defect,) = check(opened(tmp_path, ".npy")).defects
    assert "labels must be whole numbers" in defect.what
    assert "For a map of probabilities say masks = { CLASS = PATTERN } and threshold" in defect.what
    probabilities[3, 4] = np.nan
    np.save(tmp_path / "a_m.npy", probabilities)
    assert "NaN" in check(opened(tmp_path, ".npy", threshold=0.25)).defects[0].what


LABELS = RNG.integers(0, 3, (40, 48))
ONE_HOT = np.stack([number == LABELS for number in range(3)], -1)


@pytest.mark.parametrize(
    ("channels", "classes", "expected"),
    [
        (ONE_HOT, {"a": 1, "b": 2}, LABELS),
        (ONE_HOT.astype(np.float32), {"a": 1, "b": 2}, LABELS),
        (ONE_HOT * np.uint8(255), {"a": 1, "b": 2}, LABELS),
        (np.moveaxis(ONE_HOT, -1, 0), {"a": 1, "b": 2}, LABELS),
        (ONE_HOT, {"b": 2, "a": 1}, np.array([0, 2, 1])[LABELS]),
        (ONE_HOT, {"a": 1, "background": [0, 2]}, LABELS == 1),
        # Without a channel of the background.
        (ONE_HOT[..., 1:], {"a": 1, "b": 2}, LABELS),
        # Values that are no numbers of channels: in the order of the classes.
        (ONE_HOT, {"a": 100, "b": 200}, LABELS),
        (ONE_HOT[..., 1:], {"a": 100, "b": 200}, LABELS),
        (ONE_HOT[..., 1:] & False, {"a": 1, "b": 2}, LABELS * 0),
    ],
)
@pytest.mark.parametrize("by_parts", [False, True])
def test_a_one_hot_mask_is_its_labels(tmp_path, monkeypatch, channels, classes, expected, by_parts):
    np.save(tmp_path / "a_m.npy", channels)
    np.save(tmp_path / "a.npy", IMAGE)
    if by_parts:
        monkeypatch.setattr(file_reader, "LARGE_BYTES", 0)
    options = {"images": "{case}.npy", "masks": "{case}_m.npy", "classes": classes}
    source = open_source("folder", {"root": str(tmp_path), **options})
    mask = source.read(0)[1]
    if by_parts:
        mask = np.concatenate([part for _, part in source.stored(0).parts])
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize(
    ("channels", "options", "words"),
    [
        (ONE_HOT | True, {"classes": {"a": 1}}, None),  # Three times the same value.
        (ONE_HOT | ONE_HOT[..., :1], {"classes": {"a": 1, "b": 2}}, "in each pixel one channel"),
        (ONE_HOT * RNG.random((40, 48, 3)), {"classes": {"a": 1, "b": 2}}, "in each pixel one"),
        (ONE_HOT, {"classes": {"a": 1}}, "3 different channels; a mask must have one value"),
        (ONE_HOT, {"masks": {"a": "{case}_m.npy"}}, "or, for a one-hot mask, its channel"),
    ],
)
def test_other_channels_are_refused(tmp_path, channels, options, words):
    np.save(tmp_path / "a_m.npy", channels)
    options = {"masks": "{case}_m.npy", **options}
    defects = check(opened(tmp_path, ".npy", **options)).defects
    assert [words in defect.what for defect in defects] == [True] * (words is not None)


def test_colours_are_never_one_hot(tmp_path):
    Image.fromarray(ONE_HOT * np.uint8(255)).save(tmp_path / "a_m.png")
    options = {"masks": "{case}_m.png", "classes": {"a": 1, "b": 2}}
    (defect,) = check(opened(tmp_path, ".png", **options)).defects
    assert "such as '#ff0000'" in defect.what


def test_a_mask_that_is_only_alpha_is_refused(tmp_path):
    shape = np.zeros((40, 48, 4), np.uint8)
    shape[..., 3] = INSIDE * 255
    Image.fromarray(shape).save(tmp_path / "a_m.png")
    (defect,) = check(opened(tmp_path, ".png")).defects
    assert "its shape is in the alpha channel" in defect.what


@pytest.mark.parametrize(
    ("image", "mask", "axes"),
    [
        ((40, 48), (40, 48, 1), None),
        ((40, 48), (1, 40, 48), None),
        ((40, 48, 3), (40, 48, 1), "yxc"),
        ((3, 40, 48), (40, 48, 1), "cyx"),
        ((3, 40, 48), (1, 40, 48), "cyx"),
        ((6, 40, 48), (6, 40, 48, 1), None),
        ((6, 40, 48), (1, 6, 40, 48), None),
        ((6, 40, 48, 2), (6, 40, 48, 1), None),
        ((40, 48, 1), (40, 48, 1), None),
        ((40, 48, 1), (40, 48), None),
        ((1, 40, 48), (1, 40, 48), None),
        # Colours of a format without words for its axes: the mask says so.
        ((40, 48, 3), (40, 48), None),
        ((40, 48, 3), (40, 48, 1), None),
    ],
)
def test_an_axis_of_one_in_a_mask_is_none(tmp_path, image, mask, axes):
    np.save(tmp_path / "a.npy", RNG.random(image, np.float32))
    inside = RNG.integers(0, 2, mask).astype(np.uint8)
    np.save(tmp_path / "a_m.npy", inside)
    options = {"images": "{case}.npy", "masks": "{case}_m.npy", "axes": axes}
    source = open_source("folder", {"root": str(tmp_path), **options})
    np.testing.assert_array_equal(source.read(0)[1], inside.squeeze())
    assert source.channels == (3 if 3 in image else 2 if image[-1] == 2 else 1)


def test_a_stack_with_a_plane_of_a_mask_is_told_what_to_say(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", RNG.random((4, 40, 48)), photometric="minisblack")
    tifffile.imwrite(tmp_path / "a_m.tif", INSIDE.astype(np.uint8))
    options = {"root": str(tmp_path), "images": "{case}.tif", "masks": "{case}_m.tif"}
    with pytest.raises(ValueError, match=r"If an axis of the image .* say axes = 'cyx'"):
        open_source("folder", options)
    assert open_source("folder", {**options, "axes": "cyx"}).channels == 4


@pytest.mark.parametrize(
    ("image", "options", "words"),
    [
        (np.where(INSIDE, -9999, IMAGE), {}, "value -9999 stands apart from the others (0 to 255)"),
        (IMAGE.astype(np.int32) - 9999, {}, None),  # The lowest of its values, and no mark.
        (np.where(INSIDE, 3.4028235e38, IMAGE), {}, "value 3.40282e+38 stands apart"),
        (IMAGE * 257.0, {"intensity": [0, 255]}, "of its values lie outside intensity = [0, 255]"),
        (IMAGE / 255, {"intensity": [0, 255]}, "fill only 0.4% of intensity = [0, 255]"),
        (IMAGE * 1.0, {"intensity": [0, 255]}, None),
        (IMAGE * 5.0 - 1024, {"intensity": [-160, 240]}, None),  # A window of CT.
        (IMAGE * 16.0, {"intensity": [0, 65535]}, None),  # 12 of 16 bits.
        (
            np.where(INSIDE, IMAGE + 1.0, -3.5),
            {"intensity": "zscore_nonzero"},
            "have the value of the first, -3.5; to leave them out: 'zscore_inside'",
        ),
        (np.where(INSIDE, IMAGE, 0), {"intensity": "zscore_nonzero"}, None),
        (np.where(INSIDE, IMAGE + 1.0, -3.5), {"intensity": "zscore_inside"}, None),
    ],
)
@pytest.mark.parametrize("by_parts", [False, True])
def test_odd_intensities_are_noted(tmp_path, monkeypatch, image, options, words, by_parts):
    np.save(tmp_path / "a.npy", image.astype(np.float32))
    np.save(tmp_path / "a_m.npy", INSIDE)
    patterns = {"images": "{case}.npy", "masks": "{case}_m.npy"}
    source = open_source("folder", {"root": str(tmp_path), **patterns, **options})
    if by_parts:
        monkeypatch.setattr(file_reader, "LARGE_BYTES", 0)
        assert all(True for _ in source.stored(0).parts)
        notes = source.notes(0)
    else:
        notes = check(source).warnings
    assert [words in note.what for note in notes] == [True] * (words is not None)
