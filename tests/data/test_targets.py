"""Data sets with numbers to predict instead of masks, from their source to the batches."""

from dataclasses import replace

import numpy as np
import pytest

from tfunet.config.augmentation import read_augmentation
from tfunet.data.cache import build_cache
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.generated.phantoms import universes
from tfunet.data.pipeline import TrainingPipeline, truth_of

SOURCE = universes(num_cases=6, size=16)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    build_cache(SOURCE, folder, patch=(8, 16, 16))
    # The second time they come from the files.
    return build_cache(SOURCE, folder, patch=(8, 16, 16))


@pytest.mark.parametrize("augmented_by", ["tf", "device"])
def test_a_batch_has_the_numbers_of_its_samples_cases(cases, augmented_by):
    options = {"replica_batch": 2, "accumulation": 2, "augmented_by": augmented_by}
    pipeline = TrainingPipeline(
        cases=cases,
        train=(5, 1, 2, 0),
        last_step=2,
        augmentation=read_augmentation({"flips": True}),
        **options,
    )
    table = np.array(list(SOURCE.targets.values()), np.float32).T
    for batch in pipeline(range(1)):
        seen = pipeline.augmented(batch)
        expected = table[np.array((5, 1, 2, 0))[batch["sample"].numpy()]]
        assert truth_of(seen).shape == (2, 1, 3)
        np.testing.assert_array_equal(truth_of(seen).numpy()[:, 0], expected)


def test_parts_of_a_sample_come_with_all_its_numbers(cases):
    split = {"num_replicas": 1, "split": (2, 1, 1), "replica_batch": 1}
    training = TrainingPipeline(cases=cases, train=(3, 4), last_step=1, **split)
    parts = list(training(range(2)))
    np.testing.assert_array_equal(parts[0]["target"], parts[1]["target"])
    assert parts[0]["image"].shape == (1, 1, 4, 16, 16, 1)
    evaluation = EvaluationPipeline(cases=cases, validation=(4,), **split)
    windows = list(evaluation(range(2)))
    expected = [values[4] for values in SOURCE.targets.values()]
    for window in windows:
        np.testing.assert_array_equal(window["target"][0], np.float32(expected))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_classes": 2}, "has targets, so it has no regions and num_classes=1"),
        ({"regions": {"cell": (1,)}}, "has targets, so it has no regions"),
        ({"targets": {"age": (1.0,)}}, "a finite number for each of the 6 cases, got 1 values"),
        ({"targets": {"age": (1.0,) * 5 + (np.nan,)}}, "must have a finite number"),
        ({"targets": {}}, "num_classes must be at least 2"),
    ],
)
def test_targets_that_do_not_fit_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        replace(SOURCE, **changed)
