"""TFRecord files that TensorFlow wrote are read without it, and damaged ones are named."""

import gzip
import io
import re
import tomllib
from functools import partial

import numpy as np
import pytest
import tifffile
from record_files import encoded, write_records
from small_images import save, whole

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.data.check import check
from tfunet.data.defects import DefectsError
from tfunet.data.formats.tfrecord import features_of, value_of
from tfunet.data.packing import pack
from tfunet.data.source import open_source
from tfunet.loop import run
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice

SHAPES = [(32, 40), (36, 33), (48, 32), (40, 40), (33, 35)]
COLOURS = [whole((*shape, 3), np.uint8, 256) for shape in SHAPES]
DEEP = [whole(shape, np.uint16, 65536) for shape in SHAPES]
MASKS = [whole(shape, np.uint8, 3) for shape in SHAPES]
OPTIONS = {"files": "train*", "image": "image/encoded", "mask": "mask/encoded"}
OPTIONS |= {"classes": {"cell": 1, "line": 2}}


def tiff(pixels):
    content = io.BytesIO()
    tifffile.imwrite(content, pixels)
    return content.getvalue()


def two_files(root, records):
    """Write records into two files named as TensorFlow's tools do."""
    write_records(root / "train.tfrecord-00000-of-00002", records[:3])
    write_records(root / "train.tfrecord-00001-of-00002", records[3:])


@pytest.fixture
def records():
    return [
        {
            "image/encoded": encoded(image),
            "mask/encoded": encoded(mask),
            "id": f"scan {number}",
            "patient": number // 2,
            "weights": np.array([0.5, -1]),
        }
        for number, (image, mask) in enumerate(zip(COLOURS, MASKS, strict=True))
    ]


def files(root):
    for number, (image, mask) in enumerate(zip(COLOURS, MASKS, strict=True)):
        save(root / f"images/{number}.png", image)
        save(root / f"masks/{number}.png", mask)
    options = {"root": str(root), "images": "images/{case}.png", "masks": "masks/{case}.png"}
    return open_source("folder", {**options, "classes": OPTIONS["classes"]})


def same_pixels(one, other):
    assert len(one.case_ids) == len(other.case_ids)
    for index in range(len(one.case_ids)):
        for ours, theirs in zip(one.read(index), other.read(index), strict=True):
            assert ours.tobytes() == theirs.tobytes()
    assert one.shapes == other.shapes
    assert one.in_colour == other.in_colour


def test_records_are_the_cases_that_the_same_files_are(tmp_path, records):
    two_files(tmp_path / "records", records)
    source = open_source("tfrecord", {**OPTIONS, "root": str(tmp_path / "records")})
    same_pixels(source, files(tmp_path / "files"))
    assert source.case_ids[2:4] == (
        "train.tfrecord-00000-of-00002_000002",
        "train.tfrecord-00001-of-00002_000000",
    )
    assert source.groups == source.case_ids
    options = {**OPTIONS, "root": str(tmp_path / "records"), "key": "id", "group": "patient"}
    source = open_source("tfrecord", options)
    assert source.case_ids == tuple(f"scan {number}" for number in range(5))
    assert source.groups == ("0", "0", "1", "1", "2")
    options = {**OPTIONS, "root": str(tmp_path / "records"), "files": "{group}.tfrecord-*"}
    assert set(open_source("tfrecord", options).groups) == {"train"}
    assert not check(source).defects
    pack(source, tmp_path / "place", command="")
    same_pixels(open_source("packed", {"root": str(tmp_path / "place")}), source)


@pytest.mark.parametrize("kind", ["jpeg", "tiff", "bytes", "numbers", "floats"])
def test_pixels_may_be_encoded_or_plain(kind, tmp_path):
    images = COLOURS if kind == "jpeg" else DEEP
    if kind == "floats":
        images = [image.astype(np.float32) / 7 for image in images]
    contents = {
        "jpeg": partial(encoded, kind="jpeg"),
        "tiff": tiff,
        "bytes": lambda image: image.astype("<u2").tobytes(),
    }
    make = contents.get(kind, lambda image: image)
    rows = [
        {"pixels": make(image), "labels": mask.tobytes(), "size": mask.shape, "rows": len(mask)}
        for image, mask in zip(images, MASKS, strict=True)
    ]
    two_files(tmp_path / "records", rows)
    plain = {"dtype": "float32" if kind == "floats" else "uint16", "shape": "size"}
    options = {
        "root": str(tmp_path / "records"),
        **OPTIONS,
        "image": "pixels",
        "mask": "labels",
        "mask_raw": {"dtype": "uint8", "shape": ["size", 1]},
        **({} if kind in ("jpeg", "tiff") else {"image_raw": plain}),
    }
    suffix = {"jpeg": ".jpg", "floats": ".npy"}.get(kind, ".tif")
    for number, (image, mask) in enumerate(zip(images, MASKS, strict=True)):
        save(tmp_path / f"files/{number}{suffix}", image)
        if kind == "jpeg":
            (tmp_path / f"files/{number}.jpg").write_bytes(encoded(image, "jpeg"))
        save(tmp_path / f"files/{number}.png", mask)
    described = {"images": f"{{case}}{suffix}", "masks": "{case}.png"}
    described |= {"root": str(tmp_path / "files"), "classes": OPTIONS["classes"]}
    same_pixels(open_source("tfrecord", options), open_source("folder", described))


