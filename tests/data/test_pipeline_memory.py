"""The memory of a pipeline: bounded, however large the cache and however long the run."""

import ctypes
import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfunet.data.cached_cases import CachedCases
from tfunet.data.case_store import DecodedStore, case_log
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.source import DataSource
from tfunet.data.stored_case import look_at, mask_bits, pack_mask


def large_cases(folder, side, count):
    """Cases of which only the last one is not 0, and its image and mask, in sparse files."""
    last = np.random.default_rng(0).random((side, side), dtype=np.float32)
    labels = (last * 9).astype(np.uint8)
    names = tuple(map(str, range(count)))
    source = DataSource(
        name="large",
        case_ids=names,
        groups=names,
        num_classes=9,
        channels=1,
        regions={"all": (1,)},
        patch=(side, side),
        fingerprint="",
        read=lambda index: (last[..., np.newaxis], labels),
    )
    (home := folder / "large").mkdir()
    log = case_log(source, home)
    packed = pack_mask(labels, mask_bits(source))
    facts, _ = look_at(source, 0)
    ends = (last, packed)
    for case in range(count):
        log.add(
            case,
            replace(facts, foreground=(0,) * 8),
            (),
            (case * last.nbytes, case * packed.nbytes),
        )
    log.publish()
    for name, array in zip(("images.bin", "masks.bin"), ends, strict=True):
        with (home / name).open("wb") as file:
            file.seek((count - 1) * array.nbytes)
            file.write(array.tobytes())
    cases = CachedCases(
        store=DecodedStore(source, home),
        case_ids=names,
        num_classes=9,
        channels=1,
        extents=((side, side),) * count,
        patch=(side, side),
    )
    return cases, last, labels


def test_the_end_of_a_cache_of_8_gib_is_read_without_the_rest(tmp_path):
    cases, last, labels = large_cases(tmp_path, side=1024, count=2100)
    assert os.stat(cases.store.home / "images.bin").st_size == cases.num_voxels * 4 > 2**33
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


def test_pages_of_a_large_cache_are_not_kept(tmp_path):
    cases, last, _ = large_cases(tmp_path, side=1024, count=60)
    # Whole rows are read of the first kind, and narrow windows are mapped.
    for width in (1024, 32):
        before = resident_bytes("RssFile")
        for case in range(60):
            image, _ = cases.read(case, (0, 0), (1024, width))
        np.testing.assert_array_equal(image[..., 0], last[:, :width])
        assert resident_bytes("RssFile") - before < 2**23 < cases.num_voxels * 4


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
