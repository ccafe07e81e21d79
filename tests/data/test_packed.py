"""Packed data sets: the samples of the files to the bit, resumable, and clear when damaged."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import zarr
from paths import ROOT
from small_images import save, whole

from tfunet import exit_codes
from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.data.cache import build_cache
from tfunet.data.defects import DefectsError
from tfunet.data.packed_index import Layout, box_of, read_index
from tfunet.data.packing import pack
from tfunet.data.source import open_source
from tfunet.data.stored_case import look_at
from tfunet.files.atomic import WriteError
from tfunet.loop import run
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice

RNG = np.random.default_rng(0)
SHAPES = [(40, 51), (33, 64), (70, 45), (40, 51)]


def folder(root, suffix, shapes, make, **options):
    """Write cases of these shapes, and return how they are opened."""
    for number, shape in enumerate(shapes):
        mask = np.zeros(shape, np.uint8)
        mask[tuple(slice(2 + number, length // 2) for length in shape)] = 1
        mask[(0,) * len(shape)] = 255
        save(root / f"images/{number}{suffix}", make(shape))
        save(root / f"masks/{number}{'.png' if len(shape) == 2 else '.nii'}", mask)
    masks = "masks/{case}" + (".png" if len(shapes[0]) == 2 else ".nii")
    given = {"root": str(root), "images": f"images/{{case}}{suffix}", "masks": masks}
    return {**given, "classes": {"cell": [1]}, "ignore_label": 255, **options}


VOLUMES = [(9, 12, 30), (11, 10, 28), (9, 12, 30)]
KINDS = {
    "colour PNG of 8 bits": (
        *(".png", SHAPES, lambda shape: whole((*shape, 3), np.uint8, 256)),
        {},
    ),
    "TIFF of 16 bits": (
        *(".tif", SHAPES, lambda shape: whole(shape, np.uint16, 65536)),
        {"intensity": {"clip": [0.5, 99.5]}},
    ),
    "NIfTI of int16": (
        *(".nii.gz", VOLUMES, lambda shape: RNG.integers(-1000, 2000, shape).astype(np.int16)),
        {"intensity": "zscore_inside"},
    ),
    "NIfTI of float": (
        *(".nii", VOLUMES, lambda shape: RNG.normal(0, 1e4, shape).astype(np.float32)),
        {},
    ),
    "resampled": (
        *(".tif", SHAPES, lambda shape: whole(shape, np.uint8, 256)),
        {"pixel_size": 1.0, "target_pixel_size": 0.7, "patch": [48, 48]},
    ),
    "grey, and a range": (
        *(".png", SHAPES, lambda shape: whole((*shape, 3), np.uint8, 256)),
        {"grey": True, "intensity": [0, 255]},
    ),
}


@pytest.fixture
def colours(tmp_path):
    suffix, shapes, make, options = KINDS["colour PNG of 8 bits"]
    return folder(tmp_path / "files", suffix, shapes, make, **options)


def packed(options, place, data="folder", **more):
    """Pack a data set, and return it as it was and as it is packed."""
    source = open_source(data, options)
    pack(source, place, command="tfunet data pack run.toml --out there", **more)
    return source, open_source("packed", {"root": str(place)})


@pytest.mark.parametrize("kind", KINDS)
def test_packed_cases_are_those_of_the_files_to_the_bit(kind, tmp_path):
    suffix, shapes, make, options = KINDS[kind]
    source, ours = packed(
        folder(tmp_path / "files", suffix, shapes, make, **options), tmp_path / "place"
    )
    for index in range(len(shapes)):
        for one, other in zip(ours.read(index), source.read(index), strict=True):
            assert one.dtype == other.dtype
            assert one.tobytes() == other.tobytes()
        start = tuple(length // 3 for length in source.shapes[index])
        stop = tuple(length - 2 for length in source.shapes[index])
        inside = tuple(map(slice, start, stop))
        box = ours.boxes(index, None)(start, stop)
        for one, other in zip(box, source.read(index), strict=True):
            np.testing.assert_array_equal(one, other[inside])
    same = ("name", "case_ids", "groups", "num_classes", "channels", "regions", "patch", "shapes")
    more = ("spacings", "unit", "ignored", "fingerprint", "mask_values", "in_colour", "preparation")
    for name in (*same, *more, "files", "class_names", "has_background", "swapped"):
        assert getattr(ours, name) == getattr(source, name), name
    assert ours.paths() == source.paths()


@pytest.mark.parametrize("kind", KINDS)
def test_what_training_computes_of_cases_is_packed_with_them(kind, tmp_path):
    suffix, shapes, make, options = KINDS[kind]
    options = folder(tmp_path / "files", suffix, shapes, make, **options)
    source, ours = packed(options, tmp_path / "place")
    reader = ours.read.__self__
    for index in range(len(shapes)):
        for each in (source, ours):  # From the packed pixels, too.
            facts, places = look_at(each, index)
            own = reader.facts[index]
            assert (own.extent, own.dtype, own.signs) == (facts.extent, facts.dtype, facts.signs)
            assert own.foreground == facts.foreground
            for one, other in zip(reader.all_places(index), places, strict=True):
                np.testing.assert_array_equal(one, other)
            pairs = zip(own.statistics or (), facts.statistics or (), strict=True)
            for one, other in pairs:
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype


def test_a_run_reads_neither_files_nor_whole_cases_before_it_starts(colours, tmp_path):
    source, ours = packed(colours, tmp_path / "place")
    cases = {
        one: build_cache(each, tmp_path / "cache", patch=(48, 48), store=store)
        for one, each, store in (("files", source, "decoded"), ("packed", ours, "auto"))
    }
    assert cases["packed"].is_known
    for case in range(4):
        for bits in ((0, 0), (3, 17), (2, 5)):
            voxels = [each.foreground_voxel(case, bits) for each in cases.values()]
            assert voxels[0] == voxels[1]
        start = [max(0, at - 30) for at in voxels[0]]
        boxes = [each.read(case, start, (30, 40)) for each in cases.values()]
        for one, other in zip(*boxes, strict=True):
            assert one.tobytes() == other.tobytes()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_zarr_reads_the_arrays(colours, tmp_path):
    _, ours = packed(colours, tmp_path / "place")
    index = read_index(tmp_path / "place")
    for name, at in (("images-uint8", 0), ("masks", 1)):
        array = zarr.open(tmp_path / "place" / name, mode="r")
        assert array.shards[0] == index.shard_boxes
        rows, columns = ours.shapes[3]
        first = index.layout.first_boxes[3]
        stored = array[first][:rows, :columns]
        wanted = ours.raw(3)
        np.testing.assert_array_equal(stored, (wanted.image, wanted.mask)[at])
    assert not array[first][rows:].any()


@pytest.mark.parametrize("grey", [False, True])  # Grey of colours is no whole number.
def test_a_large_case_is_cut_into_boxes_of_several_shards(grey, tmp_path, monkeypatch):
    monkeypatch.setattr("tfunet.data.packed_index.SHARD_BYTES", 50 * 45 * 6 * 3)
    monkeypatch.setattr("tfunet.data.packed_index.LONGEST", {2: (60, 40)})
    monkeypatch.setattr("tfunet.data.packed_index.LARGE_BYTES", 100 * 100 * 12)
    monkeypatch.setattr("tfunet.data.layouts.file_reader.LARGE_BYTES", 100 * 100 * 4)
    monkeypatch.setattr("tfunet.data.lazy_image.PART_BYTES", 190 * 12 * 20)
    shapes = [(50, 45), (200, 190), (30, 30), (50, 45)]
    options = folder(
        *(tmp_path, ".tif", shapes, lambda shape: whole((*shape, 3), np.uint8, 256)),
        grey=grey,
    )
    for number, shape in enumerate(shapes):
        mask = np.zeros(shape, np.uint8)
        mask[:20] = 1
        save(tmp_path / f"masks/{number}.tif", mask)
    source, ours = packed({**options, "masks": "masks/{case}.tif"}, tmp_path / "place")
    assert len(list(source.stored(1).parts)) > 3
    units = read_index(tmp_path / "place").layout.units
    assert [len(unit.shards) > 1 for unit in units] == [False, True, False]
    for index in range(4):
        for one, other in zip(ours.read(index), source.read(index), strict=True):
            assert one.tobytes() == other.tobytes()
    whole_case = ours.read(1)[0]
    shards = list((tmp_path / "place").glob("images-*/c.*"))
    assert {shard.parent.name for shard in shards} >= {"images-float32" if grey else "images-uint8"}
    for shard in shards:  # Nothing is read of other shards for a box.
        content = shard.read_bytes()
        shard.write_bytes(b"")
        lost = 0
        for start in (0, 40, 80, 120, 160):
            try:
                box, _ = ours.boxes(1, None)((start, 80), (start + 30, 120))
            except ValueError:
                lost += 1
            else:
                np.testing.assert_array_equal(box, whole_case[start : start + 30, 80:120])
        assert lost < 5
        shard.write_bytes(content)


@pytest.mark.parametrize(
    ("shapes", "channels", "box", "shard_boxes"),
    [
        ([(256, 256)] * 5000, 3, (256, 256), 682),
        ([(10, 10)] * 5, 3, (10, 10), 5),  # No more than there are.
        ([(8, 8)] * 100_000, 1, (8, 8), 4096),
        ([(2000, 300), (2048, 300)], 1, (256, 300), 16),
        ([(35, 50, 36), (40, 40, 47)], 2, (40, 50, 47), 2),  # Few zeros beyond the shorter ones.
        ([(100, 100)] * 9 + [(400, 100)], 1, (100, 100), 13),
        ([(155, 240, 240)], 8, (64, 64, 64), 48),
        ([(512, 512)], 448, (64, 64), 64),  # Hyperspectral: fewer pixels in a box.
    ],
)
def test_boxes_have_room_for_usual_cases(shapes, channels, box, shard_boxes):
    assert box_of(shapes, channels) == (box, shard_boxes)


def test_no_two_cases_have_a_box_in_common():
    shapes = [(int(a), int(b)) for a, b in RNG.integers(1, 90, (200, 2))]
    layout = Layout(shapes, (20, 30), 7, 5000)
    taken = []
    for first, shape in zip(layout.first_boxes, shapes, strict=True):
        taken += range(first, first + int(np.prod(layout.grid(shape))))
    assert taken == sorted(set(taken))
    assert taken[-1] < layout.num_shards * 7
    for case in range(200):
        unit = layout.unit_of(case)
        assert case in unit.cases
        assert layout.first_boxes[case] // 7 in unit.shards


def test_objects_and_targets_are_packed(tmp_path):
    numbers = np.zeros((30, 40), np.uint16)
    numbers[2:9, 3:9], numbers[9:20, 3:9] = 1, 300
    save(tmp_path / "images/0.png", whole((30, 40), np.uint8, 256))
    save(tmp_path / "masks/0.tif", numbers)
    options = {"root": str(tmp_path), "images": "images/{case}.png"}
    options |= {"masks": {"cell": "masks/{case}.tif"}, "objects": "numbers", "border": "line"}
    source, ours = packed(options, tmp_path / "place")
    for shape in ((30, 40), (15, 20)):
        np.testing.assert_array_equal(ours.objects(0, shape), source.objects(0, shape))
    source, ours = packed({"num_cases": 3}, tmp_path / "numbers", "universes")
    assert ours.targets == source.targets
    # Boxes of zeros take no room: there is the index of three, and its checksum.
    assert (tmp_path / "numbers/masks/c.0.0.0.0").stat().st_size == 3 * 16 + 4
    assert ours.read(1)[0].tobytes() == source.read(1)[0].tobytes()


def test_a_case_that_cannot_be_read_is_named_or_left_out(colours, tmp_path):
    file = tmp_path / "files/images/1.png"
    content = bytearray(file.read_bytes())
    content[200:240] = bytes(40)
    file.write_bytes(content)
    place = tmp_path / "place"
    with pytest.raises(DefectsError, match=r"1 defect .*\n +images/1\.png: cannot be read"):
        packed(colours, place)
    with pytest.raises(ValueError, match="is not finished: 0 of 4 cases are packed"):
        open_source("packed", {"root": str(place)})
    source, ours = packed(colours, place, skip_bad=True)
    assert ours.case_ids == ("0", "2", "3")
    assert ours.read(1)[0].tobytes() == source.read(2)[0].tobytes()
    (warning,) = ours.warnings
    assert str(warning).startswith("images/1.png: was left out when it was packed: cannot be read")


def damaged(place, name, how):
    path = place / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if how == "cut":
        path.write_bytes(content[:-9])
    elif how == "changed":
        content[60:64] = bytes(4)
        path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("images-uint8/c.0.0.0.0", "cut", r"has \d+ bytes, and had \d+ when it was written"),
        ("masks/c.0.0.0", "missing", "is missing"),
        ("places/0", "missing", "is missing"),
    ],
)
def test_a_shard_that_is_not_whole_is_named_and_written_again(name, how, words, colours, tmp_path):
    source, _ = packed(colours, tmp_path / "place")
    path = damaged(tmp_path / "place", name, how)
    line = rf"{path}: {words}\. .* tfunet data pack run\.toml --out there \(3 more like it"
    with pytest.raises(DefectsError, match=line):
        open_source("packed", {"root": str(tmp_path / "place")})
    _, ours = packed(colours, tmp_path / "place")
    assert ours.read(3)[1].tobytes() == source.read(3)[1].tobytes()


def test_a_shard_with_a_wrong_checksum_is_named_when_it_is_read(colours, tmp_path):
    source, ours = packed(colours, tmp_path / "place")
    path = damaged(tmp_path / "place", "images-uint8/c.0.0.0.0", "changed")
    with pytest.raises(ValueError, match=rf"{path}: the checksum of a box is wrong: .* data pack"):
        [ours.read(index) for index in range(4)]
    path.unlink()  # As the message says.
    _, again = packed(colours, tmp_path / "place")
    assert again.read(0)[0].tobytes() == source.read(0)[0].tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda place: shutil.rmtree(place), "does not exist; give a folder"),
        (lambda place: (place / "index.json").unlink(), "is no packed data set: it has no index"),
        (lambda place: (place / "cases.npz").unlink(), "4 of 4 cases are packed. Go on: tfunet"),
        (lambda place: set_version(place, 2), "was packed in version 2 .* reads version 1"),
        (lambda place: (place / "index.json").write_text("{"), "index.json cannot be used"),
        (lambda place: (place / "cases.npz").write_bytes(b"x"), "cases.npz cannot be used"),
    ],
)
def test_a_place_that_is_none_is_refused(change, words, colours, tmp_path):
    packed(colours, tmp_path / "place")
    change(tmp_path / "place")
    with pytest.raises(ValueError, match=words):
        open_source("packed", {"root": str(tmp_path / "place")})


def set_version(place, version):
    index = json.loads((place / "index.json").read_text())
    (place / "index.json").write_text(json.dumps({**index, "version": version}))


def test_a_place_with_something_else_is_left_as_it_is(colours, tmp_path):
    packed(colours, tmp_path / "place")
    before = {file: file.read_bytes() for file in (tmp_path / "place").rglob("*.*")}
    for options in ({**colours, "intensity": "none"}, {**colours, "classes": {"nucleus": 1}}):
        with pytest.raises(ValueError, match="holds another data set"):
            pack(open_source("folder", options), tmp_path / "place", command="")
    with pytest.raises(ValueError, match="holds images, masks, and no packed data set"):
        pack(open_source("folder", colours), tmp_path / "files", command="")
    set_version(tmp_path / "place", 7)
    with pytest.raises(ValueError, match="version 7"):
        pack(open_source("folder", colours), tmp_path / "place", command="")
    set_version(tmp_path / "place", 1)
    changed = [file for file, content in before.items() if file.read_bytes() != content]
    assert [file.name for file in changed] in ([], ["index.json"])


def test_a_full_disk_leaves_nothing_half_written_and_it_goes_on(colours, tmp_path):
    place = tmp_path / "place"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        with pytest.raises(WriteError, match=r"place/[\w-]+/c\.[0.]+: File too large"):
            packed(colours, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not [file for file in place.rglob("*") if "partial" in file.name]
    assert not list(place.rglob("c.*"))
    source, ours = packed(colours, place)
    assert ours.read(0)[0].tobytes() == source.read(0)[0].tobytes()


WORKER = """
import os
import sys
from dataclasses import replace
from pathlib import Path

