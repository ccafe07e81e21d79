"""Samples centred on the foreground: in the given share, each class alike, drawn as all is."""

from dataclasses import replace

import numpy as np
import pytest

from tfunet.config.augmentation import Augmentation
from tfunet.data import foreground
from tfunet.data.cache import build_cache
from tfunet.data.foreground import ForegroundVoxels
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.source import DataSource

SHAPE = (60, 50)
PATCH = (9, 8)


def places_of(mask, cuts=()):
    voxels = ForegroundVoxels(4)
    for part in np.split(mask, cuts):
        voxels.add(part)
    return voxels.places()


def test_places_are_those_of_the_labels_however_the_mask_is_cut(monkeypatch):
    mask = np.random.default_rng(0).integers(0, 3, (40, 7, 5)).astype(np.uint8)
    for most in (10**6, 400):
        monkeypatch.setattr(foreground, "MOST_VOXELS", most)
        whole = places_of(mask)
        for label, places in enumerate(whole, start=1):
            assert len(places) == min((mask == label).sum(), most)
            assert (mask.ravel()[places] == label).all()
        for cuts in ((1, 2), (17,), range(1, 40)):
            for one, other in zip(whole, places_of(mask, cuts), strict=True):
                np.testing.assert_array_equal(one, other)
    # The voxels that are kept are spread over the whole mask.
    assert np.histogram(whole[0], 4, (0, mask.size))[0].min() > 70


def decode(index):
    """A large class 1 and a single voxel of class 2; the last case has no foreground."""
    mask = np.zeros(SHAPE, np.uint8)
    if index < 2:
        mask[20:40, 10:40] = 1
        mask[5 + index, 44] = 2
    rows, columns = np.indices(SHAPE)
    return np.stack([rows, columns], -1).astype(np.float32), mask


@pytest.fixture
def cases(tmp_path):
    names = ("a", "b", "none")
    source = DataSource(
        name="rare",
        case_ids=names,
        groups=names,
        num_classes=3,
        channels=2,
        regions={"all": (1, 2)},
        patch=PATCH,
        fingerprint="",
        read=decode,
    )
    return build_cache(source, tmp_path, patch=PATCH)


def fed(pipeline, replicas=range(1)):
    """Sample, first voxel and mask of each sample."""
    found = []
    for batch in pipeline(replicas).as_numpy_iterator():
        for sample, image, mask in zip(
            batch["sample"], batch["image"][0], batch["mask"][0], strict=True
        ):
            found.append((int(sample), tuple(image[0, 0].astype(int)), mask))
    return found


@pytest.fixture
def pipeline(cases):
    return TrainingPipeline(
        cases=cases,
        train=(0, 1, 2),
        patches_per_case=400,
        replica_batch=40,
        last_step=30,
        foreground_share=0.5,
        augmentation=Augmentation(flips=False),
    )


def test_a_share_of_the_samples_is_centred_and_each_class_is_as_likely(pipeline):
    middle = (PATCH[0] // 2, PATCH[1] // 2)
    with_foreground = [mask for sample, _, mask in fed(pipeline) if sample < 800]
    # Moved into the image: the rare voxel lies nearer to the border than half a patch.
    rare = np.mean([(mask == 2).any() for mask in with_foreground])
    large = np.mean([mask[middle] == 1 for mask in with_foreground])
    anywhere = [mask for _, _, mask in fed(replace(pipeline, foreground_share=0.0))]
    by_chance = np.mean([mask[middle] == 1 for mask in anywhere[:800]])
    assert abs(rare - 0.25) < 0.06
    assert abs(large - (0.25 + 0.5 * by_chance)) < 0.08


def test_a_case_without_foreground_is_cut_anywhere(pipeline):
    plain = replace(pipeline, foreground_share=0.0)
    starts = [{sample: start for sample, start, _ in fed(feed)} for feed in (pipeline, plain)]
    same = [starts[0][sample] == starts[1][sample] for sample in range(1200)]
    assert all(same[800:])
    assert 0.4 < np.mean(same[:800]) < 0.6


def test_samples_do_not_depend_on_replicas_or_on_where_a_run_goes_on(pipeline):
    whole = fed(pipeline)
    two = replace(pipeline, replica_batch=20, num_replicas=2, first_step=17)
    first, second = fed(two, range(1)), fed(two, range(1, 2))
    for step in range(13):
        ours = whole[(17 + step) * 40 : (18 + step) * 40]
        theirs = first[step * 20 : (step + 1) * 20] + second[step * 20 : (step + 1) * 20]
        for one, other in zip(ours, theirs, strict=True):
            assert one[:2] == other[:2]
            np.testing.assert_array_equal(one[2], other[2])


def test_a_patch_about_a_voxel_stays_in_the_image(pipeline):
    sure = replace(pipeline, foreground_share=1.0, train=(0,), patches_per_case=1200)
    starts = np.array([start for _, start, _ in fed(sure)])
    assert starts.min() >= 0
    assert (starts <= np.subtract(SHAPE, PATCH)).all()
