"""Each device of a split sample is fed its part, and reads no more of the cache where it can."""

import numpy as np
import pytest
from cache_reads import bytes_read

from tfunet.config.augmentation import read_augmentation
from tfunet.data.cache import build_cache
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.generated.phantoms import cells
from tfunet.data.pipeline import TrainingPipeline
from tfunet.parallel.feed import own_part
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.mesh import Mesh, part_bounds


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    source = cells(num_cases=9, size=32)
    return build_cache(source, tmp_path_factory.mktemp("cache"), patch=(30, 22))


def steps(pipeline, devices):
    return list(pipeline(devices))


def training(cases, **changed):
    options = {"cases": cases, "train": tuple(range(8)), "last_step": 4, "replica_batch": 2}
    return TrainingPipeline(**{**options, "seed": 3, **changed})


AUGMENTATIONS = [
    {},
    {"flips": False},
    {"flips": [0], "brightness": 0.3},
    {"rotation": 20, "noise": 0.2},
]


# Six parts: a corner, one that is none, and the last.
@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=str)
@pytest.mark.parametrize(("split", "devices"), [((2, 1), range(4)), ((3, 2), (0, 3, 11))])
def test_devices_get_the_parts_of_the_samples_of_one_device(cases, split, devices, augmentation):
    options = {"augmentation": read_augmentation(augmentation), "num_replicas": 2}
    whole = training(cases, **options)
    over = training(cases, **options, split=split)
    mesh, bounds = Mesh(groups=2, split=split), part_bounds((30, 22), split)
    of_group = [steps(whole, range(group, group + 1)) for group in range(2)]
    for device in devices:
        group = SampleGroup(mesh=mesh, device=device, exchange=None)
        expected = of_group[mesh.group_of(device)]
        fed = steps(over, range(device, device + 1))
        assert len(fed) == len(expected) == 4
        for part, batch in zip(fed, expected, strict=True):
            ours, theirs = (own_part(each, group, bounds) for each in (part, batch))
            for key in ("image", "mask", "sample", "epoch"):
                np.testing.assert_array_equal(ours[key], theirs[key])


def test_devices_of_one_process_take_turns(cases):
    over = training(cases, split=(3, 1), augmentation=read_augmentation({"noise": 0.2}))
    fed = steps(over, range(3))
    assert len(fed) == 3 * 4
    # All have the rows of the largest, of which `own_part` takes what is theirs.
    assert {tuple(batch["image"].shape) for batch in fed} == {(1, 2, 10, 22, 1)}


@pytest.mark.parametrize(("augmentation", "share"), [({}, 0.5), ({"rotation": 20}, 1.0)])
def test_a_device_reads_only_its_part_where_no_change_needs_more(cases, augmentation, share):
    """Counted where pixels leave the store."""

    def num_bytes(split):
        options = {"split": split, "augmentation": read_augmentation(augmentation)}
        with bytes_read(cases) as read:
            steps(training(cases, **options), range(1))
        return sum(read)

    whole = num_bytes(())
    assert whole > 0
    assert num_bytes((2, 1)) == share * whole


@pytest.mark.parametrize("split", [(3, 1), (2, 2)])
def test_every_voxel_of_a_case_is_in_one_part(cases, split):
    mesh = Mesh(split=split)
    whole = EvaluationPipeline(cases=cases, validation=(8, 2), replica_batch=1, halo=1)
    over = EvaluationPipeline(cases=cases, validation=(8, 2), replica_batch=1, halo=1, split=split)

    def counted(pipeline, devices):
        return sum(
            int(np.prod(batch["core_stop"] - batch["core_start"], axis=-1).sum())
            for batch in steps(pipeline, devices)
        )

    parts = [counted(over, range(device, device + 1)) for device in range(mesh.num_devices)]
    assert min(parts) > 0
    assert sum(parts) == counted(whole, range(1)) == 2 * 32 * 32


def test_a_process_with_a_part_of_a_group_is_refused(cases):
    over = training(cases, split=(2, 1), num_replicas=2)
    with pytest.raises(ValueError, match="it would have a part of a group"):
        over(range(3))