import tfunet.data.packed_index
from tfunet.data.packing import pack
from tfunet.data.source import open_source
from tfunet.data.stored_case import look_at

tfunet.data.packed_index.SHARD_BYTES = 64 * 64 * 2 * 3
source = open_source("cells", {"num_cases": 40, "size": 64})


def read(index):
    os.write(1, f"{index}\\n".encode())
    return source.read(index)


told = replace(source, read=read, shapes=((64, 64),) * 40)
pack(told, Path(sys.argv[1]), command="")
"""


@pytest.mark.multiprocess
def test_processes_share_the_work_and_one_that_is_killed_is_replaced(tmp_path):
    def start():
        return subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path / "place")],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    first = start()
    for _ in range(8):
        first.stdout.readline()
    first.kill()
    first.wait()
    left = len(list((tmp_path / "place/units").glob("*.npz")))
    assert left < 14
    others = [start() for _ in range(2)]
    read = [other.communicate(timeout=120)[0].split() for other in others]
    assert [other.returncode for other in others] == [0, 0]
    # What is complete is not read again, and no case twice.
    assert sorted(int(case) for cases in read for case in cases) == list(range(3 * left, 40))
    assert not list((tmp_path / "place").rglob(".partial*"))
    source = open_source("cells", {"num_cases": 40, "size": 64})
    ours = open_source("packed", {"root": str(tmp_path / "place")})
    assert all(ours.read(i)[0].tobytes() == source.read(i)[0].tobytes() for i in range(40))


RUN = """
data = "folder"
patch = [32, 32]
validation_share = 0.25
global_batch = 1
epochs = 2
model_options = { filters = 2, levels = 1 }

