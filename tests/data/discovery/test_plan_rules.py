"""The rules of automatic settings: as nnU-Net publishes their results, and by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tfunet.arguments import from_dict
from tfunet.data.discovery import plan_rules
from tfunet.data.discovery.fingerprint import fingerprint, ranks, separation
from tfunet.data.preprocess import check_intensity
from tfunet.data.source import DataSource


def source_of(images, masks, num_classes=2, spacing=None):
    ids = tuple(f"c{number}" for number in range(len(images)))
    images = [np.asarray(image, np.float32) for image in images]
    images = [image if image.ndim > masks[0].ndim else image[..., None] for image in images]
    return DataSource(
        name="made",
        case_ids=ids,
        groups=ids,
        num_classes=num_classes,
        channels=images[0].shape[-1],
        regions={f"class{label}": (label,) for label in range(1, num_classes)},
        patch=masks[0].shape,
        fingerprint="made",
        read=lambda index: (images[index], masks[index].astype(np.uint8)),
    )


def found_in(images, masks, num_classes=2):
    source = source_of(images, masks, num_classes)
    return fingerprint(source, range(len(images)))


@pytest.mark.parametrize(
    ("median", "spacing", "patch", "levels"),
    [
        # Plans that nnU-Net publishes: hippocampus, and BraTS before memory limits it.
        ((36, 50, 35), (1, 1, 1), (40, 56, 40), 3),
        ((138, 170, 138), (1, 1, 1), (160, 192, 160), 5),
        # Nuclei; a long image; what is larger than the largest patch.
        ((256, 256), None, (256, 256), 6),
        ((100, 1500), (1.0, 1.0), (112, 1504), 4),
        ((5000, 5000), None, (2048, 2048), 9),
        # Few slices: two halvings, whatever the slices.
        ((6, 200, 200), (5.0, 1.0, 1.0), (8, 200, 200), 2),
    ],
)
def test_first_patches(median, spacing, patch, levels):
    found = plan_rules.first_patch(median, spacing)
    assert (found, plan_rules.num_levels(found)) == (patch, levels)
    assert all(size % 2**levels == 0 for size in found)


def test_patches_shrink_along_the_axis_that_covers_most():
    patches = list(plan_rules.smaller_patches((160, 192, 160), (138, 170, 138)))
    assert patches[:3] == [(160, 192, 160), (128, 192, 160), (128, 192, 128)]
    # nnU-Net's patch for BraTS is reached on the way.
    assert (128, 128, 128) in patches
    for before, after in itertools.pairwise(patches):
        assert np.prod(after) < np.prod(before)
    for patch in patches:
        assert all(size % 2 ** plan_rules.num_levels(patch) == 0 for size in patch)
    assert min(patches[-1]) >= 8


def test_filters_fall_only_where_patches_would_be_too_small():
    networks = list(plan_rules.networks((256, 256), (256, 256)))
    assert networks[0] == ((256, 256), 6, 32)
    first_of = {}
    for patch, _, filters in networks:
        first_of.setdefault(filters, patch)
        assert filters == 8 or min(patch) >= 128
    assert list(first_of) == [32, 24, 16, 12, 8]
    assert set(first_of.values()) == {(256, 256)}
    assert min(networks[-1][0]) < 32


@pytest.mark.parametrize(
    ("spacings", "shapes", "expected"),
    [
        ([[1, 1, 1]] * 4, [[50, 50, 50]] * 4, None),
        ([[1, 1, 1], [1, 1, 2], [1, 1, 3]], [[50, 50, 50]] * 3, (1, 1, 2)),
        # Long voxels, but as many of them.
        ([[1, 1, 5], [1, 1, 8], [1, 1, 10]], [[50, 50, 50]] * 3, (1, 1, 8)),
        # Long and few: the 10th percentile of 5, 8, 10.
        ([[1, 1, 5], [1, 1, 8], [1, 1, 10]], [[200, 200, 12]] * 3, (1, 1, 5.6)),
        # But no finer than the others.
        ([[4, 4, 2], [4, 4, 2.5], [4, 4, 15]] + [[4, 4, 16]] * 2, [[90, 90, 9]] * 5, (4, 4, 4)),
    ],
)
def test_pixel_sizes(spacings, shapes, expected):
    target, reason = plan_rules.target_spacing(np.array(spacings, float), np.array(shapes))
    assert target == expected
    assert ("10th percentile" in reason) == (expected in ((1, 1, 5.6), (4, 4, 4)))


def test_a_step_covers_at_most_a_twentieth_of_the_voxels():
    shapes = np.array([[36, 50, 35]] * 260)
    # nnU-Net's plan for the hippocampus.
    assert plan_rules.most_batch((40, 56, 40), shapes) == 9
    assert plan_rules.most_batch((40, 56, 40), shapes[:5]) == 2


def test_separation_is_that_of_the_curve():
    rng = np.random.default_rng(0)
    values, is_class = np.round(rng.normal(size=400), 1), rng.random(400) < 0.3
    values[is_class] += 0.7
    above = values[is_class][:, None] - values[~is_class][None]
    area = ((above > 0) + (above == 0) / 2).mean()
    assert separation(ranks(values), is_class) == pytest.approx(abs(2 * area - 1))


def aerial():
    """Return tiles of land (dark) or water (bright), each nearly of one class."""
    rng = np.random.default_rng(0)
    images, masks = [], []
    for case in range(12):
        mask = np.full((64, 64), case % 2)
        mask[:6, :6] = 1 - case % 2
        images.append(rng.normal(100 + 60 * mask, 8))
        masks.append(mask)
    return images, masks


def test_absolute_brightness_is_kept_where_it_tells_classes_apart():
    images, masks = aerial()
    found = found_in(images, masks)
    value, reason = plan_rules.intensity(found)
    pixels = np.array(images)
    # The statistics of all images together.
    assert value["mean"] == pytest.approx([pixels.mean()], rel=1e-5)
    assert value["deviation"] == pytest.approx([pixels.std()], rel=1e-5)
    assert check_intensity(value)
    assert "Absolute brightness matters" in reason
    normalization, why = plan_rules.normalization(found, batch=8)
    assert normalization == "synchronized_batch"
    assert "takes the brightness of a sample away" in why
    assert plan_rules.normalization(found, batch=2)[0] == "none"


def test_brightness_that_differs_from_image_to_image_is_normalised():
    rng = np.random.default_rng(1)
    masks = [rng.random((64, 64)) < 0.3 for _ in range(12)]
    images = [(mask + rng.normal(0, 0.2, mask.shape)) * 10 ** rng.uniform(0, 5) for mask in masks]
    found = found_in(images, masks)
    assert plan_rules.intensity(found)[0] == "zscore"
    assert plan_rules.normalization(found, batch=8)[0] == "instance"
    # Too few cases tell nothing.
    few = found_in(*(part[:4] for part in aerial()))
    assert plan_rules.intensity(few)[0] == "zscore"


def test_eight_bits_ct_and_zeros_around_the_head_have_their_own_rules():
    rng = np.random.default_rng(2)
    images, masks = aerial()
    source = source_of([image.clip(0, 255).round() for image in images], masks)
    found = fingerprint(source, range(12))
    eight = replace(found, cases=tuple(replace(case, dtype="uint8") for case in found.cases))
    assert plan_rules.intensity(eight)[0] == [0, 255]

    organ = np.zeros((20, 30, 30), int)
    organ[5:10, 5:15, 5:15] = 1
    ct = [np.where(organ, rng.normal(60, 5, organ.shape), -1000) for _ in range(3)]
    for names, images in (((), ct), (("CT",), [image + 1000 for image in ct])):
        value, reason = plan_rules.intensity(found_in(images, [organ] * 3), channel_names=names)
        shift = 1000 * bool(names)
        assert value["low"][0] == pytest.approx(60 - 5 * 2.58 + shift, abs=2.5)
        assert value["high"][0] == pytest.approx(60 + 5 * 2.58 + shift, abs=2.5)
        assert value["deviation"][0] == pytest.approx(5, abs=1)
        assert "nnU-Net for CT" in reason

    head = np.zeros((32, 32, 32))
    head[8:24, 8:24, 8:24] = rng.normal(50, 5, (16, 16, 16))
    masks = [(head > 52).astype(int)] * 3
    assert plan_rules.intensity(found_in([head] * 3, masks))[0] == "zscore_nonzero"


def test_no_flips_along_an_axis_that_tells_classes_apart():
    rng = np.random.default_rng(3)
    masks = []
    for _ in range(12):
        mask = np.zeros((24, 24), int)
        first, second = (rng.integers(2, 20) for _ in range(2))
        mask[3:6, first : first + 3] = 1
        mask[15:18, second : second + 3] = 2
        masks.append(mask)
    found = found_in([mask * 1.0 for mask in masks], masks, num_classes=3)
    augmentation = plan_rules.augmentation((24, 24), found)
    value, reason = augmentation["flips"]
    assert value == [1]
    assert "classes 1 class1 and 2 class2 along axis 0" in reason
    config = from_dict({"augmentation": {name: value for name, (value, _) in augmentation.items()}})
    # Half a turn reverses that order, too.
    assert config.augmentation["rotation"] == {"range": 15, "probability": 0.2}
    assert "half a turn reverses the order" in augmentation["rotation"][1]
    whole = [mask > 0 for mask in masks]
    alone = plan_rules.augmentation((24, 48), found_in([mask * 1.0 for mask in whole], whole))
    assert (alone["flips"][0], alone["rotation"][0]["range"]) == (True, 15)
    assert plan_rules.augmentation((24, 24), found_in(whole, whole))["rotation"][0]["range"] == 180
    flat = plan_rules.augmentation((8, 64, 64), found)
    assert flat["rotation"][0]["axes"] == [1, 2]
