"""Makes the optimizer that a configuration names."""

from collections.abc import Mapping
from typing import Any

import keras

from tfunet.config.refs import call, resolve, unknown
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
    options = config.optimizer_options
    optimizer = call("optimizer", kind, options, ref=config.optimizer, learning_rate=rate)
    if not isinstance(optimizer, keras.Optimizer):
        raise ValueError(
            f"The optimizer {config.optimizer!r} is a {type(optimizer).__name__}; it must be a "
            "keras.Optimizer of Keras 3."
        )
    if config.precision == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def set_options(optimizer: keras.Optimizer, values: Mapping[str, float]) -> None:
    """Give an optimizer other options, as `optimizer_options.momentum`; other keys are left out.

    A step that is traced later uses them. Raises ValueError for one that it does not keep under
    this name.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # mixed_float16 wraps it.
    for name, value in values.items():
        option, _, entry = name.partition(".")
        if option != "optimizer_options":
            continue
        if not isinstance(getattr(inner, entry, None), int | float):
            raise ValueError(
                f"mutate in [tournament] changes {name}, and a {type(inner).__name__} keeps no "
                f"number {entry}. Leave it out of mutate."
            )
        setattr(inner, entry, value)


def _class(name: str) -> Any:
    if ":" in name:
        return resolve("optimizer", name, {}, keras.Optimizer, has_arguments=True)
    known = {
        key.lower(): value
        for key, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.Optimizer)
    }
    if name.lower() not in known:
        raise unknown("optimizer", name, sorted(known))
    return known[name.lower()]
