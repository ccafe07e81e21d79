"""Makes the optimizer that a configuration names."""

from typing import Any

import keras

from tfunet.config.refs import call, near_match, resolve
from tfunet.config.run import RunConfig
from tfunet.learning.learning_rate import learning_rate


def make(config: RunConfig, num_replicas: int, steps_per_epoch: int) -> keras.Optimizer:
    """Return the optimizer with its learning rate, not yet built.

    With precision mixed_float16 it scales the loss (keras.optimizers.LossScaleOptimizer).
    """
    rate = learning_rate(config, num_replicas, steps_per_epoch)
    kind = _class(config.optimizer)
    if config.optimizer_options.get("gradient_accumulation_steps"):
        raise ValueError(
            "Set accumulation= instead of optimizer_options.gradient_accumulation_steps: it "
            "communicates once a step, under every backend."
        )
    optimizer = call(
        "optimizer", kind, config.optimizer_options, ref=config.optimizer, learning_rate=rate
    )
    if not isinstance(optimizer, keras.Optimizer):
        raise ValueError(
            f"The optimizer {config.optimizer!r} is a {type(optimizer).__name__}; it must be a "
            "keras.Optimizer of Keras 3."
        )
    if config.precision == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def _class(name: str) -> Any:
    if ":" in name:
        return resolve("optimizer", name, {}, keras.Optimizer, has_arguments=True)
    known = {
        key.lower(): value
        for key, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.Optimizer)
    }
    if name.lower() not in known:
        raise ValueError(
            f"Unknown optimizer {name!r}.{near_match(name, known)} Known: "
            f"{', '.join(sorted(known))}; or write 'package.module:Class'."
        )
    return known[name.lower()]
