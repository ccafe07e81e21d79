"""Where pixels come from changes nothing: decoded before, decoded meanwhile, or from files."""

import hashlib
import itertools
import multiprocessing
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
import tifffile
from cached_cases import EXTENTS, PATCH, decode, refuse, source_of
from PIL import Image

from tfunet.config.augmentation import read_augmentation
from tfunet.data import cache
from tfunet.data.cache import build_cache, noting_cases
from tfunet.data.cache_eviction import LIMIT_VARIABLE
from tfunet.data.case_store import DecodedStore, FileStore
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.layouts.folder import open_folder
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.read_failure import raise_read_failure
from tfunet.training.trained_on import contents

NUM_CASES = 9
SHAPES = tuple((20 + index, 31 - index) for index in range(NUM_CASES))


@pytest.fixture(scope="module", params=["png", "colour png", "tiff in tiles", "volumes"])
def folder(request, tmp_path_factory):
    """Options of a data set in files of one kind."""
    root = tmp_path_factory.mktemp("set")
    rng = np.random.default_rng(3)
    for index, shape in enumerate(SHAPES):
        shape = (*shape, 12) if request.param == "volumes" else shape
        mask = (rng.random(shape) > 0.6).astype(np.uint8) * rng.integers(1, 3, shape, np.uint8)
        image = root / f"{index}_image"
        if request.param == "png":
            Image.fromarray(rng.integers(0, 255, shape, np.uint8)).save(f"{image}.png")
        elif request.param == "colour png":
            Image.fromarray(rng.integers(0, 255, (*shape, 3), np.uint8)).save(f"{image}.png")
        elif request.param == "tiff in tiles":
            pixels = rng.integers(0, 4000, shape, np.uint16)
            tifffile.imwrite(f"{image}.tif", pixels, tile=(16, 16), compression="zlib")
        else:
            np.save(f"{image}.npy", rng.normal(0, 100, shape).astype(np.float32))
        if "png" in request.param:
            Image.fromarray(mask).save(root / f"{index}_mask.png")
        elif request.param == "volumes":
            np.save(root / f"{index}_mask.npy", mask)
        else:
            tifffile.imwrite(root / f"{index}_mask.tif", mask, tile=(16, 16))
    suffix = {"volumes": "npy", "tiff in tiles": "tif"}.get(request.param, "png")
    patch = [16, 16, 16] if request.param == "volumes" else [16, 24]
    options = {"images": f"{{case}}_image.{suffix}", "masks": f"{{case}}_mask.{suffix}"}
    return {"root": str(root), **options, "classes": {"a": 1, "b": 2}, "patch": patch}


def note_cases(source, home):
    with noting_cases(source, home) as note:
        for case in range(len(source.case_ids)):
            note(case)


