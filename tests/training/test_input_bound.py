"""The share of the synthetic bound: measured on real pipelines; the model does not notice."""

import time

import keras
import numpy as np
import pytest

from tfunet.backend import Launch
from tfunet.config.augmentation import KINDS, read_augmentation
from tfunet.data.cache import build_cache
from tfunet.data.generated.phantoms import cells
from tfunet.data.pipeline import TrainingPipeline
from tfunet.files.atomic import WriteError
from tfunet.single_device import SingleDevice
from tfunet.training.input_bound import (
    BLOCK_STEPS,
    MAX_PAIRS,
    NoRoomError,
    num_pairs,
    of_average,
    paired_seconds,
    seconds_without,
    share,
    share_line,
)


@pytest.mark.parametrize(
    ("steps", "pairs"),
    [(1, 1), (239, 1), (480, 2), (10**6, MAX_PAIRS)],
)
def test_a_run_of_many_steps_measures_more_pairs_at_five_percent_of_its_steps(steps, pairs):
    assert num_pairs(steps) == pairs
    assert pairs == 1 or pairs * 2 * BLOCK_STEPS <= 0.05 * steps


def test_the_share_is_the_median_of_pairs():
    assert share([(2.0, 1.0), (1.0, 0.9), (1.0, 1.0)]) == 0.9
    assert share([]) is None


def test_what_is_noise_is_not_called_faster_than_the_bound():
    # A run that hardly waits has no line.
    assert [share_line(pairs) for pairs in ([(1.0, 1.7)], [(1.0, 0.91)], [])] == ["", "", ""]
    assert "with all data in memory they take 50% less time" in share_line([(2.0, 1.0)])


def test_seconds_of_steps_without_something_have_their_names():
    backend = SingleDevice(Launch())
    topology = backend.start()
    real, synthetic, exchanging, alone = 5.0, 4.0, 3.0, 2.0
    turns = [(real, synthetic, exchanging, alone)] * 3
    names = ["exchanging_seconds", "alone_seconds"]
    found = seconds_without(backend, topology, turns, names)
    assert found == {"exchanging_seconds": [[3.0] * 3], "alone_seconds": [[2.0] * 3]}
    average = of_average(backend, [keras.Variable(np.zeros((3, 2), np.float32))])
    assert (len(average["average_seconds"]), average["gradient_bytes"]) == (10, 24)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    source = cells(num_cases=8, size=128)
    cases = build_cache(source, tmp_path_factory.mktemp("cache"), patch=(128, 128))
    return TrainingPipeline(
        cases=cases,
        train=tuple(range(8)),
        replica_batch=4,
        last_step=4,
        augmentation=read_augmentation(dict.fromkeys(KINDS, True)),
    )


def test_real_and_synthetic_blocks_take_turns_and_the_model_is_put_back(pipeline):
    variable = keras.Variable(np.arange(3.0))
    seen = []

    def timed_step(iterator):
        seen.append(next(iterator)["sample"].numpy().tolist())
        variable.assign(variable + 1)
        return float(len(seen))

    pairs = paired_seconds(
        timed_step, SingleDevice(Launch()), pipeline, [variable], steps=pipeline.last_step
    )
    np.testing.assert_array_equal(variable.numpy(), np.arange(3.0))
    assert pairs == [(4.5, 10.5)]  # The first two steps of a block do not count.
    real, synthetic = seen[:BLOCK_STEPS], seen[BLOCK_STEPS:]
    assert {tuple(step) for step in synthetic} == {tuple(real[0])}
    epochs = [sorted(real[step] + real[step + 1]) for step in range(0, BLOCK_STEPS, 2)]
    assert epochs == [list(range(8))] * 3


def test_steps_that_wait_for_their_data_are_far_from_the_bound(pipeline):
    def timed_step(iterator):
        since = time.perf_counter()
        next(iterator)
        return time.perf_counter() - since

    # Enough pairs that a pause of the machine in some of them does not move the median.
    steps = 5 * 2 * BLOCK_STEPS * 20
    pairs = paired_seconds(timed_step, SingleDevice(Launch()), pipeline, [], steps=steps)
    assert len(pairs) == 5
    assert share(pairs) < 0.7


def test_steps_that_find_no_room_are_left_out_and_the_model_is_put_back(pipeline):
    variable = keras.Variable(np.arange(3.0))

    def alone_step(iterator):
        variable.assign(variable + 1)
        raise WriteError("no room")

    def timed_step(iterator):
        raise RuntimeError("No step is made where not all can be.")

    with pytest.raises(NoRoomError, match="no room"):
        paired_seconds(
            timed_step,
            SingleDevice(Launch()),
            pipeline,
            [variable],
            steps=pipeline.last_step,
            without=[alone_step],
        )
    np.testing.assert_array_equal(variable.numpy(), np.arange(3.0))
