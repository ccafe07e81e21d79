"""The cache of decoded cases: decoded once, whole or not there, and clear when it cannot be."""

import errno
import fcntl
import json
import multiprocessing
import os
import resource
import signal
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cached_cases import EXTENTS, PATCH, decode, refuse, source_of

from tfunet.data.cache import build_cache, cache_folder, default_folder
from tfunet.data.case_signs import SignsReader
from tfunet.data.source import CaseParts


def contents(cases):
    """Each case as the cache holds it."""
    images = np.fromfile(cases.image_path, "<f4")
    masks = np.fromfile(cases.mask_path, np.uint8)
    channels = cases.channels
    for shape, first, stop in zip(cases.shapes, cases.offsets, cases.offsets[1:], strict=False):
        image = images[first * channels : stop * channels].reshape(*shape, channels)
        yield image, masks[first:stop].reshape(shape)


def test_cases_are_stored_bit_for_bit_and_the_smaller_ones_centred_in_zeros(tmp_path):
    cases = build_cache(source_of(), tmp_path, patch=PATCH)
    assert cases.extents == EXTENTS
    assert cases.shapes == ((6, 9), (8, 5), (5, 7))
    assert cases.origins == ((0, 0), (0, 1), (0, 0))
    for index, (image, mask) in enumerate(contents(cases)):
        original, labels = decode(index)
        inside = tuple(
            slice(start, start + size)
            for start, size in zip(cases.origins[index], EXTENTS[index], strict=True)
        )
        np.testing.assert_array_equal(image[inside], original)
        np.testing.assert_array_equal(mask[inside], labels)
        assert np.count_nonzero(image) == np.count_nonzero(original)
        assert np.count_nonzero(mask) == np.count_nonzero(labels)
    paths = (cases.image_path, cases.mask_path, cases.foreground_path)
    assert sum(path.stat().st_size for path in paths) == cases.num_bytes
    places = np.fromfile(cases.foreground_path, "<i8")
    for (_, mask), counts in zip(contents(cases), cases.foreground_counts, strict=True):
        assert counts == ((mask == 1).sum(), (mask == 2).sum())
        ours, places = places[: sum(counts)], places[sum(counts) :]
        np.testing.assert_array_equal(mask.ravel()[ours], [1] * counts[0] + [2] * counts[1])


def in_parts(index):
    """The case in parts of one row and more."""
    image, mask = decode(index)
    cuts = [0, 1, 3, len(mask)]
    parts = ((image[a:b], mask[a:b]) for a, b in pairwise(cuts))
    return CaseParts(shape=mask.shape, parts=parts)


@pytest.mark.parametrize("patch", [PATCH, (9, 5)])
def test_a_case_in_parts_is_stored_as_the_whole(patch, tmp_path):
    whole = build_cache(source_of(), tmp_path / "whole", patch=patch)
    source = replace(source_of(refuse), read_parts=in_parts)
    parts = build_cache(source, tmp_path / "parts", patch=patch)
    assert parts.extents == whole.extents
    assert parts.foreground_counts == whole.foreground_counts
    for name in ("image_path", "mask_path", "foreground_path"):
        assert getattr(parts, name).read_bytes() == getattr(whole, name).read_bytes()


def test_a_second_build_reads_no_case_writes_nothing_and_gives_the_same(tmp_path):
    first = build_cache(source_of(), tmp_path, patch=PATCH)
    lock = first.image_path.with_name("lock")
    lock.unlink()
    assert build_cache(source_of(refuse), tmp_path, patch=PATCH) == first
    # A folder that others share may be read-only.
    assert not lock.exists()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.uint64])
def test_pixels_of_labels_are_counted_in_masks_of_any_integers(dtype):
    mask = np.array([[0, 1, 1], [0, 0, 1]]).astype(dtype)
    reader = SignsReader(mask.shape, 1, num_classes=3)
    reader.add(np.ones((2, 3, 1), np.float32), mask)
    assert reader.signs(()).label_pixels == (3, 3, 0)


def test_another_source_or_patch_has_another_cache(tmp_path):
    changes = ({}, {"fingerprint": "two"}, {"num_classes": 4}, {"case_ids": ("a", "b", "c")})
    built = [build_cache(replace(source_of(), **new), tmp_path, patch=PATCH) for new in changes]
    built.append(build_cache(source_of(), tmp_path, patch=(9, 9)))
    assert len({cases.image_path for cases in built}) == 5
    assert built[-1].shapes == ((9, 9), (9, 9), (9, 9))


def test_a_patch_that_no_memory_holds_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"patch = \[1000000, 1000000\] makes 1000000 x 1000000 pix"
    ):
        build_cache(source_of(), tmp_path, patch=(10**6, 10**6))


