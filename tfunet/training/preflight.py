"""Checks a model on one device before training, and refuses what would train wrongly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfunet.graph.output_kind import FREE, PROBABILITIES, is_made_of
from tfunet.graph.traced import traced
from tfunet.learning.losses import MixedSamplesError, per_sample
from tfunet.learning.outputs import Outputs
from tfunet.learning.region_loss import RegionLoss
from tfunet.models.keras_errors import cause_line
from tfunet.swap import LargeModelSupport


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Facts about a model that passed the checks."""

    parameters: int
    trainable_parameters: int
    weight_bytes: int
    output_shape: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters ({self.trainable_parameters:,} trainable, "
            f"{self.weight_bytes / 2**20:.1f} MiB), output {self.output_shape} a sample"
        )


def inspect(
    model: keras.Model,
    loss: keras.Loss,
    *,
    image: np.ndarray,
    truth: np.ndarray,
    outputs: Outputs | None,
    targets: Sequence[str] = (),
    support: LargeModelSupport | None = None,
    run: Callable[..., tf.Tensor] | None = None,
) -> Preflight:
    """Check the model and its loss with one batch; neither changes.

    The truth is a mask with labels, which `outputs` stand for, or the numbers of `targets`, or
    that of arrays. `run` calls a forward pass with an image on every device, and returns the whole
    output; by default one device has it all.

    Raises ValueError for an output that does not fit the truth, for probabilities instead of
    logits, and for a loss that expects probabilities, or the other kind of truth.
    """
    output, kinds = _forward(model, image, support, run)
    if targets:
        _check_numbers(tuple(output.shape), truth.shape, targets)
    elif outputs is not None:
        _check_shape(tuple(output.shape), truth.shape, outputs)
    if not model.trainable_variables:
        raise ValueError("The model has no trainable weights; there is nothing to train.")
    if not np.isfinite(output).all():
        raise ValueError(
            "The model's output for the first batch holds NaN or infinite values before any "
            "training. Check the model's weights, and how the intensities are normalised."
        )
    _check_reduction(loss.each if isinstance(loss, RegionLoss) else loss)
    if targets:
        _check_loss_of_numbers(loss, targets)
    elif outputs is None:
        _check_loss_of_arrays(loss, truth, output)
    else:
        _check_logits(output, kinds, outputs)
        if isinstance(loss, RegionLoss):
            _check_loss(loss.each, num_classes=2, channels=1)
        else:
            _check_loss(loss, num_classes=outputs.num_probabilities, channels=output.shape[-1])
    _check_samples(loss, truth, output)
    weights = model.trainable_weights + model.non_trainable_weights
    return Preflight(
        parameters=model.count_params(),
        trainable_parameters=sum(int(np.prod(weight.shape)) for weight in model.trainable_weights),
        weight_bytes=sum(int(np.prod(weight.shape)) * 4 for weight in weights),
        output_shape=tuple(output.shape[1:]),
    )


def _forward(
    model: keras.Model,
    image: np.ndarray,
    support: LargeModelSupport | None,
    run: Callable[..., tf.Tensor] | None,
) -> tuple[np.ndarray, frozenset[str]]:
    """Return the output, and the kinds of op that it is made of."""

    def forward(one: tf.Tensor) -> Any:
        return model(one, training=False)

    # A graph frees each output after its last reader. Keras's eager call holds the outputs of all
    # layers at once: more than a step with large-model support takes.
    whole = traced(forward)

    def kinds() -> frozenset[str]:
        graph = whole.get_concrete_function(tf.constant(image)).graph
        return is_made_of(graph.outputs[0])

    def on_devices(forward: Callable[..., Any]) -> Callable[..., Any]:
        return traced(forward if run is None else partial(run, forward))

    if support is None:
        look = whole if run is None else on_devices(forward)
        return _output(look, model, image), kinds()
    planned = support.evaluating(forward, what="the look at the model")
    with support.on(model, trains=False):
        look = on_devices(planned)
        return _output(support.guarding(look, evaluates=True), model, image), kinds()


