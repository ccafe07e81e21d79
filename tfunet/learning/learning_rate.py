"""The learning rate over steps: linear scaling, warm-up, decay in steps or along a curve."""

import math
from collections.abc import Sequence

import keras
from keras import ops

from tfunet.config.run import RunConfig

POWER = 0.9


@keras.saving.register_keras_serializable(package="tfunet")
class WarmupStepDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from `start` to `peak`, then is multiplied by `factor` at each boundary.

    The linear scaling rule with gradual warm-up of Goyal et al. 2017, "Accurate, Large Minibatch
    SGD" (section 2.2).
    """

    def __init__(
        self,
        start: float,
        peak: float,
        warmup_steps: int,
        boundaries: Sequence[int] = (),
        factor: float = 0.1,
    ) -> None:
        self.start = start
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.boundaries = tuple(boundaries)
        self.factor = factor

    def __call__(self, step: int) -> keras.KerasTensor:
        position = ops.cast(step, "float32")
        share = ops.minimum(position / max(self.warmup_steps, 1), 1.0)
        rate = self.start + (self.peak - self.start) * share
        if not self.warmup_steps:
            rate = ops.convert_to_tensor(self.peak, dtype="float32")
        for boundary in self.boundaries:
            rate = ops.where(position >= boundary, rate * self.factor, rate)
        return rate

    def get_config(self) -> dict[str, object]:
        return {
            "start": self.start,
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "boundaries": list(self.boundaries),
            "factor": self.factor,
        }


@keras.saving.register_keras_serializable(package="tfunet")
class WarmupFall(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from `start` to `peak`, then falls along a curve to 0 at `last_step`.

    "cosine": half a wave (Loshchilov and Hutter 2017, "SGDR"). "polynomial": the share of the steps
    that are left to the power of 0.9, as nnU-Net (Isensee et al. 2021).
    """

    def __init__(
        self, start: float, peak: float, warmup_steps: int, last_step: int, curve: str
    ) -> None:
        self.start = start
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.last_step = last_step
        self.curve = curve

    def __call__(self, step: int) -> keras.KerasTensor:
        position = ops.cast(step, "float32")
        falling = max(self.last_step - self.warmup_steps, 1)
        left = 1.0 - ops.clip((position - self.warmup_steps) / falling, 0.0, 1.0)
        if self.curve == "cosine":
            rate = self.peak * (1.0 - ops.cos(math.pi * left)) / 2.0
        else:
            rate = self.peak * left**POWER
        if not self.warmup_steps:
            return rate
        rising = self.start + (self.peak - self.start) * position / self.warmup_steps
        return ops.where(position < self.warmup_steps, rising, rate)

    def get_config(self) -> dict[str, object]:
        return {
            "start": self.start,
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "last_step": self.last_step,
            "curve": self.curve,
        }


def learning_rate(
    config: RunConfig, num_replicas: int, steps_per_epoch: int
) -> float | WarmupStepDecay | WarmupFall:
    """Return a number where the rate never changes by itself, else a schedule.

    A number can be changed by callbacks (ReduceLROnPlateau); a schedule cannot.
    """
    rate = config.learning_rate
    peak = rate * num_replicas if config.scale_learning_rate else rate
    if config.learning_rate_schedule is not None:
        return WarmupFall(
            start=rate,
            peak=peak,
            warmup_steps=round(config.warmup_epochs * steps_per_epoch),
            last_step=config.steps or config.epochs * steps_per_epoch,
            curve=config.learning_rate_schedule,
        )
    if not config.warmup_epochs and not config.decay_epochs:
        return peak
    return WarmupStepDecay(
        start=rate,
        peak=peak,
        warmup_steps=round(config.warmup_epochs * steps_per_epoch),
        boundaries=[epoch * steps_per_epoch for epoch in config.decay_epochs],
        factor=config.decay_factor,
    )
