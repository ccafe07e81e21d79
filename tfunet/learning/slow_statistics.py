"""Tells of batch normalisation whose statistics a training is too short for."""

import keras
import numpy as np

from tfunet.inside.of_keras import all_layers

# With Keras's own momentum of 0.99, a few hundred steps are enough.
USUAL_MOMENTUM = 0.99
# A share of the values that the statistics begin with, below which they say nothing any more.
LEAST_SHARE = 0.1


def slow_statistics(model: keras.Model, num_steps: int) -> str:
    """Return a warning about statistics that training is too short for; "" for none.

    Training normalises by the batch, evaluation by moving statistics. These keep momentum ** steps
    of the mean 0 and variance 1 that they begin with.
    """
    slow = [
        layer
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and layer.momentum > USUAL_MOMENTUM
        and layer.momentum**num_steps > LEAST_SHARE
        and _is_new(layer)
    ]
    if not slow:
        return ""
    momentum = max(layer.momentum for layer in slow)
    return (
        f"warning: After {num_steps} steps, the statistics of {len(slow)} batch normalisations "
        f"still hold {momentum**num_steps:.0%} of what they begin with, since their momentum is "
        f"{momentum:g}. Scores are computed with them, and will be worse than the network. Train "
        "longer, give pretrained weights, or lower the momentum."
    )


def _is_new(layer: keras.layers.BatchNormalization) -> bool:
    mean, variance = (
        keras.ops.convert_to_numpy(values) for values in (layer.moving_mean, layer.moving_variance)
    )
    return bool(np.all(mean == 0) and np.all(variance == 1))
