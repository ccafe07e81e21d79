"""The loss of a run: the one place that makes it of a configuration."""

import keras

from tfunet.config.run import RunConfig
from tfunet.learning import losses


def make_loss(config: RunConfig) -> keras.Loss:
    """Return the loss that a configuration names, with its options."""
    return losses.make(config.loss, config.loss_options)