@pytest.mark.parametrize(
    "harm",
    [
        lambda cases: cases.image_path.unlink(),
        lambda cases: os.truncate(cases.mask_path, 7),
        lambda cases: cases.foreground_path.write_bytes(b""),
        lambda cases: cases.image_path.with_name("index.json").write_text('{"ext'),
    ],
    ids=["images removed", "masks cut", "foreground empty", "index cut"],
)
def test_a_damaged_cache_is_built_again(harm, tmp_path):
    cases = build_cache(source_of(), tmp_path, patch=PATCH)
    whole = [(image.copy(), mask.copy()) for image, mask in contents(cases)]
    harm(cases)
    again = build_cache(source_of(), tmp_path, patch=PATCH)
    for (image, mask), (old_image, old_mask) in zip(contents(again), whole, strict=True):
        np.testing.assert_array_equal(image, old_image)
        np.testing.assert_array_equal(mask, old_mask)


def test_progress_is_told_after_each_case(tmp_path):
    told = []
    build_cache(source_of(), tmp_path, patch=PATCH, progress=lambda *done: told.append(done))
    assert told == [(1, 3), (2, 3), (3, 3)]


def wrong(change):
    """A reader whose second case is spoilt."""

    def read(index):
        image, mask = decode(index)
        return change(image, mask) if index == 1 else (image, mask)

    return read


def truncated(image, mask):
    raise OSError("image file is truncated")


def unreadable(image, mask):
    raise ValueError("b.png is truncated.")


def dead(image, mask):
    raise RuntimeError("no such sensor")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dead, r"its read raised RuntimeError: no such sensor, in test_cache\.py, line \d+: raise"),
        (lambda image, mask: None, "read must return an image and a mask .*returned NoneType"),
        (lambda image, mask: (image.tolist(), mask), r"returned \['list', 'ndarray'\]"),
        (unreadable, "b.png is truncated"),
        (truncated, "image file is truncated"),
        (lambda image, mask: (image[..., :1], mask), r"shape \(8, 3, 1\); .* 2 channels"),
        (lambda image, mask: (image[None], mask), "expected 2 spatial axes"),
        (lambda image, mask: (image[:0], mask[:0]), r"shape \(0, 3, 2\)"),
        (lambda image, mask: (image, mask[:-1]), r"mask has shape \(7, 3\), its image \(8, 3\)"),
        (lambda image, mask: (image * np.float32(np.nan), mask), "NaN or infinite"),
        (lambda image, mask: (image, mask + 2), "labels 2..4; allowed: 0..2"),
        (lambda image, mask: (image, mask.astype(int) - 1), "labels -1..1; allowed: 0..2"),
        (lambda image, mask: (image, mask / 1.0), "type float64; labels must be integers"),
    ],
)
def test_a_case_that_cannot_be_used_is_named_with_its_defect(change, message, tmp_path):
    with pytest.raises(ValueError, match=rf"1 of 3 cases .*\n  case1: .*{message}"):
        build_cache(source_of(wrong(change)), tmp_path, patch=PATCH)
    assert {path.name for path in tmp_path.glob("*/*")} == {"in_use", "lock", "CACHEDIR.TAG"}


def test_bad_cases_may_be_skipped_and_are_remembered(tmp_path):
    def read(index):
        if index == 1:
            raise ValueError("b.png: cut off")
        return decode(index)

    first = build_cache(source_of(read), tmp_path, patch=PATCH, skip_bad=True)
    again = build_cache(source_of(refuse), tmp_path, patch=PATCH, skip_bad=True)
    for cases in (first, again):
        assert cases.defects == {1: "b.png: cut off"}
        for index, (image, _) in enumerate(contents(cases)):
            assert image.any() == (index != 1)
        assert cases.extents == (EXTENTS[0], (0, 0), EXTENTS[2])
    # Who does not skip them must not train with what a run that does has left there.
    with pytest.raises(ValueError, match=r"case1: b\.png: cut off"):
        build_cache(source_of(read), tmp_path, patch=PATCH)
    assert build_cache(source_of(), tmp_path, patch=PATCH).defects == {}


def test_all_defects_are_found_in_one_go_and_equal_ones_are_one_line(tmp_path):
    def read(index):
        raise ValueError(f"no pixels in file {index}.")

    with pytest.raises(ValueError, match="23 of 23 cases") as caught:
        build_cache(source_of(read, num_cases=23), tmp_path, patch=PATCH)
    assert str(caught.value).splitlines()[1:] == [
        "  case0: no pixels in file 0. (22 more like it: case1, case2, case3, ...)"
    ]


def test_twenty_causes_are_listed(tmp_path):
    def read(index):
        raise ValueError(f"is {'very ' * index}wrong.")

    with pytest.raises(ValueError, match="23 of 23 cases") as caught:
        build_cache(source_of(read, num_cases=23), tmp_path, patch=PATCH)
    lines = str(caught.value).splitlines()
    assert lines[1] == "  case0: is wrong."
    assert len(lines) == 22
    assert lines[21:] == ["  and 3 more"]


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"--cache_dir or \$TFUNET_CACHE") as caught:
        build_cache(source_of(), tmp_path / "file" / "cache", patch=PATCH)
    assert str(tmp_path / "file" / "cache") in str(caught.value)
    assert caught.value.errno == errno.ENOTDIR