[data_options]
root = "files"
images = "images/{case}.png"
masks = "masks/{case}.png"
classes = { cell = [1] }
ignore_label = 255
"""


def test_a_run_on_packed_data_is_that_on_the_files(colours, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "run.toml").write_text(RUN)
    command = ["data", "pack", "run.toml", "--out", "place"]
    assert main(command) == exit_codes.OK
    told = capsys.readouterr().out
    assert "files: 4 cases, " in told
    assert 'data = "packed", data_options = { root = "place" }' in told
    assert main(command) == exit_codes.OK
    (tmp_path / "place/cases.npz").unlink()
    config = from_dict({**tomllib.loads(RUN), "data": "packed", "data_options": {"root": "place"}})
    with pytest.raises(ValueError, match=r"Go on: tfunet data pack run\.toml --out place"):
        run(config, SingleDevice(Launch()), tmp_path / "none")
    assert main(command) == exit_codes.OK
    plain = from_dict(tomllib.loads(RUN))
    given = {"plain": plain, "packed": config}
    results = {name: run(given[name], SingleDevice(Launch()), tmp_path / name) for name in given}
    assert results["packed"]["dice"] == results["plain"]["dice"]
    recorded = {name: RunFolder(tmp_path / name).read_data() for name in results}
    assert recorded["packed"] == recorded["plain"]
    capsys.readouterr()
    for words in (
        ["predict", "packed", "files/images/0.png", "--out", "predicted"],
        ["evaluate", "packed", "run.toml", "--out", "of-files", "--training_cases"],
        ["evaluate", "packed", "place.toml", "--out", "of-packed", "--training_cases"],
        ["evaluate", "plain", "place.toml", "--out", "plain-of-packed"],
        ["data", "check", "place.toml"],
    ):
        (tmp_path / "place.toml").write_text('data = "packed"\n[data_options]\nroot = "place"\n')
        assert main(words) == exit_codes.OK, (words, capsys.readouterr().err)
    told = capsys.readouterr().out
    assert "3 cases are left out: the network was trained on them" in told
    assert "no defects" in told
    scores = [(tmp_path / name / "scores.csv").read_text() for name in ("of-files", "of-packed")]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("name", ["numcodecs", "google_crc32c", "zarr"])
def test_a_package_that_is_missing_is_named(name, colours, tmp_path, monkeypatch):
    packed(colours, tmp_path / "place")
    monkeypatch.setitem(sys.modules, name, None)
    line = f"needs {name}: pip install 'tfunet\\[io\\]'"
    with pytest.raises(ValueError, match=line):
        pack(open_source("folder", colours), tmp_path / "other", command="")
    if name != "zarr":
        with pytest.raises(ValueError, match=line):
            open_source("packed", {"root": str(tmp_path / "place")})
