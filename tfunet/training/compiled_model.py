"""The model of a configuration, compiled and built, with metrics that take its output."""

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfunet.config.run import RunConfig
from tfunet.data.source import DataSource
from tfunet.data.task import Task
from tfunet.inside.of_keras import build_metrics
from tfunet.learning import optimizers
from tfunet.learning.logit_metrics import of_logits
from tfunet.learning.own_metric import make_own, of_batches
from tfunet.machine.device import device_bytes
from tfunet.models.initial_weights import load_initial_weights
from tfunet.models.keras_errors import cause_line
from tfunet.models.make import make_model
from tfunet.process.full_memory import weighing
from tfunet.swap import LargeModelSupport


def unheard(line: str) -> None:
    """Print no line."""


def compiled_model(
    task: Task,
    loss: keras.Loss,
    *,
    num_replicas: int = 1,
    steps_per_epoch: int = 1,
    metrics: Sequence[str] = (),
    image_shape: tuple[int, ...] | None = None,
    initial_weights: str | None = None,
    support: LargeModelSupport | None = None,
    say: Callable[[str], None] = unheard,
) -> keras.Model:
    """Return the model of a configuration, compiled and built; by default for its patch.

    `metrics` are names of Keras metrics and references to the user's own, `initial_weights` a file
    of weights to begin with, and `say` is told what users should know. `support` takes weights and
    states off the device that do not fit.
    """
    config = task.config
    with weighing(None), nullcontext() if support is None else support.making():
        model = make_model(
            config.model,
            image_shape=image_shape or (*task.patch, task.source.channels),
            num_classes=task.num_outputs,
            is_free=task.source.samples is not None,
            options=config.model_options,
        )
    if initial_weights is not None:
        say(load_initial_weights(model, initial_weights))
    with weighing_model(model, config):
        compile_model(
            model,
            optimizers.make(config, num_replicas, steps_per_epoch),
            loss=loss,
            metrics=batch_metrics(model, task.source, metrics, loss),
            say=say,
        )
        if config.zero:
            return model  # Without the state of its optimizer, which devices share out.
        if support is not None:
            support.take_off(model)
        else:
            model.optimizer.build(model.trainable_variables)
    return model


def weighing_model(model: keras.Model, config: RunConfig) -> AbstractContextManager[None]:
    """Say in errors of full memory where the weights of a model, in one device, do not fit."""
    sizes = [math.prod(weight.shape) for weight in model.trainable_variables]
    return weighing(sum(sizes) * tf.float32.size, config.optimizer, device_bytes())


def batch_metrics(
    model: keras.Model, source: DataSource, names: Sequence[str], loss: keras.Loss
) -> list[Any]:
    """Return the Keras metrics with these names, and the user's, for the output of a model.

    Without masks the loss says whether outputs are logits.
    """
    takes_logits = bool(loss.get_config().get("from_logits", False))
    named = [name for name in names if ":" not in name]
    own = [make_own(name) for name in names if ":" in name]
    if not source.has_masks and not takes_logits:
        return [*named, *own]
    shape = getattr(model, "output_shape", None)
    return [*of_logits(named, shape[-1] if isinstance(shape, tuple) else None), *own]


def compile_model(
    model: keras.Model,
    optimizer: keras.Optimizer,
    *,
    loss: keras.Loss,
    metrics: Sequence[Any],
    say: Callable[[str], None] = unheard,
) -> None:
    """Compile a model; ValueError where a `compile` of its own does not take what Keras's does.

    `say` is told if the model came compiled.
    """
    if model.compiled:
        say(
            f"The model came compiled, with {type(model.optimizer).__name__}. The run does not use "
            "its optimizer, loss and metrics, but those of its own keys: optimizer, learning_rate, "
            "loss and metrics."
        )
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "loss": loss,
        "metrics": list(metrics) or None,
        "jit_compile": False,
        "auto_scale_loss": False,
    }
    own = inspect.signature(model.compile)
    advice = (
        "Let it take these and pass them to super().compile(...), and make further optimizers and "
        "losses in __init__."
    )
    try:
        own.bind(**settings)
    except TypeError as error:
        raise ValueError(
            f"The model's own compile{own} cannot be called ({error}). tfunet calls compile("
            f"{', '.join(f'{key}=...' for key in settings)}). {advice}"
        ) from error
    model.compile(**settings)
    for key in ("optimizer", "loss"):
        if getattr(model, key, None) is not settings[key]:
            raise ValueError(
                f"The model's own compile{own} does not use the {key} that it is given. {advice}"
            )
    # Files of the network tell nothing of this, so that Keras loads them without tfunet's losses.
    object.__setattr__(model, "get_compile_config", dict)


def make_metrics(
    model: keras.Model, images: tf.Tensor, truth: tf.Tensor, names: Sequence[str]
) -> None:
    """Make the variables of compiled metrics, as `fit` does: replicas cannot make them.

    Raises ValueError for metrics that do not fit the model's output.
    """
    try:
        build_metrics(model, images, truth)
    except Exception as error:
        if not of_batches(names):
            raise
        raise ValueError(
            f"metrics={list(names)}: those of Keras cannot be computed from masks of shape "
            f"{tuple(truth.shape)} and the model's logits: {cause_line(error).rstrip('.')}. Many "
            "of them take a model with one logit. Metrics of whole cases, such as 'dice' and "
            "'hd95', fit every model."
        ) from error
