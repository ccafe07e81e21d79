"""Phantoms: the same bits for everyone, sound labels, and too hard for a threshold."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from tfunet.data.check import check
from tfunet.data.generated.phantoms import cells, tumours

OPENERS = [cells, tumours]


def best_threshold_dice(image, target):
    """The best that any threshold, in either direction, reaches on these pixels."""
    values, inside = image.ravel(), target.ravel()
    order = np.argsort(values)
    # Taking the k lowest pixels, or all but those, for every k at once.
    low, sizes = np.cumsum(inside[order]), np.arange(1, inside.size + 1)
    high = inside.sum() - low
    below = 2 * low / (sizes + inside.sum())
    above = 2 * high / (inside.size - sizes + inside.sum())
    return max(below.max(), above.max())


def digest(source, index):
    image, mask = source.read(index)
    return hashlib.sha256(image.tobytes() + mask.tobytes()).hexdigest()


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("size", [None, 32])
def test_every_case_is_sound(opener, size):
    source = opener(num_cases=4, **({"size": size} if size else {}))
    assert check(source).defects == ()
    assert source.patch == source.read(0)[1].shape


@pytest.mark.parametrize("opener", OPENERS)
def test_a_case_does_not_depend_on_the_order_of_reading_or_the_number_of_cases(opener):
    few, many = opener(num_cases=3, size=32), opener(num_cases=9, size=32)
    backwards = [digest(many, index) for index in reversed(range(3))]
    assert [digest(few, index) for index in range(3)] == backwards[::-1]


@pytest.mark.parametrize("opener", OPENERS)
def test_another_process_makes_the_same_bits(opener):
    code = (
        "import hashlib; from tfunet.data.generated.phantoms import *;"
        f"image, mask = {opener.__name__}(num_cases=3, size=32).read(2);"
        "print(hashlib.sha256(image.tobytes() + mask.tobytes()).hexdigest())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.strip() == digest(opener(num_cases=3, size=32), 2), printed.stderr


@pytest.mark.parametrize("opener", OPENERS)
def test_cases_and_seeds_differ(opener):
    made = {
        digest(opener(num_cases=4, size=32, seed=seed), case) for seed in (0, 1) for case in (0, 3)
    }
    assert len(made) == 4


@pytest.mark.parametrize(
    ("opener", "other"),
    [
        (cells, {"seed": 1}),
        (cells, {"size": 64}),
        (cells, {"noise": 0.5}),
        (cells, {"border": True}),
        (cells, {"num_cases": 5}),
        (tumours, {"seed": 1}),
        (tumours, {"size": 64}),
        (tumours, {"channels": 2}),
    ],
)
def test_the_fingerprint_follows_every_setting(opener, other):
    assert opener().fingerprint == opener().fingerprint
    assert opener().fingerprint != opener(**other).fingerprint


def test_no_threshold_finds_the_cells():
    cases = [cells().read(index) for index in range(12)]
    of_one_image = [best_threshold_dice(image[..., 0], mask == 1) for image, mask in cases]
    assert np.mean(of_one_image) < 0.75
    images, masks = (np.stack(parts) for parts in zip(*cases, strict=True))
    assert 0.4 < best_threshold_dice(images[..., 0], masks == 1) < 0.75


def test_no_threshold_in_any_modality_finds_the_tumours():
    source = tumours()
    cases = [source.read(index) for index in range(8)]
    for channel in range(source.channels):
        for labels in source.regions.values():
            best = [
                best_threshold_dice(image[..., channel], np.isin(mask, labels))
                for image, mask in cases
            ]
            assert np.mean(best) < 0.72, (channel, labels)


def test_cells_vary_from_image_to_image():
    masks = np.stack([cells().read(index)[1] for index in range(16)])
    shares = masks.mean((1, 2))
    assert 0.1 < shares.min() < shares.max() - 0.1 < 0.5


def pieces(mask):
    """Count 4-connected pieces."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        grown = labels
        for axis in (0, 1):
            for step in (1, -1):
                moved = np.roll(grown, step, axis)
                edge = [slice(None)] * 2
                edge[axis] = 0 if step == 1 else -1
                moved[tuple(edge)] = 0
                grown = np.where(mask, np.maximum(grown, moved), 0)
        if (grown == labels).all():
            return len(np.unique(labels)) - 1
        labels = grown


def test_touching_cells_are_told_apart_by_a_line():
    plain, with_border = cells(num_cases=6), cells(num_cases=6, border=True)
    for index in range(6):
        mask, marked = plain.read(index)[1], with_border.read(index)[1]
        np.testing.assert_array_equal(mask == 1, marked == 1)
        assert (marked == 2).any()
        # Without the lines, the cells of a clump are one piece.
        assert pieces(mask == 1) > pieces(marked > 0)
    assert with_border.num_classes == 3
    assert with_border.regions == {"cell": (1,), "border": (2,)}


@pytest.mark.parametrize("size", [16, 24, 48])
def test_tumour_regions_nest_and_none_is_empty(size):
    source = tumours(num_cases=8, size=size, channels=1)
    assert source.regions == {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}
    for index in range(8):
        _, mask = source.read(index)
        counts = [int(np.isin(mask, labels).sum()) for labels in source.regions.values()]
        assert counts[0] > counts[1] > counts[2] > 0, index


def test_fewer_modalities_are_the_first_ones():
    all_four, two = tumours(num_cases=1, size=24).read(0), tumours(num_cases=1, size=24, channels=2)
    assert two.channels == 2
    np.testing.assert_array_equal(two.read(0)[0], all_four[0][..., :2])
    np.testing.assert_array_equal(two.read(0)[1], all_four[1])


@pytest.mark.parametrize(
    ("opener", "options", "reason"),
    [
        (cells, {"size": 8}, "size must be at least 32, got 8"),
        (cells, {"num_cases": 0}, "num_cases must be at least 1"),
        (cells, {"seed": -1}, "seed must be at least 0"),
        (cells, {"noise": -1}, "noise must be at least 0"),
        (tumours, {"channels": 5}, "channels must be 1 to 4, got 5"),
        (tumours, {"size": 8}, "size must be at least 16"),
    ],
)
def test_impossible_settings_are_refused(opener, options, reason):
    with pytest.raises(ValueError, match=reason):
        opener(**options)