def _output(look: Callable[..., Any], model: keras.Model, image: np.ndarray) -> np.ndarray:
    wanted = getattr(model, "input_shape", None)
    try:
        output = look(tf.constant(image))
    except (OSError, tf.errors.ResourceExhaustedError):
        raise  # Memory or disk is full; the batch is not at fault.
    except Exception as error:
        raise ValueError(
            f"The model cannot take a batch of shape {image.shape} (it expects {wanted}): "
            f"{cause_line(error).rstrip('.')}. Set patch to the size that it takes, or check the "
            "channels."
        ) from error
    if not tf.is_tensor(output):
        raise ValueError(
            f"The model must return one tensor of logits, got {type(output).__name__} with "
            f"{len(output)} entries. Return only the tensor to compare with the mask."
        )
    if output.dtype != tf.float32:
        raise ValueError(
            f"The model's logits are {output.dtype.name}; the loss needs float32. Give its last "
            "layer dtype='float32'."
        )
    return output.numpy()


def _check_shape(output: tuple[int, ...], mask: tuple[int, ...], outputs: Outputs) -> None:
    if len(output) == 2:
        raise ValueError(
            f"The model gives {output[-1]} numbers for a sample, and the data set has masks of "
            f"shape {mask[1:]}. Use a model that gives logits for each voxel, such as 'unet', or a "
            "data set with numbers to predict."
        )
    if output[:-1] != mask:
        raise ValueError(
            f"The model's output has shape {output}, and the masks have {mask}. Without its last "
            "axis (the classes) the output must have the shape of the masks. Use padding='same', "
            "or a patch whose sizes are divisible by the network's pooling."
        )
    if output[-1] not in outputs.allowed_logits:
        raise ValueError(
            f"The model's output has {output[-1]} channels; the data has {outputs}. "
            f"Allowed: {' or '.join(map(str, outputs.allowed_logits))}."
        )


def _check_numbers(output: tuple[int, ...], truth: tuple[int, ...], targets: Sequence[str]) -> None:
    if output != truth:
        raise ValueError(
            f"The model's output has shape {output}; the data set has no masks but {len(targets)} "
            f"numbers to predict ({', '.join(targets)}), so it must be {truth}. Use a model that "
            "gives as many numbers as num_classes says, such as 'cosmoflow'."
        )


def _check_loss_of_numbers(loss: keras.Loss, targets: Sequence[str]) -> None:
    is_for_masks = type(loss).__module__.startswith("tfunet.") or "from_logits" in loss.get_config()
    if is_for_masks:
        raise ValueError(
            f"The loss {loss.name!r} compares with masks, and the data set has numbers to predict "
            f"({', '.join(targets)}). Set loss = 'MeanSquaredError' or 'MeanAbsoluteError'."
        )


def _check_loss_of_arrays(loss: keras.Loss, truth: np.ndarray, output: np.ndarray) -> None:
    if type(loss).__module__.startswith("tfunet."):
        is_whole = truth.dtype.kind in "iu"
        instead = "SparseCategoricalCrossentropy" if is_whole else "MeanSquaredError"
        raise ValueError(
            f"The loss {loss.name!r} compares with masks, and y is an array of {truth.dtype} "
            f"{truth.shape[1:]} a sample. Name a loss of Keras, such as loss = {instead!r}; one "
            "that takes logits also needs loss_options.from_logits = true."
        )


def _check_logits(output: np.ndarray, kinds: frozenset[str], outputs: Outputs) -> None:
    """Refuse probabilities, by what made them and, where that does not tell, by their values."""
    if kinds <= FREE:
        return
    inside = bool((output >= 0).all() and (output <= 1).all() and output.any())
    sums = bool(np.allclose(output.sum(-1), 1, atol=1e-3))
    has_sigmoid = outputs.function == "sigmoid" or output.shape[-1] == 1
    activation = next(iter(kinds & PROBABILITIES), "").lower()
    if kinds <= PROBABILITIES or (inside and (sums or has_sigmoid)):
        raise ValueError(
            "The model's output looks like probabilities"
            + (f" (its last layer has the activation {activation!r})" if activation else "")
            + ". Losses and scores need logits, and probabilities train wrongly under mixed "
            "precision. Remove the last softmax or sigmoid."
        )


