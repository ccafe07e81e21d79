"""How a model must be compiled for large-model support: into a graph, without XLA, and whole."""

import os

import keras
import tensorflow as tf


def check(model: keras.Model) -> None:
    """Raise ValueError for a model whose step has no graph, or one that XLA compiles."""
    if model.run_eagerly:
        raise ValueError(
            "Large-model support changes the graph of a step, and with run_eagerly=True there is "
            "none. Compile the model without it."
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


def build_optimizer(model: keras.Model) -> None:
    """Make the optimizer's variables, which are part of what a device holds.

    Where a step made them, TensorFlow would trace it, and we plan it, twice.
    """
    optimizer = getattr(model, "optimizer", None)  # of a model that is not compiled there is none
    if model.built and optimizer and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def _asks_for_xla(model: keras.Model) -> bool:
    """Whether the user, not Keras's own choice, wants XLA."""
    # Not get_compile_config(), which fails for losses and optimizers that cannot be serialised.
    config = getattr(model, "_compile_config", None)
    return config is not None and config.config.get("jit_compile") is True


def _forces_xla() -> str | None:
    """Return what has TensorFlow compile any model with XLA; None where nothing does."""
    if tf.config.optimizer.get_jit():
        return "tf.config.optimizer.set_jit"
    for flag in os.environ.get("TF_XLA_FLAGS", "").split():
        name, _, value = flag.lstrip("-").partition("=")
        if name == "tf_xla_auto_jit" and value not in ("", "-1", "0"):
            return f"TF_XLA_FLAGS={flag}"
    return None
