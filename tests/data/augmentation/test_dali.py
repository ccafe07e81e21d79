"""pipeline = "dali": the samples, crops and amounts of "tf", and its pixels but for rounding."""

import csv
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tfunet.backend import Launch
from tfunet.config.augmentation import KINDS, read_augmentation
from tfunet.config.run import RunConfig
from tfunet.data import sample_pictures
from tfunet.data.augmentation import dali_limits
from tfunet.data.augmentation.augment import augment
from tfunet.data.augmentation.dali import AFFINE, DaliAugment
from tfunet.data.cache import build_cache
from tfunet.data.generated.phantoms import cells, tumours
from tfunet.data.pipeline import TrainingPipeline
from tfunet.record import RunFolder
from tfunet.single import SingleDevice
from tfunet.train import run

BATCH = 4
SEED = 3
OFFERED = [name for name in KINDS if name != "elastic"]
PATCHES = {2: (24, 20), 3: (12, 10, 14)}
SQUARE = {2: (20, 20), 3: (10, 14, 10)}
TURNED = {2: [0, 1], 3: [0, 2]}
# DALI adds up the places along a row, pixel by pixel, and rounds each.
TOLERANCES = {**dict.fromkeys(AFFINE, 1e-4), "blur": 1e-5, "contrast": 1e-5, "gamma": 1e-5}
NOWHERE = tf.zeros([2, 1], tf.int32)
HALF = {name: {"range": True, "probability": 0.5} for name in OFFERED}


def scene(shape, sample, channels=2):
    """Numbers that are unlike their neighbours, and a mask of four labels in blobs."""
    rng = np.random.default_rng(sample)
    grid = np.indices(shape) / np.reshape(shape, (-1, *[1] * len(shape)))
    mask = (grid * rng.uniform(1, 9, len(grid)).reshape(-1, *[1] * len(grid))).sum(axis=0) % 5
    return rng.normal(0, 1, (*shape, channels)).astype(np.float32), mask.astype(np.uint8)


def both(table, shape, channels=2):
    """Images and masks of a batch, by our own augmentation and by DALI."""
    augmentation = read_augmentation(table)
    dali = DaliAugment(augmentation, patch=shape, channels=channels, batch=BATCH, seed=SEED)
    ours, rows = [], []
    for sample in range(BATCH):
        arrays = [tf.constant(one) for one in scene(shape, sample, channels)]
        number = tf.constant(sample, tf.int64)
        when = {"epoch": tf.constant(1, tf.int64), "sample": number}
        ours.append(augment(*arrays, augmentation, seed=SEED, **when))
        rows.append({**dali.draw(*arrays, **when), "sample": number})
    batch = dali({name: tf.stack([row[name] for row in rows]) for name in rows[0]})
    expected = [np.stack(one) for one in zip(*ours, strict=True)]
    return expected, [batch["image"].numpy(), batch["mask"].numpy()]


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("name", OFFERED)
def test_each_augmentation_gives_the_same_pixels(name, rank):
    (image, mask), (found, labels) = both({"flips": False, name: True}, PATCHES[rank])
    np.testing.assert_allclose(found, image, rtol=0, atol=TOLERANCES.get(name, 0))
    # Where a place lies between two pixels, rounding decides.
    assert (labels != mask).mean() <= (1e-3 if name in AFFINE else 0)
    before = np.stack([scene(PATCHES[rank], sample)[0] for sample in range(BATCH)])
    assert abs(image - before).max() > 0.01


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(
    ("table", "tolerance"),
    [
        ({"flips": False}, 0),
        ({"flips": True}, 0),
        ({"flips": [1]}, 0),
        ({"flips": False, "rotation90": "turned"}, 0),
        ({"flips": True, "rotation90": "turned"}, 0),
        # Turned and resampled at once; half of the samples escape each of them.
        ({**HALF, "rotation90": "turned"}, 3e-4),
        # Beyond the mirror image lies another one.
        ({"rotation": 5, "scale": [0.35, 0.4], "translation": 0.05}, 3e-4),
        # Axes of their own; a channel alone has no parts to be put together.
        ({"rotation": {"range": 40, "axes": [0, 1]}, "shear": 20, "blur": 2}, 1e-4),
    ],
)
def test_together_they_give_the_same_pixels(table, tolerance, rank):
    turned = {"rotation90": TURNED[rank]} if "rotation90" in table else {}
    shape = SQUARE[rank] if turned else PATCHES[rank]
    channels = 1 if "shear" in table and "axes" in str(table) else 3
    (image, mask), (found, labels) = both({**table, **turned}, shape, channels)
    np.testing.assert_allclose(found, image, rtol=0, atol=tolerance)
    assert (labels != mask).mean() <= (1e-3 if tolerance else 0)


