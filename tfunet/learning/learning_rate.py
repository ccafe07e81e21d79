"""The learning rate over steps: linear scaling, warm-up, step decay."""

from collections.abc import Sequence

import keras
from keras import ops

from tfunet.config.run import RunConfig


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


def learning_rate(
    config: RunConfig, num_replicas: int, steps_per_epoch: int
) -> float | WarmupStepDecay:
    """Return a number where the rate never changes by itself, else a schedule.

    A number can be changed by callbacks (ReduceLROnPlateau); a schedule cannot.
    """
    rate = config.learning_rate
    peak = rate * num_replicas if config.scale_learning_rate else rate
    if not config.warmup_epochs and not config.decay_epochs:
        return peak
    return WarmupStepDecay(
        start=rate,
        peak=peak,
        warmup_steps=round(config.warmup_epochs * steps_per_epoch),
        boundaries=[epoch * steps_per_epoch for epoch in config.decay_epochs],
        factor=config.decay_factor,
    )
