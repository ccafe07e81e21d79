"""Batches: the same samples and pixels for any number of replicas, each voxel evaluated once."""

import hashlib
import multiprocessing
import os
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tfunet.config.augmentation import KINDS, Augmentation, read_augmentation
from tfunet.data.cache import build_cache
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.source import DataSource

NUM_LABELS = 251
# A smaller counterexample is not worth the minutes in which each try builds its graphs anew.
FEW = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
PLANE = (6, 5)
BLOCK = (4, 5, 3)
PLAIN = Augmentation(flips=False)


def labels_at(coordinates):
    """The label that belongs to coordinates (..., case and voxel), counted from 1."""
    weights = np.array([31, 7, 13, 89])[: coordinates.shape[-1]]
    labels = 1 + (coordinates * weights).sum(axis=-1) % (NUM_LABELS - 1)
    return np.where(coordinates[..., 0] > 0, labels, 0)


def decode(index, rank):
    """A case whose pixels say where they are; sizes differ, some smaller than the patch."""
    extent = [(9, 5), (6, 11), (4, 8), (8, 7)][index % 4] + (3 + index % 3,) * (rank - 2)
    axes = np.meshgrid(*(np.arange(1, size + 1) for size in extent), indexing="ij")
    coordinates = np.stack([np.full(extent, index + 1), *axes], axis=-1)
    return coordinates.astype(np.float32), labels_at(coordinates).astype(np.uint8)


def build(folder, patch, num_cases):
    """Cases whose pixels are (case, voxel), and masks a function of these."""
    names = tuple(f"case{index}" for index in range(num_cases))
    source = DataSource(
        name="coordinates",
        case_ids=names,
        groups=names,
        num_classes=NUM_LABELS,
        channels=1 + len(patch),
        regions={"all": (1,)},
        patch=patch,
        fingerprint="",
        read=lambda index: decode(index, len(patch)),
    )
    return build_cache(source, folder, patch=patch)


@pytest.fixture(scope="session")
def cached(tmp_path_factory):
    """Cases by rank."""
    folder = tmp_path_factory.mktemp("cache")
    return {2: build(folder, PLANE, 14), 3: build(folder, BLOCK, 7)}


def training(cases, **changed):
    default = {"train": tuple(range(len(cases.case_ids))), "replica_batch": 2, "last_step": 3}
    return TrainingPipeline(cases=cases, **{**default, **changed})


def fed(pipeline, *processes):
    """Each step's batches in the order of the replicas, as processes with these feed them."""
    processes = processes or (range(pipeline.num_replicas),)
    streams = [pipeline(replicas).as_numpy_iterator() for replicas in processes]
    steps = []
    for first in streams[0]:
        batches = [first, *(next(streams[0]) for _ in processes[0][1:])]
        for stream, share in zip(streams[1:], processes[1:], strict=True):
            batches += [next(stream) for _ in share]
        steps.append(batches)
    assert all(next(stream, None) is None for stream in streams)
    return steps


def joined(steps, key):
    """One array a step, of all replicas, without the axis of passes."""
    return [
        np.concatenate([batch[key].reshape(-1, *batch[key].shape[tail(key) :]) for batch in step])
        for step in steps
    ]


def tail(key):
    return 1 if key in ("sample", "epoch") else 2


def shares(num_replicas, border):
    """The replicas of one process, or of two where the border lies among them."""
    first = min(border, num_replicas)
    return [share for share in (range(first), range(first, num_replicas)) if share]


