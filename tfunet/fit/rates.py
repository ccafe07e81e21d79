"""Learning rates that grow with the number of replicas: linear scaling, Goyal et al. 2017."""

import weakref
from typing import Any

import keras

from tfunet.inside import of_fit


@keras.saving.register_keras_serializable(package="tfunet")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of learning rates times a number."""

    def __init__(
        self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float
    ) -> None:
        self.schedule, self.factor = schedule, factor

    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            "factor": self.factor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ScaledSchedule":
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["factor"])


def scale_rates(factor: int) -> None:
    """Multiply the learning rate of each optimizer that a model is compiled with; for good."""
    scaled: weakref.WeakSet[Any] = weakref.WeakSet()

    def compile_scaled(compile_model: Any, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        compile_model(*args, **kwargs)
        optimizer = model.optimizer
        while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = optimizer.inner_optimizer  # The outer one has a rate that nothing uses.
        if optimizer is None or optimizer in scaled:
            return
        scaled.add(optimizer)
        rate = of_fit.rate_of(optimizer)
        if isinstance(rate, ScaledSchedule):  # The model was saved with it.
            rate = rate.schedule
        is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        optimizer.learning_rate = (
            ScaledSchedule(rate, factor) if is_schedule else float(rate.numpy()) * factor
        )

    # Where Keras defines it: a model whose class has its own is not compiled when it is loaded.
    trainer = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    of_fit.around(trainer, "compile", compile_scaled)
