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

import numpy as np
import pytest
from cached_cases import EXTENTS, PATCH, decode, refuse, source_of

from tfunet.data.cache import build_cache
from tfunet.data.case_signs import SignsReader
from tfunet.data.preprocess import check_intensity, normalise, statistics_for
from tfunet.data.source import StoredCase
from tfunet.data.stored_case import KeptCase, mask_bits, pack_mask


def contents(cases):
    """Each padded case as the store gives it."""
    for case in range(len(cases.case_ids)):
        yield np.asarray(cases.image(case, padded=True)), np.asarray(cases.mask(case, padded=True))


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
        assert cases.foreground_counts(index) == ((labels == 1).sum(), (labels == 2).sum())
        flat = labels.ravel()
        for label, count in enumerate(cases.foreground_counts(index)):
            places = [cases.store.log.places(index, label, number) for number in range(count)]
            np.testing.assert_array_equal(places, np.flatnonzero(flat == label + 1))


@pytest.mark.parametrize("num_classes", [2, 4, 16, 200])
def test_labels_take_few_bits_and_boxes_of_them_begin_anywhere(num_classes):
    rng = np.random.default_rng(0)
    mask = rng.integers(0, num_classes, (5, 13)).astype(np.uint8)
    bits = {2: 1, 4: 2, 16: 4, 200: 8}[num_classes]
    source = replace(source_of(), num_classes=num_classes, regions={"cell": (1,)})
    assert mask_bits(source) == bits
    packed = pack_mask(mask, bits)
    assert packed.shape == (5, -(-13 * bits // 8))
    image = rng.random((5, 13, 2)).astype(np.float32)
    kept = KeptCase(image=image, mask=packed, bits=bits, intensity="none", statistics=None)
    for first in range(13):
        for last in range(first + 1, 14):
            np.testing.assert_array_equal(kept.box((1, first), (4, last))[1], mask[1:4, first:last])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "float32"])
@pytest.mark.parametrize("intensity", ["zscore", (3.0, 90.0), {"clip": (5.0, 90.0)}, "none"])
def test_images_keep_the_files_type_and_give_the_same_pixels(dtype, intensity, tmp_path):
    rng = np.random.default_rng(1)
    scale = 1.5 if dtype == "float32" else 1
    low = 0 if dtype.startswith("u") else -100
    images = [(rng.integers(low, 127, (*extent, 2)) * scale).astype(dtype) for extent in EXTENTS]
    if dtype.endswith("16"):
        images = [image * 200 for image in images]
    intensity = check_intensity(intensity)

    def read(index):
        return normalise(images[index].astype(np.float32), intensity), decode(index)[1]

    def stored(index):
        image = images[index].astype(np.float32)
        statistics = statistics_for(intensity, [image])
        parts = [(image, decode(index)[1])]
        return StoredCase(shape=image.shape[:-1], parts=parts, statistics=statistics)

    source = replace(source_of(read), stored=stored, intensity=intensity)
    cases = build_cache(source, tmp_path, patch=PATCH)
    for index, facts in enumerate(cases.store.log.facts):
        np.testing.assert_array_equal(cases.image(index), read(index)[0])
        narrow = {"int8": "int8", "int32": "int8"}.get(dtype, dtype)
        assert np.dtype(facts.dtype) == narrow
    sizes = sum(image.size for image in images) * np.dtype(narrow).itemsize
    assert (cases.store.home / "images.bin").stat().st_size == sizes


def in_parts(index):
    """The case in parts of one row and more."""
    image, mask = decode(index)
    cuts = [0, 1, 3, len(mask)]
    parts = ((image[a:b], mask[a:b]) for a, b in pairwise(cuts))
    return StoredCase(shape=mask.shape, parts=parts)


@pytest.mark.parametrize("patch", [PATCH, (9, 5)])
def test_a_case_in_parts_is_stored_as_the_whole(patch, tmp_path):
    whole = build_cache(source_of(), tmp_path / "whole", patch=patch)
    source = replace(source_of(refuse), stored=in_parts)
    parts = build_cache(source, tmp_path / "parts", patch=patch)
    assert parts.extents == whole.extents
    for index, (one, other) in enumerate(zip(contents(whole), contents(parts), strict=True)):
        assert parts.foreground_counts(index) == whole.foreground_counts(index)
        assert parts.signs(index) == whole.signs(index)
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_a_large_case_whose_later_parts_need_another_type_gets_it(tmp_path):
    image = np.arange(6 * 9 * 2, dtype=np.float32).reshape(6, 9, 2)
    image[5, 8, 1] = 0.5
    mask = decode(0)[1]

    def stored(index):
        parts = ((image[a:b], mask[a:b]) for a, b in ((0, 3), (3, 6)))
        return StoredCase(shape=(6, 9), parts=parts, dtype="|u1")

    source = replace(source_of(refuse, num_cases=1), stored=stored)
    cases = build_cache(source, tmp_path, patch=PATCH)
    np.testing.assert_array_equal(cases.image(0), image)
    assert cases.store.log.facts[0].dtype == "<f4"


def test_a_second_build_reads_no_case_writes_nothing_and_gives_the_same(tmp_path):
    first = build_cache(source_of(), tmp_path, patch=PATCH)
    lock = first.store.home / "lock"
    lock.unlink()
    again = build_cache(source_of(refuse), tmp_path, patch=PATCH)
    for (image, mask), (old_image, old_mask) in zip(contents(again), contents(first), strict=True):
        np.testing.assert_array_equal(image, old_image)
        np.testing.assert_array_equal(mask, old_mask)
    # A folder that others share may be read-only.
    assert not lock.exists()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.uint64])
