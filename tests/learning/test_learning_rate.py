import keras
import pytest

from tfunet.config.run import RunConfig
from tfunet.learning.learning_rate import WarmupStepDecay, learning_rate

FIXED = {"learning_rate": 0.1, "decay_factor": 0.5}


def test_constant_rate_stays_a_number_that_callbacks_can_change():
    plain, scaled = (
        learning_rate(RunConfig(scale_learning_rate=scales, **FIXED), 4, steps_per_epoch=10)
        for scales in (False, True)
    )
    assert (plain, scaled) == (0.1, pytest.approx(0.4))


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.1),  # the rate of one replica
        (5, 0.15),
        (10, 0.2),  # the scaled rate
        (29, 0.2),
        (30, 0.1),
        (50, 0.05),
    ],
)
def test_rate_warms_up_and_decays(step, rate):
    config = RunConfig(
        scale_learning_rate=True, warmup_epochs=1, decay_epochs=(3, 5), epochs=9, **FIXED
    )
    schedule = learning_rate(config, 2, steps_per_epoch=10)
    assert float(schedule(step)) == pytest.approx(rate)


def test_schedule_survives_saving():
    schedule = WarmupStepDecay(0.1, 0.2, 0, [7], 0.5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert [float(again(step)) for step in (0, 7)] == pytest.approx([0.2, 0.1])
