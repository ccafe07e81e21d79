"""Learning rates that grow with the number of replicas."""

import keras
import pytest

from tfunet.fit.rates import ScaledSchedule, scale_rates

Decay = keras.optimizers.schedules.ExponentialDecay


@pytest.fixture(autouse=True)
def _scaled(monkeypatch):
    trainer = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    monkeypatch.setattr(trainer, "compile", trainer.compile)  # Undone after the test.
    scale_rates(4)


def model(optimizer, **settings):
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile(optimizer, "mse", **settings)
    return made


def rate(made):
    return float(made.optimizer.learning_rate)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: "sgd", 0.04),
        (lambda: keras.optimizers.Adam(0.5), 2.0),
        (lambda: keras.optimizers.SGD(Decay(0.5, 1, 0.1)), 2.0),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)), 2.0),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(Decay(0.5, 1, 0.1))),
            2.0,
        ),
    ],
    ids=["name", "number", "schedule", "scaled loss", "scaled loss, schedule"],
)
def test_rate_is_multiplied_once(make, expected):
    made = model(make())
    assert rate(made) == pytest.approx(expected)
    made.compile(made.optimizer, "mae")  # Again, as for the second part of a script.
    assert rate(made) == pytest.approx(expected)


def test_loss_scaling_that_keras_adds_keeps_the_rate():
    keras.config.set_dtype_policy("mixed_float16")  # Undone after the test.
    made = model(keras.optimizers.SGD(0.5))
    assert isinstance(made.optimizer, keras.optimizers.LossScaleOptimizer)
    assert rate(made) == pytest.approx(2.0)


@pytest.mark.parametrize("given", [0.5, Decay(0.5, 1, 0.1)], ids=["number", "schedule"])
def test_rate_of_a_model_that_was_saved_is_not_multiplied_again(given, tmp_path):
    made = model(keras.optimizers.SGD(given))
    made.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert rate(again) == pytest.approx(rate(made))


def test_schedule_is_multiplied_at_each_step_and_saved():
    schedule = ScaledSchedule(Decay(0.5, 1, 0.1), 4)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert [float(again(step)) for step in (0, 1)] == pytest.approx([2.0, 0.2])
