"""The memory of a pipeline: bounded, however large the cache and however long the run."""

import ctypes
import os
import resource
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfunet.data import memory_map
from tfunet.data.cached_cases import CachedCases
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.pipeline import TrainingPipeline


def large_cases(folder, side, count):
    """Cases of which only the last one is not 0, and its image and mask, in sparse files."""
    images, masks = folder / "images.bin", folder / "masks.bin"
    last = np.random.default_rng(0).random((side, side), dtype=np.float32)
    labels = (last * 9).astype(np.uint8)
    for path, array in ((images, last), (masks, labels)):
        with path.open("wb") as file:
            file.seek((count - 1) * array.nbytes)
            file.write(array.tobytes())
    cases = CachedCases(
        image_path=images,
        mask_path=masks,
        case_ids=tuple(map(str, range(count))),
        num_classes=9,
        channels=1,
        extents=((side, side),) * count,
        patch=(side, side),
        foreground_path=folder / "foreground.bin",
        foreground_counts=((0,) * 8,) * count,
    )
    return cases, last, labels


def test_the_end_of_a_cache_of_8_gib_is_read_without_the_rest(tmp_path):
    cases, last, labels = large_cases(tmp_path, side=1024, count=2100)
    assert os.stat(cases.image_path).st_size == cases.num_voxels * 4 > 2**33
    resident = peak_resident_bytes()
    pipeline = EvaluationPipeline(cases=cases, validation=(2099,), replica_batch=1)
    (batch,) = pipeline(range(1)).as_numpy_iterator()
    assert peak_resident_bytes() - resident < 2**30
    np.testing.assert_array_equal(batch["image"][0, ..., 0], last)
    np.testing.assert_array_equal(batch["mask"][0], labels)


def test_memory_is_bounded_however_many_steps_are_fed(tmp_path):
    cases, _, _ = large_cases(tmp_path, side=1024, count=40)
    pipeline = TrainingPipeline(cases=cases, train=tuple(range(40)), replica_batch=4, last_step=240)
    assert pipeline.buffered_bytes >= 16 * 1024 * 1024 * 5
    all_bytes = 240 * 4 * 1024 * 1024 * 5

    def most(steps):
        feed = replace(pipeline, last_step=steps)(range(1))
        return max(allocated_bytes() for _ in feed)

    def is_bounded():
        few = most(48)
        before, many = allocated_bytes(), most(240)
        # Twice: what a sample is made of. Five times the steps take no more.
        return many - before < 2 * pipeline.buffered_bytes and many - few < pipeline.buffered_bytes

    assert 2 * pipeline.buffered_bytes < all_bytes
    # Pools that libraries keep grow by a leap now and then; what a pipeline kept for each step
    # would show every time.
    assert any(is_bounded() for _ in range(4))


def test_pages_of_a_large_cache_are_given_back_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_map, "RESIDENT_BYTES", 2**26)
    cases, last, _ = large_cases(tmp_path, side=1024, count=60)
    pipeline = EvaluationPipeline(cases=cases, validation=tuple(range(60)), replica_batch=1)
    before, read = resident_bytes("RssFile"), []
    for batch in pipeline(range(1)).as_numpy_iterator():
        read.append(batch["image"][0, ..., 0])
    deadline = time.monotonic() + 60
    while resident_bytes("RssFile") - before > 2**27 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert resident_bytes("RssFile") - before <= 2**27 < cases.num_voxels * 4
    np.testing.assert_array_equal(read[-1], last)
    (again,) = replace(pipeline, validation=(59,))(range(1)).as_numpy_iterator()
    np.testing.assert_array_equal(again["image"][0, ..., 0], last)


class Malloc(ctypes.Structure):
    """What mallinfo2(3) of the C library returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_bytes():
    """Memory that this process has asked for and not given back.

    Not what it occupies: of that, the allocator keeps as much for later as the threads happen to
    have held at once in the test before.
    """
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Malloc
    found = mallinfo()
    return found.uordblks + found.hblkhd


def resident_bytes(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(kind))
    return int(line.split()[1]) * 1024


def peak_resident_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
