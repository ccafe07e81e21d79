"""Segmentation losses.

They give one value for each sample, so that the mean over samples is the same on any number of
devices.

Masks are integer labels (batch, *spatial). Predictions are logits (batch, *spatial, classes), or
one channel of logits for foreground against background.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfunet.config.refs import call, near_match, resolve


class WholeSample:
    """A sample whose voxels are all on one device: what a loss adds up is complete.

    If a sample is split over devices, another object with these methods puts the parts together.
    A loss whose `call` is `of_parts` of this one is exact in both cases.
    """

    def mean(self, means: Any) -> Any:
        """Return the means over all voxels, of those over this device's."""
        return means

    def sums(self, *sums: Any) -> Sequence[Any]:
        """Return the sums over all voxels, of those over this device's; of one shape."""
        return sums


WHOLE = WholeSample()

LOSSES = {
    "crossentropy": "tfunet.learning.losses:CrossEntropy",
    "dice": "tfunet.learning.losses:Dice",
    "dice_crossentropy": "tfunet.learning.losses:DiceCrossEntropy",
    "tversky": "tfunet.learning.losses:Tversky",
    "focal": "tfunet.learning.losses:Focal",
}


def make(name: str, options: dict[str, Any]) -> keras.Loss:
    """Return the loss that a configuration names: of LOSSES, of keras.losses, or the user's."""
    if name not in LOSSES and ":" not in name:
        kind = getattr(keras.losses, name, None)
        if not (isinstance(kind, type) and issubclass(kind, keras.Loss)):
            known = [*LOSSES, *(key for key in vars(keras.losses) if key[0].isupper())]
            raise ValueError(
                f"Unknown loss {name!r}.{near_match(name, known)} Known: {', '.join(known)}; "
                "or write 'package.module:Class'."
            )
        return call("loss", kind, options)
    loss = call("loss", resolve("loss", name, LOSSES, keras.Loss), options, ref=name)
    if not isinstance(loss, keras.Loss):
        raise ValueError(f"The loss {name!r} is a {type(loss).__name__}; it must be a keras.Loss.")
    return loss


def per_sample(loss: keras.Loss, mask: Any, logits: Any) -> Any:
    """Return the loss of each sample of a batch, (batch,): the mean over the sample's voxels.

    Raises ValueError for a loss that mixes the samples of a batch into one number.
    """
    values = loss.call(ops.cast(mask, loss.dtype), ops.cast(logits, loss.dtype))
    if len(values.shape) == 0 or values.shape[0] != mask.shape[0]:
        raise ValueError(
            f"The loss {loss.name!r} gives the shape {tuple(values.shape)} for {mask.shape[0]} "
            "samples. Its call must give a value for each sample (or voxel): a number for the "
            "whole batch would depend on how the batch is divided among devices."
        )
    return ops.mean(ops.reshape(values, (mask.shape[0], -1)), axis=-1)


def class_probabilities(logits: Any) -> Any:
    """Return (batch, voxels, classes): softmax, or sigmoid and its complement for one channel."""
    logits = _flat(ops.cast(logits, "float32"))
    if logits.shape[-1] == 1:
        foreground = ops.sigmoid(logits)
        return ops.concatenate([1.0 - foreground, foreground], axis=-1)
    return ops.softmax(logits, axis=-1)


def _flat(values: Any) -> Any:
    shape = ops.shape(values)
    return ops.reshape(values, (shape[0], -1, values.shape[-1]))


def _one_hot(mask: Any, num_classes: int) -> Any:
    mask = ops.reshape(ops.cast(mask, "int32"), (ops.shape(mask)[0], -1))
    return ops.one_hot(mask, num_classes, dtype="float32")


def _voxel_crossentropy(mask: Any, logits: Any) -> Any:
    logits = _flat(ops.cast(logits, "float32"))
    if logits.shape[-1] == 1:
        logits = ops.concatenate([ops.zeros_like(logits), logits], axis=-1)
    mask = ops.reshape(ops.cast(mask, "int32"), (ops.shape(mask)[0], -1))
    return ops.sparse_categorical_crossentropy(mask, logits, from_logits=True)