def fed_hash(cases, replicas):
    """A hash of all that two epochs and an evaluation are fed, and of a run that goes on."""
    pipeline = TrainingPipeline(
        cases=cases,
        train=(0, 1, 3, 4, 5, 7, 8),
        patches_per_case=4,
        replica_batch=4 // replicas,
        num_replicas=replicas,
        last_step=12,
        foreground_share=0.5,
        augmentation=read_augmentation({"flips": True}),
        seed=2,
    )
    cases.begin(range(NUM_CASES))
    digest = hashlib.blake2b(digest_size=8)
    for part in (pipeline, replace(pipeline, first_step=9)):
        feeds = [part(range(replica, replica + 1)) for replica in range(replicas)]
        for batches in zip(*feeds, strict=True):
            for name in ("sample", "image", "mask"):
                arrays = [batch[name].numpy().reshape(4 // replicas, -1) for batch in batches]
                digest.update(np.concatenate(arrays).tobytes())
    evaluation = EvaluationPipeline(cases=cases, validation=(2, 6), replica_batch=2, halo=1)
    for batch in evaluation(range(1)):
        digest.update(b"".join(batch[name].numpy().tobytes() for name in sorted(batch)))
    return digest.hexdigest()


def test_every_store_gives_the_same_samples_for_any_number_of_replicas(folder, tmp_path):
    source = open_folder(**folder)
    decoded = build_cache(source, tmp_path / "one", patch=source.patch)
    expected = fed_hash(decoded, 1)
    note_cases(source, tmp_path / "three")
    for replicas in (1, 2, 4):
        files = build_cache(source, tmp_path / "two", patch=source.patch, store="files")
        assert isinstance(files.store, FileStore)
        assert fed_hash(files, replicas) == expected
        home = tmp_path / f"sooner-{replicas}"
        shutil.copytree(tmp_path / "three", home)
        sooner = build_cache(source, home, patch=source.patch, whole=False)
        assert isinstance(sooner.store, DecodedStore)
        assert sooner.store.missing() == list(range(NUM_CASES))
        assert fed_hash(sooner, replicas) == expected
        assert fed_hash(decoded, replicas) == expected
    # What is known of the cases is the same, too.
    for case in range(NUM_CASES):
        assert decoded.signs(case) == sooner.signs(case)
        assert files.signs(case) in (None, decoded.signs(case))


def slowly(seconds, log=None):
    """A reader of cases that takes so long, and notes what it reads."""

    def read(index):
        time.sleep(seconds)
        if log is not None:
            log.append(index)
        return decode(index % len(EXTENTS))

    return read


def many(read, num_cases=30, **changes):
    shapes = tuple(EXTENTS[index % len(EXTENTS)] for index in range(num_cases))
    return replace(source_of(read, num_cases=num_cases), **{"shapes": shapes, **changes})


def test_the_first_sample_waits_for_its_own_case_only(tmp_path):
    log = []
    note_cases(many(slowly(0)), tmp_path)
    cases = build_cache(many(slowly(0.05, log)), tmp_path, patch=PATCH, whole=False)
    order = list(reversed(range(30)))
    cases.begin(order)
    image, _ = cases.read(3, (0, 0), PATCH)  # One that nobody expected.
    np.testing.assert_array_equal(image, decode(0)[0][: PATCH[0], : PATCH[1]])
    assert len(log) < 10
    for case in order:
        cases.read(case, (0, 0), PATCH)
    # Each is read once, and in the order in which they are needed, but for the one.
    assert sorted(log) == list(range(30))
    others = [case for case in log if case != 3]
    assert np.abs(np.subtract(others, [case for case in order if case != 3])).max() <= 2
    deadline = time.monotonic() + 20
    while not (cases.store.home / "index.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    again = build_cache(many(refuse), tmp_path, patch=PATCH)
    np.testing.assert_array_equal(again.read(3, (0, 0), PATCH)[0], image)


def follow(folder, wanted):
    cases = build_cache(many(slowly(0.05)), folder, patch=PATCH, whole=False)
    cases.begin(wanted)
    for case in wanted:
        cases.read(case, (0, 0), PATCH)


@pytest.mark.multiprocess
def test_processes_share_what_one_of_them_decodes_and_another_goes_on(tmp_path):
    """The first is over after three cases, and the others need all."""
    note_cases(many(slowly(0)), tmp_path)
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=follow, args=(tmp_path, wanted))
        for wanted in ([0, 1, 2], list(range(30)), list(reversed(range(30))))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    sizes = sum(np.prod(EXTENTS[index % 3]) * 2 * 4 for index in range(30))
    (images,) = tmp_path.glob("*/images.bin")
    assert images.stat().st_size == sizes
    build_cache(many(refuse), tmp_path, patch=PATCH)


def test_what_has_no_room_is_read_from_its_files(tmp_path, monkeypatch):
    source = many(decode_any)
    note_cases(source, tmp_path)
    monkeypatch.setenv(LIMIT_VARIABLE, "0.02MiB")
    cases = build_cache(source, tmp_path, patch=PATCH, whole=False)
    cases.begin(range(30))
    for _, case in itertools.product(range(2), range(30)):
        image, mask = cases.read(case, (0, 0), PATCH)
        expected, labels = decode_any(case)
        np.testing.assert_array_equal(image, expected[: PATCH[0], : PATCH[1]][:, : PATCH[1]])
        np.testing.assert_array_equal(mask, labels[: PATCH[0], : PATCH[1]])
    assert 0 < len(cases.store.missing()) < 30
    assert (cases.store.home / "images.bin").stat().st_size < 0.02 * 2**20


@pytest.mark.parametrize("obstacle", ["lock", "room"])
def test_a_copy_that_cannot_be_written_is_not_waited_for(obstacle, tmp_path, monkeypatch):
    source = many(decode_any, shapes=tuple(decode_any(index)[1].shape for index in range(30)))
    note_cases(source, tmp_path)
    (home,) = tmp_path.iterdir()
    if obstacle == "lock":
        (home / "lock").mkdir()
    else:
        store = DecodedStore(source, home)
        store.write([0, 1, 2])
        monkeypatch.setenv(LIMIT_VARIABLE, "0.0001MiB")
    cases = build_cache(source, tmp_path, patch=PATCH, whole=False)
    cases.begin(range(30))
    image, _ = cases.read(7, (0, 0), PATCH)
    np.testing.assert_array_equal(image, decode_any(7)[0][: PATCH[0], : PATCH[1]])


def decode_any(index):
    extent = EXTENTS[0] if index % 2 else EXTENTS[2]
    image = np.random.default_rng(index).random((*extent, 2), dtype=np.float32)
    return image, (image[..., 0] * 3).astype(np.uint8)


def test_auto_reads_files_where_a_copy_has_no_room(tmp_path, monkeypatch):
    source = many(decode_any, shapes=((6, 9),) * 30)
    assert isinstance(build_cache(source, tmp_path, patch=PATCH, store="auto").store, DecodedStore)
    monkeypatch.setenv(LIMIT_VARIABLE, "0.001MiB")
    assert isinstance(build_cache(source, tmp_path, patch=PATCH, store="auto").store, FileStore)


def test_files_need_the_shapes_of_cases(tmp_path):
    with pytest.raises(ValueError, match="store = 'files' needs the shape of each case"):
        build_cache(source_of(), tmp_path, patch=PATCH, store="files")


def test_memory_that_files_take_is_bounded(tmp_path):
    source = many(slowly(0))
    cases = build_cache(source, tmp_path, patch=PATCH, store="files")
    store = FileStore(source, cases.store.log, kept_bytes=2000)
    for _, case in itertools.product(range(2), range(30)):
        store.box(case, (0, 0), (2, 2))
        assert sum(kept.num_bytes for kept in store._kept.values()) <= 2000


def broken(index):
    if index % 7 == 4:
        raise ValueError(f"case{index}.png: cut off")
    return decode_any(index)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("store", ["files", "decoded"])
def test_a_case_that_is_of_no_use_in_the_middle_of_an_epoch_is_replaced_or_ends_the_run(
    store, share, tmp_path, monkeypatch
):
    monkeypatch.setattr(cache, "WHOLE_BYTES", 0)
    shapes = tuple(decode_any(index)[1].shape for index in range(30))
    source = many(broken, shapes=shapes)

    def fed(num_replicas, folder):
        cases = build_cache(
            source, tmp_path / folder, patch=PATCH, store=store, whole=False, skip_bad=True
        )
        pipeline = TrainingPipeline(
            cases=cases,
            train=tuple(range(20)),
            replica_batch=4 // num_replicas,
            num_replicas=num_replicas,
            last_step=10,
            foreground_share=share,
        )
        feeds = [pipeline(range(replica, replica + 1)) for replica in range(num_replicas)]
        images = [
            np.concatenate([batch["image"].numpy()[0] for batch in batches])
            for batches in zip(*feeds, strict=True)
        ]
        evaluation = EvaluationPipeline(cases=cases, validation=(24, 25), replica_batch=1)
        batches = list(evaluation(range(1)))
        valid = {
            int(case): float(batch["valid"].numpy()[0])
            for batch in batches
            for case in batch["case"].numpy()
        }
        # Case 25 is of no use, and 24 is.
        assert valid == {0: 1.0, 1: 0.0}
        assert set(cases.defects) == {4, 11, 18, 25}
        return images

    one, two = fed(1, "a"), fed(2, "b")
    for ours, theirs in zip(one, two, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert all(image.any() for image in ours)
    strict = build_cache(source, tmp_path / "c", patch=PATCH, store="files", whole=False)
    pipeline = TrainingPipeline(cases=strict, train=tuple(range(20)), replica_batch=4, last_step=5)
    with pytest.raises(tf.errors.OpError) as caught:
        list(pipeline(range(1)))
    assert "cut off" in str(caught.value)
    with pytest.raises(ValueError, match=r"cut off\. Correct .* on_bad_sample = 'skip'"):
        raise_read_failure(caught.value)
    raise_read_failure(ValueError("another"))


def test_the_hash_of_contents_is_known_once_all_cases_are(tmp_path):
    from tfunet.data.split import Split

    source = many(decode_any, shapes=tuple(decode_any(index)[1].shape for index in range(30)))
    split = Split(train=tuple(range(20)), validation=tuple(range(20, 30)))
    files = build_cache(source, tmp_path / "files", patch=PATCH, store="files")
    assert contents(files, split) is None
    for case in range(30):
        files.store.ensure(case)
    decoded = build_cache(source, tmp_path / "decoded", patch=PATCH)
    assert contents(files, split) == contents(decoded, split)


def test_threads_that_want_one_case_read_it_once(tmp_path):
    log = []
    source = many(slowly(0.1, log))
    cases = build_cache(source, tmp_path, patch=PATCH, store="files")
    threads = [threading.Thread(target=cases.read, args=(3, (0, 0), PATCH)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == [3]