def test_a_disk_without_room_leaves_nothing_half_written(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Writing past the limit fails in the middle of a file, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(OSError, match="free some space there") as caught:
            build_cache(source_of(), tmp_path, patch=PATCH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert {path.name for path in tmp_path.glob("*/*")} == {"in_use", "lock", "CACHEDIR.TAG"}


def test_a_file_system_without_locks_still_caches(tmp_path, monkeypatch):
    def refuse_lock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    cases = build_cache(source_of(), tmp_path, patch=PATCH)
    # Where nobody is kept out, another's unfinished files are not to be touched.
    theirs = cases.image_path.with_name("images.bin.theirs.tmp")
    theirs.touch()
    cases.mask_path.unlink()
    assert build_cache(source_of(), tmp_path, patch=PATCH) == cases
    assert theirs.exists()


class LoggedRead:
    """Notes each case that is decoded, slowly enough for others to arrive meanwhile."""

    def __init__(self, log, fatal=None):
        self.log = log
        self.fatal = fatal

    def __call__(self, index):
        if index == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as file:
            file.write(json.dumps([os.getpid(), index]) + "\n")
        time.sleep(0.2)
        return decode(index)


def build_in_process(folder, log, fatal=None):
    build_cache(source_of(LoggedRead(log, fatal)), folder, patch=PATCH)


def started(count, *arguments):
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=build_in_process, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    return [process.exitcode for process in processes]


@pytest.mark.multiprocess
def test_of_several_processes_one_decodes_and_all_find_the_cases(tmp_path):
    log = tmp_path / "log"
    assert started(3, tmp_path / "cache", log) == [0, 0, 0]
    decoded = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(index for _, index in decoded) == [0, 1, 2]
    assert len({process for process, _ in decoded}) == 1


def test_who_waits_for_another_that_decodes_says_that_it_lives(tmp_path):
    home = build_cache(source_of(), tmp_path, patch=PATCH).image_path.parent
    (home / "index.json").unlink()
    calls = []
    with (home / "lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def alive():
            calls.append(None)
            if len(calls) == 3:
                fcntl.flock(other, fcntl.LOCK_UN)

        build_cache(source_of(), tmp_path, patch=PATCH, alive=alive)
    # Three while it waited, then one for each case.
    assert len(calls) == 6


@pytest.mark.multiprocess
def test_after_a_killed_builder_the_next_one_starts_anew_and_sweeps_up(tmp_path):
    assert started(1, tmp_path / "cache", tmp_path / "log", 2) == [-signal.SIGKILL]
    left = {path.suffix for path in (tmp_path / "cache").glob("*/*")}
    assert ".tmp" in left
    cases = build_cache(source_of(), tmp_path / "cache", patch=PATCH)
    assert len(list(contents(cases))) == 3
    names = {path.name for path in cases.image_path.parent.iterdir()}
    files = {"images.bin", "masks.bin", "foreground.bin", "index.json"}
    assert names == {*files, "in_use", "lock", "CACHEDIR.TAG"}


WRONG = [
    *("", "null", "[]", "7", "{}", '{"extents": null}', "[" * 100_000, "\ud800", "\x00"),
    *({"extents": None}, {"extents": [[6, 9]]}, {"extents": [["6", 9], [8, 5], [5, 7]]}),
    *({"extents": [[6, 9], [8], [5, 7]]}, {"extents": [[-6, -9], [8, 5], [5, 7]]}),
    *({"foreground": [1, 2]}, {"foreground": [[1], [2], []]}, {"foreground": [[0.5, 1]] * 3}),
    *({"defects": None}, {"defects": []}, {"defects": {"x": "gone"}}, {"defects": {"9": "gone"}}),
    *({"defects": {"0": 5}}, {"extents": [[2**70, 9], [8, 5], [5, 7]]}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
def test_an_index_with_a_wrong_value_is_decoded_anew(wrong, tmp_path):
    cases = build_cache(source_of(), tmp_path, patch=PATCH)
    index = cases.image_path.with_name("index.json")
    right = json.loads(index.read_text())
    text = wrong if isinstance(wrong, str) else json.dumps({**right, **wrong})
    index.write_bytes(text.encode("utf-8", "surrogatepass"))
    again = build_cache(source_of(), tmp_path, patch=PATCH, skip_bad=True)
    assert json.loads(index.read_text()) == right
    assert again.extents == EXTENTS


def test_a_folder_may_be_named_by_a_variable_or_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("TFUNET_CACHE", "/somewhere/else")
    assert default_folder() == Path("/somewhere/else")
    monkeypatch.delenv("TFUNET_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache/tfunet"
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert cache_folder("~/c") == tmp_path / "c"
    assert cache_folder("$SCRATCH/c") == cache_folder("${SCRATCH}/c") == Path("/scratch/me/c")
    assert cache_folder("c") == Path("c")
    assert cache_folder(None) == default_folder()
    monkeypatch.delenv("SCRATCH")
    with pytest.raises(ValueError, match="environment variable that is not set"):
        cache_folder("$SCRATCH/c")