@keras.saving.register_keras_serializable(package="tfunet")
class CrossEntropy(keras.Loss):
    """Mean cross-entropy over the voxels of a sample."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.of_parts(y_true, y_pred, WHOLE)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        return sample.mean(ops.mean(_voxel_crossentropy(y_true, y_pred), axis=-1))


@keras.saving.register_keras_serializable(package="tfunet")
class Tversky(keras.Loss):
    """One minus the Tversky index, per sample and class, then averaged over classes.

    Salehi et al. 2017, "Tversky loss function for image segmentation", equation 3. With alpha =
    beta = 0.5 it is the Dice loss of Milletari et al. 2016 with plain sums. `smooth` voxels are
    added to numerator and denominator; a class that is absent from a sample and from its prediction
    costs nothing.
    """

    def __init__(
        self,
        alpha: float = 0.3,
        beta: float = 0.7,
        background: bool = False,
        smooth: float = 1.0,
        name: str = "tversky",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if alpha < 0 or beta < 0 or smooth <= 0:
            raise ValueError(
                "alpha and beta must not be negative and smooth must be positive, got "
                f"{alpha}, {beta}, {smooth}."
            )
        self.alpha = alpha
        self.beta = beta
        self.background = background
        self.smooth = smooth

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.of_parts(y_true, y_pred, WHOLE)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        probability = class_probabilities(y_pred)
        truth = _one_hot(y_true, probability.shape[-1])
        if not self.background:
            probability, truth = probability[..., 1:], truth[..., 1:]
        hit, predicted, true = sample.sums(
            ops.sum(probability * truth, axis=1),
            ops.sum(probability, axis=1),
            ops.sum(truth, axis=1),
        )
        false_positive = predicted - hit
        false_negative = true - hit
        bottom = hit + self.alpha * false_positive + self.beta * false_negative
        return 1.0 - ops.mean((hit + self.smooth) / (bottom + self.smooth), axis=-1)

    def get_config(self) -> dict[str, Any]:
        options = {key: getattr(self, key) for key in ("alpha", "beta", "background", "smooth")}
        return {**super().get_config(), **options}


@keras.saving.register_keras_serializable(package="tfunet")
class Dice(keras.Loss):
    """One minus soft Dice, per sample and class, then averaged over classes.

    Milletari et al. 2016, "V-Net", with plain instead of squared sums. keras.losses.Dice
    flattens batch and classes into one number by default, so that its value depends on how a
    batch is divided among devices.
    """

    def __init__(
        self, background: bool = False, smooth: float = 1.0, name: str = "dice", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self._overlap = Tversky(0.5, 0.5, background=background, smooth=smooth)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.of_parts(y_true, y_pred, WHOLE)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        return self._overlap.of_parts(y_true, y_pred, sample)

    def get_config(self) -> dict[str, Any]:
        options = {"background": self._overlap.background, "smooth": self._overlap.smooth}
        return {**super().get_config(), **options}


@keras.saving.register_keras_serializable(package="tfunet")
class DiceCrossEntropy(Dice):
    """Dice plus mean cross-entropy, with equal weights (Isensee et al. 2021, nnU-Net)."""

    def __init__(self, name: str = "dice_crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        crossentropy = sample.mean(ops.mean(_voxel_crossentropy(y_true, y_pred), axis=-1))
        return super().of_parts(y_true, y_pred, sample) + crossentropy


@keras.saving.register_keras_serializable(package="tfunet")
class Focal(keras.Loss):
    """Cross-entropy with easy voxels weighted down by (1 - p)^gamma; a gamma of 0 weights none.

    Lin et al. 2017, "Focal loss for dense object detection", equation 4.
    """

    def __init__(self, gamma: float = 2.0, name: str = "focal", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        if gamma < 0:
            raise ValueError(f"gamma must not be negative, got {gamma}.")
        self.gamma = gamma

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.of_parts(y_true, y_pred, WHOLE)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        crossentropy = _voxel_crossentropy(y_true, y_pred)
        weighted = (1.0 - ops.exp(-crossentropy)) ** self.gamma * crossentropy
        return sample.mean(ops.mean(weighted, axis=-1))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gamma": self.gamma}