def test_all_turns_of_a_volume_are_the_same():
    shape = (6, 6, 6)
    seen = set()
    for _ in range(3):
        (image, mask), (found, labels) = both({"rotation90": True}, shape)
        np.testing.assert_array_equal(found, image)
        np.testing.assert_array_equal(labels, mask)
        seen |= {one.tobytes() for one in image}
    assert len(seen) > 1


@pytest.mark.parametrize("rank", [2, 3])
def test_no_sample_reaches_farther_than_the_bound(rank):
    rng = np.random.default_rng(rank)
    image, mask = map(tf.constant, scene(PATCHES[rank], 0))
    for number in range(6):
        table = {
            "rotation": float(rng.uniform(0, 50)),
            "scale": [float(rng.uniform(0.7, 1)), 1.3],
            "shear": float(rng.uniform(0, 20)),
            "translation": float(rng.uniform(0, 0.2)),
        }
        kept = rng.choice(AFFINE, 2, replace=False)
        augmentation = read_augmentation({name: table[name] for name in kept})
        dali = DaliAugment(augmentation, patch=mask.shape, channels=2, batch=1, seed=number)
        for sample in range(4):
            zero = tf.constant(0, tf.int64)
            row = dali.draw(image, mask, epoch=zero, sample=zero + sample)
            reach = row.get("reach", NOWHERE).numpy().sum(axis=0)
            # What is interpolated takes up to two pixels more.
            assert (reach <= np.add(dali_limits.farthest(augmentation, mask.shape), 2)).all()


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    source = cells(num_cases=7, size=32)
    return build_cache(source, tmp_path_factory.mktemp("cache"), patch=(24, 20))


def training(cases, **changed):
    default = {"train": (1, 2, 3, 5, 6), "patches_per_case": 2, "foreground_share": 0.5}
    return TrainingPipeline(cases=cases, **{**default, "augmented_by": "dali", **changed})


def fed(pipeline, *processes):
    """What these processes are fed, a step a row, the replicas side by side."""
    steps = {}
    streams = [pipeline(share).as_numpy_iterator() for share in processes]
    for _ in range(pipeline.first_step, pipeline.last_step):
        batches = [
            next(stream) for stream, share in zip(streams, processes, strict=True) for _ in share
        ]
        for name in ("sample", "image", "mask"):
            rows = [
                one[name].reshape(-1, *one[name].shape[1 + (name != "sample") :]) for one in batches
            ]
            steps.setdefault(name, []).append(np.concatenate(rows))
    assert all(next(stream, None) is None for stream in streams)
    return steps


def test_samples_and_pixels_are_the_same_for_all_replicas_and_after_a_resume(cached):
    table = {"rotation": {"probability": 0.5}, "gamma": True, "noise": True}
    settings = {"augmentation": read_augmentation(table), "last_step": 4}
    alone = fed(training(cached, replica_batch=4, **settings), range(1))
    ours = fed(training(cached, replica_batch=4, augmented_by="tf", **settings), range(1))
    two = training(cached, replica_batch=2, num_replicas=2, accumulation=2, **settings)
    two_processes = fed(two, range(1), range(1, 2))
    rest = fed(replace(two, first_step=3), range(2))
    np.testing.assert_array_equal(alone["sample"], ours["sample"])
    assert two.buffered_bytes > 2 * replace(two, augmented_by="tf").buffered_bytes
    np.testing.assert_allclose(alone["image"], ours["image"], rtol=0, atol=3e-4)
    for name in ("sample", "image", "mask"):
        np.testing.assert_array_equal(alone[name], two_processes[name])
        np.testing.assert_array_equal(alone[name][3:], rest[name])


