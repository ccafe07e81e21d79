"""Augmentation: from (seed, epoch, sample) alone, image and mask alike, or not at all."""

import hashlib
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from tfunet.config.augmentation import KINDS, read_augmentation
from tfunet.data.augmentation.augment import augment, between

SHAPES = {2: (24, 20), 3: (12, 10, 14)}
# Every augmentation, and not the same in all samples.
EVERYTHING = {
    **dict.fromkeys(KINDS, True),
    "flips": True,
    "elastic": {"range": 2, "sigma": 5, "probability": 0.6},
    "blur": {"range": 1, "probability": 0.5},
}
SPATIAL = ("rotation", "scale", "shear", "translation", "elastic")


def scene(shape, channels=2):
    """An image, and a mask of four labels in blobs."""
    rng = np.random.default_rng(1)
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
    mask = np.zeros(shape, np.uint8)
    for label in range(1, 5):
        centre = rng.uniform(-0.5, 0.5, len(shape)).reshape(-1, *[1] * len(shape))
        mask[((grid - centre) ** 2).sum(axis=0) < 0.15] = label
    image = mask[..., None] + rng.normal(0, 0.3, (*shape, channels))
    return image.astype(np.float32), mask


def changed(image, mask, table, *, sample=0, epoch=0, seed=0):
    out = augment(
        tf.constant(image),
        tf.constant(mask),
        read_augmentation({"flips": False, **table}),
        seed=seed,
        epoch=tf.constant(epoch, tf.int64),
        sample=tf.constant(sample, tf.int64),
    )
    return [tensor.numpy() for tensor in out]


def unlike(one, other):
    return any((a != b).any() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("rank", [2, 3])
def test_with_all_off_the_tensors_themselves_come_back(rank):
    image, mask = map(tf.constant, scene(SHAPES[rank]))
    off = read_augmentation({"flips": False, "rotation": 0, "scale": 1, "noise": False})
    zero = tf.constant(0, tf.int64)
    out = augment(image, mask, off, seed=0, epoch=zero, sample=zero)
    assert out[0] is image
    assert out[1] is mask


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("name", [*KINDS, "flips", "rotation90"])
def test_shapes_types_and_labels_stay(name, rank):
    image, mask = scene((12,) * rank)
    changes = 0
    for number in range(4):
        out = changed(image, mask, {name: True}, sample=number)
        assert (out[0].shape, out[0].dtype) == (image.shape, np.float32)
        assert (out[1].shape, out[1].dtype) == (mask.shape, np.uint8)
        assert set(np.unique(out[1])) <= set(np.unique(mask))
        assert np.isfinite(out[0]).all()
        changes += unlike(out, (image, mask))
        if name in KINDS and name not in SPATIAL:
            np.testing.assert_array_equal(out[1], mask)
    assert changes >= 2


@pytest.mark.parametrize("rank", [2, 3])
def test_image_and_mask_stay_aligned_under_everything_that_moves(rank):
    _, mask = scene((24,) * rank)
    mask = (mask > 0).astype(np.uint8)
    table = dict.fromkeys(SPATIAL, True) | {"flips": True, "rotation90": True}
    for number in range(6):
        image, labels = changed(mask[..., None].astype(np.float32), mask, table, sample=number)
        image = image[..., 0]
        # Where no border of the mask is within a pixel, the image is 0 or 1.
        sure = np.abs(image - image.round()) < 1e-6
        assert sure.mean() > 0.6
        np.testing.assert_array_equal(labels[sure], image[sure])
        # Elsewhere the nearest pixel has at least 0.5^rank of the weight.
        assert np.abs(labels - image).max() <= 1 - 0.5**rank + 1e-6


@pytest.mark.parametrize("rank", [2, 3])
def test_a_sample_follows_from_seed_epoch_and_number_alone(rank):
    image, mask = scene(SHAPES[rank])
    first = changed(image, mask, EVERYTHING, sample=3, epoch=2, seed=1)
    again = changed(image, mask, EVERYTHING, sample=3, epoch=2, seed=1)
    assert not unlike(first, again)
    for other in ({"sample": 4}, {"epoch": 3}, {"seed": 2}):
        where = {"sample": 3, "epoch": 2, "seed": 1, **other}
        assert unlike(first, changed(image, mask, EVERYTHING, **where))


DIGEST = f"""
import hashlib, sys
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_augment import digest
print(digest())
"""


def digest():
    found = hashlib.sha256()
    for shape in ((128, 128), (48, 64, 48)):
        for number in range(2):
            for array in changed(*scene(shape), EVERYTHING, sample=number):
                found.update(array.tobytes())
    return found.hexdigest()


@pytest.mark.slow
def test_the_bits_do_not_depend_on_the_number_of_threads():
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, str(threads)], capture_output=True, text=True, check=True
        ).stdout
        for threads in (1, 5)
    }
    assert found == {f"{digest()}\n"}