def test_pixels_of_labels_are_counted_in_masks_of_any_integers(dtype):
    mask = np.array([[0, 1, 1], [0, 0, 1]]).astype(dtype)
    reader = SignsReader(mask.shape, 1, num_classes=3)
    reader.add(np.ones((2, 3, 1), np.float32), mask)
    assert reader.signs(()).label_pixels == (3, 3, 0)


def test_another_source_has_another_cache_and_another_patch_the_same(tmp_path):
    changes = ({}, {"fingerprint": "two"}, {"num_classes": 4}, {"case_ids": ("a", "b", "c")})
    built = [build_cache(replace(source_of(), **new), tmp_path, patch=PATCH) for new in changes]
    built.append(build_cache(source_of(refuse), tmp_path, patch=(9, 9)))
    assert len({cases.store.home for cases in built}) == 4
    assert built[-1].shapes == ((9, 9), (9, 9), (9, 9))


def test_a_patch_that_no_memory_holds_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"patch = \[1000000, 1000000\] makes 1000000 x 1000000 pix"
    ):
        build_cache(source_of(), tmp_path, patch=(10**6, 10**6))


@pytest.mark.parametrize(
    "harm",
    [
        lambda home: (home / "images.bin").unlink(),
        lambda home: os.truncate(home / "masks.bin", 7),
        lambda home: (home / "foreground.bin").write_bytes(b""),
        lambda home: os.truncate(home / "cases.jsonl", 700),
        lambda home: (home / "cases.jsonl").unlink(),
    ],
    ids=["images removed", "masks cut", "foreground empty", "log cut", "log removed"],
)
def test_a_damaged_cache_is_built_again(harm, tmp_path):
    cases = build_cache(source_of(), tmp_path, patch=PATCH)
    whole = [(image.copy(), mask.copy()) for image, mask in contents(cases)]
    harm(cases.store.home)
    again = build_cache(source_of(), tmp_path, patch=PATCH)
    for (image, mask), (old_image, old_mask) in zip(contents(again), whole, strict=True):
        np.testing.assert_array_equal(image, old_image)
        np.testing.assert_array_equal(mask, old_mask)


def test_progress_is_told_after_each_case(tmp_path):
    told = []
    build_cache(source_of(), tmp_path, patch=PATCH, progress=lambda *done: told.append(done))
    assert told[-1] == (3, 3)
    assert told == sorted(set(told))


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
    assert not list(tmp_path.glob("*/index.json"))
    cases = build_cache(source_of(), tmp_path, patch=PATCH)
    for index, (image, _) in enumerate(contents(cases)):
        assert np.count_nonzero(image) == np.count_nonzero(decode(index)[0])


def test_a_file_system_without_locks_still_caches(tmp_path, monkeypatch):
    def refuse_lock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    cases = build_cache(source_of(), tmp_path, patch=PATCH)
    assert (len(list(contents(cases)))) == 3
    # Nobody is kept out, so that each process decodes for itself.
    (cases.store.home / "masks.bin").unlink()
    again = build_cache(source_of(), tmp_path, patch=PATCH)
    assert again.store.home != cases.store.home


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
    home = build_cache(source_of(), tmp_path, patch=PATCH).store.home
    (home / "cases.jsonl").unlink()
    calls = []
    with (home / "lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def alive():
            calls.append(None)
            if len(calls) == 3:
                fcntl.flock(other, fcntl.LOCK_UN)

        build_cache(source_of(), tmp_path, patch=PATCH, alive=alive)
    # Three while it waited, and some while it decoded.
    assert len(calls) > 3


@pytest.mark.multiprocess
def test_after_a_killed_builder_the_next_one_finishes_what_is_left(tmp_path):
    assert started(1, tmp_path / "cache", tmp_path / "log", 2) == [-signal.SIGKILL]
    cases = build_cache(source_of(), tmp_path / "cache", patch=PATCH)
    for index, (image, _) in enumerate(contents(cases)):
        assert np.count_nonzero(image) == np.count_nonzero(decode(index)[0])
    names = {path.name for path in cases.store.home.iterdir()}
    files = {"images.bin", "masks.bin", "foreground.bin", "cases.jsonl", "index.json"}
    assert names == {*files, "in_use", "lock", "CACHEDIR.TAG"}


WRONG = [
    *("", "null", "[]", "7", "{}", '{"extent": null}', "[" * 100_000, "\ud800", "\x00"),
    *({"extent": None}, {"extent": [6]}, {"extent": ["6", 9]}, {"extent": [-6, -9]}),
    *({"foreground": [1]}, {"foreground": [0.5, 1]}, {"foreground": [-1, 1]}, {"case": 9}),
    *({"case": -1}, {"defect": 5}, {"dtype": "<c16"}, {"dtype": "O"}, {"pixels": [1]}),
    *({"pixels": [0, -8]}, {"pixels": [2**70, 0]}, {"pixels": [2**40, 0]}, {"places": 2**40}),
    *({"extent": [2**40, 2**40]}, {"statistics": [[]]}, {"signs": None}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
def test_a_case_with_a_wrong_line_in_the_log_is_decoded_anew(wrong, tmp_path):
    log = build_cache(source_of(), tmp_path, patch=PATCH).store.home / "cases.jsonl"
    lines = [line for line in log.read_text().splitlines() if line]
    right = json.loads(lines[1])
    text = wrong if isinstance(wrong, str) else json.dumps({**right, **wrong})
    log.write_bytes("\n".join([lines[0], text, lines[2], ""]).encode("utf-8", "surrogatepass"))
    again = build_cache(source_of(), tmp_path, patch=PATCH, skip_bad=True)
    assert again.extents == EXTENTS
    for index, (image, _) in enumerate(contents(again)):
        assert np.count_nonzero(image) == np.count_nonzero(decode(index)[0])