def test_a_synthetic_run_and_two_iterators_of_one_dataset_get_their_own_batches(cached):
    pipeline = training(
        cached, replica_batch=2, last_step=3, augmentation=read_augmentation({"rotation": 30})
    )
    first, *others = fed(pipeline, range(1))["image"]
    assert all((first != one).any() for one in others)
    for one in fed(replace(pipeline, synthetic=True), range(1))["image"]:
        np.testing.assert_array_equal(one, first)
    dataset = pipeline(range(1))
    pairs = zip(dataset.as_numpy_iterator(), dataset.as_numpy_iterator(), strict=True)
    for number, (one, other) in enumerate(pairs):
        np.testing.assert_array_equal(one["image"], other["image"])
        np.testing.assert_array_equal(one["image"][0], [first, *others][number])


def test_what_is_shown_is_what_dali_makes():
    config = RunConfig(data="tumours", data_options={"num_cases": 4, "size": 16})
    (sample,) = sample_pictures.first_samples(config, tumours(**config.data_options), 1, epoch=0)
    augmentation = read_augmentation({"rotation": 20, "gamma": True})
    ours = sample.changed(augmentation, seed=0, epoch=0)
    found = sample.changed(augmentation, seed=0, epoch=0, augmented_by="dali")
    np.testing.assert_allclose(found[0], ours[0], atol=3e-4)
    assert (found[0] != ours[0]).any()  # Not the same code.
    assert (found[1] != ours[1]).mean() < 1e-3


SMALL = {
    "data_options": {"num_cases": 10, "size": 32},
    "model_options": {"filters": 4, "levels": 1},
    "augmentation": {"rotation": 20, "gamma": True},
    "replica_batch": 2,
    "steps": 4,
}


def test_a_run_learns_the_same(tmp_path):
    losses, dice = {}, {}
    for pipeline in ("tf", "dali"):
        config = RunConfig(**SMALL, pipeline=pipeline, cache_dir=str(tmp_path / "cache"))
        folder = tmp_path / pipeline
        result = run(config, SingleDevice(Launch()), folder)
        assert RunFolder(folder).read_config().pipeline == pipeline
        with (folder / "steps.csv").open() as file:
            losses[pipeline] = [float(row["loss"]) for row in csv.DictReader(file)]
        losses[pipeline].append(result["val_loss"])
        dice[pipeline] = list(result["dice"].values())
    assert len(losses["tf"]) == 4 + 1
    np.testing.assert_allclose(losses["dali"], losses["tf"], rtol=1e-4)
    # Counted in pixels, of which a few lie on the border between classes.
    np.testing.assert_allclose(dice["dali"], dice["tf"], atol=0.01)
    assert losses["dali"] != losses["tf"]  # Not the same code.


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"pipeline": "dalli"},
            "Unknown pipeline 'dalli'. Did you mean 'dali'? Known: tf, device, dali.",
        ),
        ({"augmentation": {"elastic": True}}, "no elastic deformation"),
        ({"augmentation": {"elastic": True}}, "or use pipeline = 'tf'"),
    ],
)
def test_what_dali_cannot_do_is_refused_with_the_configuration(changed, said):
    RunConfig(**{**changed, "pipeline": "tf"})
    with pytest.raises(ValueError, match=re.escape(said)):
        RunConfig(**{"pipeline": "dali", **changed})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"scale": [0.1, 1]}, "reach 140 pixels beyond the patch of 32 along axis 0"),
        (
            {"scale": [0.1, 1]},
            "at most 62 pixels are allowed. Choose smaller ranges, or use pipeline =",
        ),
        ({"scale": [0.5, 1], "rotation": 180, "translation": 1}, "beyond the patch of 32"),
    ],
)
def test_what_would_take_too_much_memory_is_refused_before_anything_is_decoded(
    table, said, tmp_path
):
    config = RunConfig(
        **{**SMALL, "augmentation": table}, pipeline="dali", cache_dir=str(tmp_path / "cache")
    )
    with pytest.raises(ValueError, match=re.escape(said)):
        run(config, SingleDevice(Launch()), tmp_path / "run")
    assert not (tmp_path / "cache").exists()


def test_without_dali_training_and_pictures_say_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    config = RunConfig(**SMALL, pipeline="dali", cache_dir=str(tmp_path / "cache"))
    for use in (
        lambda: run(config, SingleDevice(Launch()), tmp_path / "run"),
        lambda: sample_pictures.show(config, tmp_path / "a.png"),
    ):
        with pytest.raises(ValueError, match=r"Install it with: pip install 'tfunet\[dali\]', or"):
            use()
    assert not (tmp_path / "cache").exists()
