"""The compiled model: what it must be for large-model support, and how its steps are replaced."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfunet.inside.of_keras import compile_config

# The steps of a Keras model, and the functions that run them.
STEPS = {
    "train_step": "train_function",
    "test_step": "test_function",
    "predict_step": "predict_function",
}


def check(model: keras.Model) -> None:
    """Raise ValueError for a model whose step has no graph, or one that XLA compiles."""
    if model.run_eagerly:
        raise ValueError(
            "Large-model support changes the graph of a step, and with run_eagerly=True there is "
            "no graph. Compile the model without it."
        )
    if _asks_for_xla(model):
        raise ValueError(
            "Large-model support cannot move tensors out of a step that XLA compiles as a whole. "
            "Compile the model without jit_compile=True."
        )
    forced = _forces_xla()
    if forced is not None:
        raise ValueError(
            f"Large-model support cannot move tensors out of what XLA compiles as a whole, and "
            f"{forced} has it compile any model. Train without it."
        )


def replace_steps(
    model: keras.Model, steps: Mapping[str, Callable[..., Any]]
) -> Callable[[], None]:
    """Replace a model's steps, by the names of `STEPS`, and turn its jit_compile off.

    Returns what restores the model, and has it make its functions anew.
    """
    jit_compile = model.jit_compile
    users_steps = {step: vars(model)[step] for step in STEPS if step in vars(model)}

    def restore() -> None:
        for step, function in STEPS.items():
            vars(model).pop(step, None)
            vars(model)[function] = None
        vars(model).update(users_steps)
        model.jit_compile = jit_compile

    vars(model).update(steps)
    model.jit_compile = False
    return restore


def _asks_for_xla(model: keras.Model) -> bool:
    """Whether the user asks for XLA, as opposed to Keras's own choice."""
    # Not get_compile_config(): it fails for losses and optimizers that cannot be serialised.
    config = compile_config(model)
    return config is not None and config.config.get("jit_compile") is True


def _forces_xla() -> str | None:
    """Return the setting with which TensorFlow compiles any model with XLA; None if there is
    none."""
    if tf.config.optimizer.get_jit():
        return "tf.config.optimizer.set_jit"
    for flag in os.environ.get("TF_XLA_FLAGS", "").split():
        name, _, value = flag.lstrip("-").partition("=")
        if name == "tf_xla_auto_jit" and value not in ("", "-1", "0"):
            return f"TF_XLA_FLAGS={flag}"
    return None