def _check_samples(loss: keras.Loss, truth: np.ndarray, output: np.ndarray) -> None:
    """Raise ValueError for a loss that cannot be computed, or mixes the samples of a batch.

    Shapes that do not fit may be broadcast: a mask (1, 64, 64) times logits (1, 64, 64, 1) has
    the shape (1, 64, 64, 64). In a batch of two different samples this fails, or gives the first
    another loss than it has alone.
    """

    def losses(number: int) -> np.ndarray:
        masks, logits = ([array, _another(array)][:number] for array in (truth, output))
        values = per_sample(loss, tf.concat(masks, 0), tf.concat(logits, 0))
        return keras.ops.convert_to_numpy(values)

    each = loss.each if isinstance(loss, RegionLoss) else loss
    if type(each).__module__.startswith("tfunet."):
        losses(1)
        return
    shapes = f"y_true {truth.shape} and y_pred {output.shape}, batch first"
    try:
        alone, pair = losses(1), losses(2)
    except MixedSamplesError:
        raise
    except tf.errors.ResourceExhaustedError:
        return  # Two samples may be too large for a device that a step on one fits.
    except Exception as error:
        raise ValueError(
            f"The loss {loss.name!r} cannot be computed for {shapes}: "
            f"{cause_line(error).rstrip('.')}. Check how it uses their shapes."
        ) from error
    is_random = not np.array_equal(alone, losses(1))
    if not is_random and not np.allclose(pair[:1], alone, rtol=1e-3, atol=1e-6):
        raise ValueError(
            f"The loss {loss.name!r} gives a sample {float(alone[0]):g} alone and "
            f"{float(pair[0]):g} in a batch of two. Each sample must have a loss of its own. For "
            f"one sample its call gets {shapes}: a product of shapes that do not fit mixes them, "
            "so remove the last axis of y_pred, or add one to y_true."
        )


def _another(array: np.ndarray) -> np.ndarray:
    """Return another sample; a label for a whole sample stays."""
    return np.flip(array, tuple(range(1, array.ndim))[:1])


# Losses of Keras after which a logit of 0 would not tell background from foreground.
OF_NUMBERS = (
    *("CosineSimilarity", "Huber", "KLDivergence", "LogCosh", "MeanAbsoluteError", "Poisson"),
    *("MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogarithmicError"),
)
# Losses of Keras for one-hot masks, and those of tfunet for labels.
OF_LABELS = {"CategoricalCrossentropy": "crossentropy", "Dice": "dice", "Tversky": "tversky"}


def _check_loss(loss: keras.Loss, num_classes: int, channels: int) -> None:
    config: dict[str, Any] = loss.get_config()
    # from_logits is not what is wrong with a loss for one-hot masks.
    if config.get("from_logits") is False and type(loss).__name__ not in OF_LABELS:
        raise ValueError(
            f"The loss {loss.name!r} takes probabilities and the model gives logits. Set "
            "loss_options.from_logits = true."
        )
    if not type(loss).__module__.startswith("keras"):
        return
    if type(loss).__name__ in OF_NUMBERS:
        raise ValueError(
            f"keras.losses.{type(loss).__name__} compares numbers, and the model gives logits for "
            "masks. Set loss = 'crossentropy' or 'dice_crossentropy'."
        )
    if type(loss).__name__ == "SparseCategoricalCrossentropy" and channels == 1:
        raise ValueError(
            f"keras.losses.{type(loss).__name__} needs a logit for each of {num_classes} classes, "
            "and the model gives one. Set loss = 'crossentropy', which takes both."
        )
    ours = OF_LABELS.get(type(loss).__name__)
    if ours and channels > 1:
        raise ValueError(
            f"keras.losses.{type(loss).__name__} wants one-hot masks; the masks here are labels "
            f"0..{num_classes - 1}. Set loss = {ours!r}, which takes labels."
        )


def _check_reduction(loss: keras.Loss) -> None:
    config: dict[str, Any] = loss.get_config()
    if config.get("reduction", "sum_over_batch_size") not in ("sum_over_batch_size", "mean"):
        raise ValueError(
            f"The loss {loss.name!r} has reduction={config['reduction']!r}: its gradient would "
            "grow with the batch of a replica. Use reduction = 'sum_over_batch_size'."
        )