@st.composite
def runs(draw):
    """A run, cut into replicas and processes, and the same on one replica."""
    num_replicas = draw(st.integers(1, 9))
    replica_batch = draw(st.integers(1, max(14 // num_replicas, 1)))
    border = draw(st.integers(0, 9))
    patches_per_case = draw(st.integers(1, 3))
    num_train = draw(st.integers(-(-replica_batch * num_replicas // patches_per_case), 14))
    train = draw(st.permutations(range(14)))[:num_train]
    first_step = draw(st.integers(0, 6))
    whole = {
        "train": tuple(train),
        "patches_per_case": patches_per_case,
        "replica_batch": replica_batch * num_replicas,
        "seed": draw(st.integers(0, 2**40)),
        "first_step": first_step,
        "last_step": first_step + draw(st.integers(1, 6)),
    }
    cut = {**whole, "replica_batch": replica_batch, "num_replicas": num_replicas}
    return whole, cut, shares(num_replicas, border)


@st.composite
def orders(draw):
    """A pipeline whose samples alone are looked at, and the replicas of one to three processes."""
    num_cases, patches_per_case = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    num_replicas = draw(st.integers(1, min(9, num_cases * patches_per_case)))
    replica_batch = draw(st.integers(1, num_cases * patches_per_case // num_replicas))
    borders = sorted(draw(st.tuples(st.integers(0, num_replicas), st.integers(0, num_replicas))))
    edges = [0, *borders, num_replicas]
    processes = [range(*pair) for pair in pairwise(edges) if pair[0] < pair[1]]
    return {
        "train": tuple(draw(st.permutations(range(14)))[:num_cases]),
        "patches_per_case": patches_per_case,
        "replica_batch": replica_batch,
        "num_replicas": num_replicas,
        "seed": draw(st.integers(0, 2**40)),
    }, processes


def sample_steps(pipeline, processes):
    """Each step's (epoch, sample) of all replicas, as these processes are fed."""
    num_steps = pipeline.last_step - pipeline.first_step
    parts = []
    for replicas in processes:
        fed = len(replicas) * pipeline.replica_batch
        (pairs,) = pipeline.samples(replicas).batch(num_steps * fed).as_numpy_iterator()
        parts.append(np.stack(pairs, axis=-1).reshape(num_steps, fed, 2))
    return np.concatenate(parts, axis=1)


@settings(FEW, max_examples=30)
@given(order=orders(), first_epoch=st.integers(0, 2**20), first_step=st.integers(0, 40))
def test_the_order_keeps_its_promises(cached, order, first_epoch, first_step):
    run, processes = order
    pipeline = training(cached[2], **run)
    num_epochs, steps = 8, pipeline.steps_per_epoch
    begin = first_epoch * steps
    pipeline = replace(pipeline, first_step=begin, last_step=begin + num_epochs * steps)
    global_batch = run["replica_batch"] * run["num_replicas"]
    alone = replace(pipeline, replica_batch=global_batch, num_replicas=1)
    taken = sample_steps(alone, [range(1)])
    # A step's samples do not depend on the number of replicas, nor on that of processes.
    np.testing.assert_array_equal(taken, sample_steps(pipeline, processes))
    # Resumed at any step, the rest follows.
    first_step %= num_epochs * steps
    resumed = replace(alone, first_step=begin + first_step)
    np.testing.assert_array_equal(taken[first_step:], sample_steps(resumed, [range(1)]))
    # Each sample at most once an epoch; what is dropped changes.
    dropped = set()
    for number, epoch in enumerate(taken.reshape(num_epochs, -1, 2)):
        assert (epoch[:, 0] == first_epoch + number).all()
        assert len(set(epoch[:, 1])) == len(epoch) == steps * global_batch
        dropped.add(frozenset(range(pipeline.num_samples)) - set(epoch[:, 1]))
    tail = pipeline.num_samples - steps * global_batch
    assert {len(names) for names in dropped} == {tail}
    # Eight times the same by chance: less often than one in 10^6.
    assert len(dropped) > 1 or tail == 0 or pipeline.num_samples < 8


@settings(FEW, max_examples=8)
@given(run=runs())
def test_a_step_holds_the_same_pixels_for_any_number_of_replicas_and_processes(cached, run):
    whole, cut, processes = run
    alone = fed(training(cached[2], **whole))
    together = fed(training(cached[2], **cut), *processes)
    assert len(alone) == whole["last_step"] - whole["first_step"]
    for key in ("sample", "image", "mask"):
        for one, many in zip(joined(alone, key), joined(together, key), strict=True):
            np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("rank", [2, 3])
def test_augmentation_is_the_same_for_any_number_of_replicas_and_after_a_resume(cached, rank):
    table = dict.fromkeys(KINDS, True) | {"rotation": {"probability": 0.5}}
    run = {"augmentation": read_augmentation(table), "last_step": 3}
    alone = fed(training(cached[rank], replica_batch=4, **run))
    together = fed(
        training(cached[rank], replica_batch=1, num_replicas=4, **run), range(1), range(1, 4)
    )
    resumed = fed(training(cached[rank], replica_batch=2, num_replicas=2, first_step=2, **run))
    for key in ("image", "mask"):
        np.testing.assert_array_equal(joined(alone, key), joined(together, key))
        np.testing.assert_array_equal(joined(alone, key)[2:], joined(resumed, key))
    plain = fed(training(cached[rank], replica_batch=4, last_step=3, augmentation=PLAIN))
    assert (np.asarray(joined(plain, "image")) != joined(alone, "image")).any()


@pytest.mark.parametrize("rank", [2, 3])
def test_augmented_on_the_device_samples_have_the_pixels_of_the_pipeline(cached, rank):
    table = dict.fromkeys(KINDS, True) | {"rotation": {"probability": 0.5}}
    run = {"augmentation": read_augmentation(table), "replica_batch": 4, "accumulation": 2}
    pipeline = training(cached[rank], **run, augmented_by="device")
    step = tf.function(pipeline.augmented)
    before = list(pipeline(range(1)))
    after = [[tf.nest.map_structure(lambda one: one.numpy(), step(batch))] for batch in before]
    expected = fed(training(cached[rank], **run))
    for key, rtol in (("image", 1e-6), ("mask", 0)):
        # TensorFlow simplifies the two graphs differently: some numbers are rounded once more.
        np.testing.assert_allclose(joined(after, key), joined(expected, key), rtol=rtol, atol=rtol)
        assert after[0][0][key].shape == before[0][key].shape
        raw = [batch[key].numpy() for batch in before]
        assert any((one[0][key] != two).any() for one, two in zip(after, raw, strict=True))


GLOBAL_BATCH = 6
STOPPED_AT = 3


def feed_in_process(share, folder):
    """Write what this process is fed for each (number of processes, its rank, spans of steps)."""
    cases = build(folder / "cache", PLANE, 14)
    for world, rank, spans in share:
        if world > 1:  # Fewer threads, another timing.
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
        pipeline = training(
            cases,
            replica_batch=GLOBAL_BATCH // world,
            num_replicas=world,
            augmentation=read_augmentation({"rotation": True, "elastic": True, "noise": True}),
            seed=7,
        )
        arrays = {}
        for first, last in spans:
            part = replace(pipeline, first_step=first, last_step=last)
            for step, batch in zip(
                range(first, last), part(range(rank, rank + 1)).as_numpy_iterator(), strict=True
            ):
                for key in ("sample", "image", "mask"):
                    arrays[f"{first}-{step}-{key}"] = batch[key].reshape(
                        -1, *batch[key].shape[tail(key) :]
                    )
        np.savez(folder / f"{world}-{rank}.npz", **arrays)


def step_hashes(folder, world, first, last):
    """One hash of ids and pixels for each step, the processes' parts in their order."""
    parts = [np.load(folder / f"{world}-{rank}.npz") for rank in range(world)]
    hashes = []
    for step in range(first, last):
        digest = hashlib.blake2b(digest_size=8)
        for key in ("sample", "image", "mask"):
            digest.update(
                np.concatenate([part[f"{first}-{step}-{key}"] for part in parts]).tobytes()
            )
        hashes.append(digest.hexdigest())
    return hashes


@pytest.mark.multiprocess
def test_one_two_and_three_processes_see_the_same_also_when_stopped_on_two_and_resumed_on_three(
    tmp_path,
):
    num_steps = 6
    spans = {1: [(0, num_steps)], 2: [(0, STOPPED_AT)], 3: [(STOPPED_AT, num_steps)]}
    spans[3].append((0, num_steps))
    spawn = multiprocessing.get_context("spawn")
    # Ranks of one run are in different processes, each of which takes seconds to start.
    shares = [[(1, 0)], [(2, 0), (3, 2)], [(2, 1), (3, 0)], [(3, 1)]]
    processes = [
        spawn.Process(
            target=feed_in_process,
            args=([(world, rank, spans[world]) for world, rank in share], tmp_path),
        )
        for share in shares
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    whole = step_hashes(tmp_path, 1, 0, num_steps)
    assert len(set(whole)) == num_steps
    assert step_hashes(tmp_path, 3, 0, num_steps) == whole
    stopped = step_hashes(tmp_path, 2, 0, STOPPED_AT)
    assert stopped + step_hashes(tmp_path, 3, STOPPED_AT, num_steps) == whole


@settings(FEW, max_examples=5)
@given(run=runs())
def test_a_sample_comes_at_most_once_an_epoch_and_from_its_own_case(cached, run):
    _, cut, _ = run
    pipeline = training(cached[2], **cut)
    pipeline = replace(pipeline, first_step=0, last_step=2 * pipeline.steps_per_epoch)
    steps = fed(pipeline)
    samples = np.concatenate(joined(steps, "sample"))
    global_batch = cut["replica_batch"] * cut["num_replicas"]
    assert len(samples) == 2 * (pipeline.num_samples // global_batch) * global_batch
    for epoch in np.split(samples, 2):
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(pipeline.num_samples))
    images = np.concatenate(joined(steps, "image"))
    cases = images.reshape(len(samples), -1, 3)[..., 0].max(axis=1) - 1
    expected = np.asarray(cut["train"])[samples // cut["patches_per_case"]]
    np.testing.assert_array_equal(cases, expected)


@pytest.mark.parametrize("rank", [2, 3])
def test_image_and_mask_stay_aligned_when_cut_flipped_and_padded(rank, cached):
    steps = fed(training(cached[rank], last_step=30))
    images, masks = (np.concatenate(joined(steps, key)) for key in ("image", "mask"))
    np.testing.assert_array_equal(labels_at(images.astype(int)), masks)
    directions = set()
    for image in images:
        inside = image[..., 0] > 0
        for axis in range(rank):
            # Along its own axis a coordinate goes up or down by one; along the others it stays.
            change = np.diff(image[..., 1:], axis=axis)
            pairs = inside.take(range(1, inside.shape[axis]), axis) & inside.take(
                range(inside.shape[axis] - 1), axis
            )
            steps_along = np.unique(change[pairs], axis=0)
            assert len(steps_along) <= 1
            for step in steps_along:
                assert np.abs(step).tolist() == [float(number == axis) for number in range(rank)]
                directions.add((axis, step[axis]))
    assert directions == {(axis, sign) for axis in range(rank) for sign in (-1.0, 1.0)}


def test_without_flips_nothing_is_turned_and_the_cuts_stay_where_they_were(cached):
    plain, turned = (
        np.concatenate(
            joined(fed(training(cached[2], augmentation=Augmentation(flips=flips))), "image")
        )
        for flips in (False, True)
    )
    sizes = np.diff(plain[..., 1], axis=1), np.diff(plain[..., 2], axis=2)
    inside = plain[..., 0] > 0
    assert (sizes[0][inside[:, 1:] & inside[:, :-1]] == 1).all()
    assert (sizes[1][inside[:, :, 1:] & inside[:, :, :-1]] == 1).all()
    assert (plain != turned).any()
    voxels = [np.sort(images.reshape(len(images), -1, 3), axis=1) for images in (plain, turned)]
    np.testing.assert_array_equal(*voxels)


def test_cuts_differ_between_patches_of_a_case_and_between_epochs(cached):
    pipeline = training(cached[2], train=(1,), patches_per_case=8, augmentation=PLAIN, last_step=40)
    images = np.concatenate(joined(fed(pipeline), "image"))
    assert len({image.tobytes() for image in images[:8]}) > 1
    # Case 1 has seven places for a patch.
    assert {int(image[0, 0, 2]) for image in images} == set(range(1, 8))


def test_threads_neither_change_the_order_nor_hold_up_the_end(cached):
    evaluation = EvaluationPipeline(cases=cached[2], validation=(0,), replica_batch=1)
    for pipeline in (training(cached[2]), evaluation):
        # Small samples hardly ever overtake each other, and what is dropped has to wait for the
        # tuner only after a minute of work, so that only the options can be looked at.
        options = pipeline(range(1)).options()
        assert options.deterministic is True
        assert options.autotune.enabled is False


def test_a_batch_is_cut_into_the_passes_of_accumulation(cached):
    pipeline = training(cached[3], replica_batch=6, accumulation=3, last_step=2)
    spec = pipeline(range(1)).element_spec
    assert spec["image"] == tf.TensorSpec((3, 2, *BLOCK, 4), tf.float32)
    assert spec["mask"] == tf.TensorSpec((3, 2, *BLOCK), tf.uint8)
    assert spec["sample"] == tf.TensorSpec((6,), tf.int64)
    whole = fed(replace(pipeline, accumulation=1))
    np.testing.assert_array_equal(joined(fed(pipeline), "image"), joined(whole, "image"))


def test_a_synthetic_run_feeds_the_first_batch_of_each_replica_again_and_again(cached):
    pipeline = training(cached[2], num_replicas=2, last_step=4, synthetic=True)
    first = fed(replace(pipeline, synthetic=False))[0]
    steps = fed(pipeline)
    assert len(steps) == 4
    for step in steps:
        for batch, expected in zip(step, first, strict=True):
            np.testing.assert_array_equal(batch["image"], expected["image"])


@settings(FEW, max_examples=6)
@given(
    rank=st.sampled_from([2, 3]),
    num_replicas=st.integers(1, 9),
    border=st.integers(0, 9),
    replica_batch=st.integers(1, 5),
    halo=st.integers(0, 1),
    order=st.permutations(range(7)),
    count=st.integers(1, 7),
)
def test_each_voxel_is_evaluated_once_for_any_number_of_replicas(
    cached, rank, num_replicas, border, replica_batch, halo, order, count
):
    cases, validation = cached[rank], tuple(order[:count])
    pipeline = EvaluationPipeline(
        cases=cases,
        validation=validation,
        replica_batch=replica_batch,
        num_replicas=num_replicas,
        halo=halo,
    )
    seen = [np.zeros(cases.extents[case], int) for case in validation]
    for share in shares(num_replicas, border):
        batches = list(pipeline(share).as_numpy_iterator())
        # Every replica takes part in every collective operation.
        assert len(batches) == pipeline.num_steps * len(share)
        for batch in batches:
            np.testing.assert_array_equal(labels_at(batch["image"].astype(int)), batch["mask"])
            for window in range(replica_batch):
                tally(batch, window, validation, seen)
    assert all((counts == 1).all() for counts in seen)


def tally(batch, window, validation, seen):
    """Count the voxels of a window's core, where its pixels say that they are."""
    bounds = zip(batch["core_start"][window], batch["core_stop"][window], strict=True)
    core = batch["image"][window][tuple(slice(*pair) for pair in bounds)]
    case = batch["case"][window]
    assert batch["valid"][window] == (core.size > 0)
    voxels = core.reshape(-1, core.shape[-1]).astype(int) - 1
    assert (voxels[:, 0] == validation[case]).all()
    np.add.at(seen[case], tuple(voxels[:, 1:].T), 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"replica_batch": 15}, "14 training samples, fewer than the global_batch=15"),
        ({"num_replicas": 8}, "14 training samples, fewer than the global_batch=16"),
        ({"train": ()}, "This pipeline has no cases"),
        ({"train": (0, 0)}, "distinct indices of the 14"),
        ({"train": (0, 14)}, "distinct indices of the 14"),
        ({"replica_batch": 4, "accumulation": 3}, "cannot be cut into accumulation=3"),
        ({"first_step": 4}, "first_step=4 and last_step=3 must satisfy"),
        ({"first_step": -1}, "first_step=-1"),
        ({"augmentation": Augmentation(rotation90=True)}, "whose lengths in a patch"),
    ],
)
def test_what_cannot_be_fed_is_refused(changed, message, cached):
    with pytest.raises(ValueError, match=message):
        training(cached[2], **changed)


@pytest.mark.parametrize("replicas", [range(0), range(1, 3), range(0, 2, 2)])
def test_replicas_that_do_not_exist_are_refused(replicas, cached):
    pipeline = training(cached[2], num_replicas=2)
    with pytest.raises(ValueError, match=r"adjacent replicas among 0\.\.1"):
        pipeline(replicas)
