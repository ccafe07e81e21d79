import keras
import pytest

from tfunet.config.run import RunConfig
from tfunet.learning.learning_rate import WarmupFall, WarmupStepDecay, learning_rate

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


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # Warm-up to 0.2 in 10 steps, then 80 steps down; (share left) ** 0.9 for nnU-Net's.
        ("cosine", {0: 0.1, 5: 0.15, 10: 0.2, 50: 0.1, 70: 0.2 * 0.1464466, 90: 0.0, 99: 0.0}),
        ("polynomial", {0: 0.1, 10: 0.2, 50: 0.2 * 0.5**0.9, 82: 0.2 * 0.1**0.9, 90: 0.0}),
    ],
)
def test_rate_falls_to_nothing_along_a_curve(schedule, rates):
    config = RunConfig(
        scale_learning_rate=True,
        warmup_epochs=1,
        epochs=9,
        learning_rate_schedule=schedule,
        **FIXED,
    )
    made = learning_rate(config, 2, steps_per_epoch=10)
    assert isinstance(made, WarmupFall)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    for each in (made, again):
        got = {step: float(each(step)) for step in rates}
        assert got == pytest.approx(rates, abs=1e-7)
    of_steps = learning_rate(
        RunConfig(steps=40, learning_rate_schedule=schedule, learning_rate=1.0), 1, 10
    )
    assert float(of_steps(0)) == 1.0
    assert float(of_steps(20)) == pytest.approx({"cosine": 0.5, "polynomial": 0.5**0.9}[schedule])
    assert float(of_steps(40)) == 0.0


def test_schedules_that_cannot_be_are_refused():
    with pytest.raises(
        ValueError, match=r"Unknown learning_rate_schedule 'cosin'. Did you mean 'cosine'"
    ):
        RunConfig(learning_rate_schedule="cosin")
    with pytest.raises(ValueError, match="exclude each other"):
        RunConfig(learning_rate_schedule="cosine", decay_epochs=(2,))
    assert RunConfig(learning_rate_schedule="none") == RunConfig()