def test_plain_colours_and_several_features_become_channels(tmp_path):
    rows = [
        {"rgb": image.tobytes(), "ir": encoded(image[..., 0]), "mask": encoded(mask)}
        | {"height": mask.shape[0], "width": mask.shape[1]}
        for image, mask in zip(COLOURS, MASKS, strict=True)
    ]
    write_records(tmp_path / "train", rows)
    options = {**OPTIONS, "root": str(tmp_path), "mask": "mask", "intensity": "none"}
    raw = {"dtype": "uint8", "shape": ["height", "width", 3]}
    source = open_source("tfrecord", {**options, "image": "rgb", "image_raw": raw})
    for index, image in enumerate(COLOURS):
        np.testing.assert_array_equal(source.read(index)[0], image)
    assert source.in_colour
    source = open_source("tfrecord", {**options, "image": ["ir", "ir"]})
    np.testing.assert_array_equal(source.read(1)[0], COLOURS[1][..., [0, 0]])
    source = open_source(
        "tfrecord",
        {**options, "image": "ir", "mask": {"cell": "mask"}, "classes": None, "threshold": 1},
    )
    np.testing.assert_array_equal(source.read(1)[1], MASKS[1] > 1)


def test_every_kind_of_value_is_that_of_tensorflow(tmp_path):
    numbers = np.array([0, 1, 127, 128, 2**40, 2**63 - 1, -1, -(2**63)], np.int64)
    floats = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    record = {"numbers": numbers, "floats": floats, "text": "ü", "none": np.zeros(0, np.int64)}
    write_records(tmp_path / "one", [record])
    features = features_of(tmp_path / "one", 0)
    np.testing.assert_array_equal(value_of(features, "numbers"), numbers)
    np.testing.assert_array_equal(value_of(features, "floats"), floats)
    assert value_of(features, "text") == ["ü".encode()]
    assert len(value_of(features, "none")) == 0


def damaged(path, at, change):
    content = bytearray(path.read_bytes())
    path.write_bytes(change(content, at))


def flip(content, at):
    content[at] ^= 1
    return content


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        # The length of the first record; a byte of its data; the end of the last one.
        ((3, flip), r"00000-of-00002: the checksum of the length of record 0 is wrong: the file"),
        ((200, flip), r"the checksum of record 0 is wrong: the file is damaged"),
        ((-9, lambda content, at: content[:at]), r"00000-of-00002: it is cut off in record 2$"),
        ((0, lambda content, at: content + b"12345"), r"it is cut off in record 3$"),
        ((0, lambda content, at: gzip.compress(content)), r"with GZIP.* gzip -dc < train\.tfrec"),
    ],
)
def test_a_damaged_file_is_named_with_its_record(damage, words, tmp_path, records):
    two_files(tmp_path, records)
    damaged(tmp_path / "train.tfrecord-00000-of-00002", *damage)
    with pytest.raises(DefectsError) as caught:
        open_source("tfrecord", {**OPTIONS, "root": str(tmp_path)})
    first = str(caught.value).splitlines()[1]
    assert "train.tfrecord-00000-of-00002" in first
    assert re.search(words, first), first
    # The other records can be used.
    source = open_source("tfrecord", {**OPTIONS, "root": str(tmp_path)}, skip_bad=True)
    assert "train.tfrecord-00001-of-00002_000001" in source.case_ids
    source.read(len(source.case_ids) - 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"image": "image/raw"},
            r"train:0@image/raw: cannot be read \(the record has no feature 'image/raw'; it has: "
            r"id, image/encoded, mask/encoded, patient, weights\)",
        ),
        (
            {"image": "id"},
            r"it is no image as PNG, JPEG, WebP, TIFF encode it\. Say how .* image_raw",
        ),
        ({"key": "weights"}, r"train:0: the feature 'weights' has 2 values instead of one"),
        ({"key": "patient"}, r"named '0', as is train:0@image/encoded"),
        ({"files": "test*"}, r"No file under .* matches 'test\*'"),
        ({"image_raw": {"dtype": "uint8"}}, r"image_raw=.*; allowed: dtype, one of bool, uint8"),
        ({"image_raw": {"type": "uint8"}}, r"key of image_raw: 'type'"),
        (
            {"image_raw": {"dtype": "uint8", "shape": [7, "patient"]}},
            r"it has \d+ bytes, and uint8 of shape \(7, 0\) takes 0",
        ),
        (
            {"image_raw": {"dtype": "uint8", "shape": [7, "id"]}},
            r"the feature 'id' must hold whole numbers: lengths of axes",
        ),
        (
            {"objects": "files", "classes": None, "mask": {"a": "mask"}},
            "needs a mask for each object",
        ),
    ],
)
def test_a_wrong_description_is_refused_in_a_line(change, words, tmp_path, records):
    write_records(tmp_path / "train", records)
    with pytest.raises(ValueError, match=words):
        open_source("tfrecord", {**OPTIONS, "root": str(tmp_path), **change})


RUN = """
patch = [32, 32]
validation_share = 0.25
global_batch = 1
steps = 3
model_options = { filters = 2, levels = 1 }
"""


def test_a_run_on_records_is_that_on_files(tmp_path, records, monkeypatch):
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    for number, record in enumerate(records):
        record["id"] = str(number)
    two_files(tmp_path / "records", records)
    files(tmp_path / "files")
    given = {
        "tfrecord": {**OPTIONS, "root": str(tmp_path / "records"), "key": "id"},
        "folder": {
            "root": str(tmp_path / "files"),
            "images": "images/{case}.png",
            "masks": "masks/{case}.png",
            "classes": OPTIONS["classes"],
        },
    }
    results = {}
    for data, options in given.items():
        table = {**tomllib.loads(RUN), "data": data, "data_options": options}
        results[data] = run(from_dict(table), SingleDevice(Launch()), tmp_path / data)
    assert results["tfrecord"]["dice"] == results["folder"]["dice"]
    contents = [RunFolder(tmp_path / data).read_data()["contents"] for data in given]
    assert contents[0] == contents[1]