def test_an_augmentation_that_is_added_leaves_the_draws_of_the_others_as_they_were():
    image, mask = scene(SHAPES[2])
    for name in SPATIAL:
        alone = changed(image, mask, {name: True}, sample=5)[1]
        for other in ("noise", "gamma", "brightness"):
            np.testing.assert_array_equal(
                changed(image, mask, {name: True, other: True}, sample=5)[1], alone
            )
    shift = changed(image, mask, {"brightness": True})[0] - image
    both = changed(image, mask, {"brightness": True, "blur": [0, 1e-9]})[0] - image
    np.testing.assert_allclose(both, shift, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_a_sample_escapes_with_the_probability_and_then_no_bit_changes(name):
    image, mask = scene(SHAPES[2])
    table = {name: {"probability": 0.3}}
    outs = [changed(image, mask, table, sample=number) for number in range(60)]
    # 18 are expected, with a deviation of 3.5.
    assert 7 <= sum(unlike(out, (image, mask)) for out in outs) <= 29


@pytest.mark.parametrize(
    ("low", "high", "neutral", "quartiles"),
    [
        (-10, 30, 0, (0, 10, 20)),
        # Half of the factors are below 1.
        (0.5, 3, 1, (0.75, 1, 2)),
        (1.5, 2.5, 1, (1.75, 2, 2.25)),
        (0.2, 0.6, 1, (0.3, 0.4, 0.5)),
    ],
)
def test_amounts_fill_their_range(low, high, neutral, quartiles):
    numbers = tf.constant([0.0, 0.25, 0.5, 0.75, 1.0])
    found = between(low, high, numbers, neutral).numpy()
    np.testing.assert_allclose(found, [low, *quartiles, high], atol=1e-6)


@pytest.mark.parametrize(
    ("flips", "reached"), [(True, {(0,), (1,), (0, 1), ()}), ([1], {(1,), ()}), (False, {()})]
)
def test_flips_reach_every_combination_of_the_chosen_axes(flips, reached):
    mask = np.arange(30, dtype=np.uint8).reshape(6, 5)
    image = np.stack([mask, mask + 1.0], axis=-1).astype(np.float32)
    known = {np.flip(mask, axes).tobytes(): axes for axes in ((), (0,), (1,), (0, 1))}
    seen = set()
    for number in range(40):
        turned, labels = changed(image, mask, {"flips": flips}, sample=number)
        np.testing.assert_array_equal(turned[..., 0], labels)
        np.testing.assert_array_equal(turned[..., 1], labels + 1.0)
        seen.add(known[labels.tobytes()])
    assert seen == reached


def test_flips_are_those_of_the_first_release():
    # Written down on purpose: a run resumed on another version must see the same samples.
    mask = np.arange(6, dtype=np.uint8).reshape(2, 3)
    found = [
        changed(mask[..., None].astype(np.float32), mask, {"flips": True}, sample=number)[1][0, 0]
        for number in range(12)
    ]
    assert found == FIRST_FLIPS


FIRST_FLIPS = [3, 0, 2, 0, 5, 5, 0, 5, 2, 2, 2, 3]


@pytest.mark.parametrize("axes", [True, [0, 2]])
def test_quarter_turns_are_all_equally_likely(axes):
    mask = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    image = mask[..., None].astype(np.float32)
    seen = Counter()
    for number in range(240):
        turned, labels = changed(image, mask, {"rotation90": axes}, sample=number)
        np.testing.assert_array_equal(turned[..., 0], labels)
        seen[labels.tobytes()] += 1
    count = 24 if axes is True else 4
    assert len(seen) == count
    assert max(seen.values()) < 240 / count + 5 * np.sqrt(240 / count)


def test_rotation_turns_as_far_as_it_says_about_the_chosen_axes():
    _, mask = scene((12, 12, 12))
    image = mask[..., None].astype(np.float32)
    table = {"rotation": {"range": [90, 90], "axes": [1, 2]}}
    found, labels = changed(image, mask, table)
    np.testing.assert_array_equal(labels, np.rot90(mask, 1, (1, 2)))
    np.testing.assert_allclose(found, np.rot90(image, 1, (1, 2)), atol=1e-4)


def test_translation_is_a_share_of_each_axis():
    image, mask = scene((20, 10))
    for axis, pixels in ((0, 4), (1, 2)):
        table = {"translation": {"range": [0.2, 0.2], "axes": [axis]}}
        _, labels = changed(image, mask, table)
        kept = labels.take(range(pixels, mask.shape[axis]), axis)
        np.testing.assert_array_equal(kept, mask.take(range(mask.shape[axis] - pixels), axis))


def test_rotation_comes_after_scale_and_before_translation():
    rows, columns = np.meshgrid(np.arange(21.0), np.arange(21.0), indexing="ij")
    image = np.stack([rows, columns], -1).astype(np.float32)
    table = {
        "scale": {"range": [2, 2], "axes": [0]},
        "rotation": [90, 90],
        "translation": {"range": [2 / 21, 2 / 21], "axes": [0]},
    }
    found, _ = changed(image, np.zeros((21, 21), np.uint8), table)
    # Rows twice as long, then rows become columns; then two rows down.
    row, column = 12, 16
    expected = (10 + (column - 10) / 2, 10 - (row - 2 - 10))
    np.testing.assert_allclose(found[row, column], expected, atol=1e-4)


def test_each_channel_has_amounts_of_its_own():
    image, mask = scene(SHAPES[2], channels=3)
    image[...] = image[..., :1]
    for name in ("blur", "brightness", "contrast", "gamma", "noise"):
        found, _ = changed(image, mask, {name: True})
        assert len({found[..., channel].tobytes() for channel in range(3)}) == 3, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "table"),
    [
        (2, {**dict.fromkeys(SPATIAL, True), "rotation90": True}),
        (3, {"rotation90": True, "rotation": {"range": 20, "probability": 0.9}}),
    ],
)
def test_compiled_by_xla_image_and_mask_stay_aligned_and_a_sample_is_itself(rank, table):
    _, mask = scene((12,) * rank)
    mask = (mask > 0).astype(np.uint8)
    image = mask[..., None].astype(np.float32)
    augmentation = read_augmentation(table)

    @tf.function(jit_compile=True)
    def on_device(image, mask, sample):
        epoch = tf.constant(1, tf.int64)
        return augment(image, mask, augmentation, seed=0, epoch=epoch, sample=sample)

    # XLA's generator is another one: the same sample differs from that of the data pipeline.
    outs = []
    for number in (0, 1, 0):
        found = on_device(tf.constant(image), tf.constant(mask), tf.constant(number, tf.int64))
        outs.append([tensor.numpy() for tensor in found])
        grey, labels = outs[-1][0][..., 0], outs[-1][1]
        sure = np.abs(grey - grey.round()) < 1e-6
        assert sure.mean() > 0.4
        np.testing.assert_array_equal(labels[sure], grey[sure])
    assert unlike(outs[0], outs[1])
    assert not unlike(outs[0], outs[2])
