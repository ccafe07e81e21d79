"""Segmentation losses.

They give one value for each sample, so that the mean over samples is the same on any number of
devices.

Masks are integer labels (batch, *spatial). Predictions are logits (batch, *spatial, classes), or
one channel of logits for foreground against background.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfunet.config.refs import call, resolve, unknown
from tfunet.learning import LOSSES


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

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def make(name: str, options: dict[str, Any]) -> keras.Loss:
    """Return the loss that a configuration names: of LOSSES, of keras.losses, or the user's."""
    if name not in LOSSES and ":" not in name:
        kind = _of_keras(name)
        if not (isinstance(kind, type) and issubclass(kind, keras.Loss)):
            known = [*LOSSES, *(key for key in vars(keras.losses) if key[0].isupper())]
            raise unknown("loss", name, known)
        return in_own_dtype(call("loss", kind, options))
    kind = resolve("loss", name, LOSSES, keras.Loss)
    if inspect.isfunction(kind) and _takes_masks(kind, options):
        raise ValueError(
            f"The loss {name!r} is a function of masks and logits. Name a class: class Own"
            "(keras.Loss): def call(self, y_true, y_pred): return your_function(y_true, y_pred)."
        )
    loss = call("loss", kind, options, ref=name)
    if not isinstance(loss, keras.Loss):
        raise ValueError(f"The loss {name!r} is a {type(loss).__name__}; it must be a keras.Loss.")
    return in_own_dtype(loss)


def _of_keras(name: str) -> Any:
    """Return the loss of Keras with this name, as "MeanSquaredError" or "mean_squared_error"."""
    plain = {key.lower(): kind for key, kind in vars(keras.losses).items() if key[0].isupper()}
    return (
        getattr(keras.losses, name, None)
        if name[:1].isupper()
        else plain.get(name.replace("_", ""))
    )


def in_own_dtype(loss: keras.Loss) -> keras.Loss:
    """Have a loss's `call` return values of its dtype, as a call of the loss does in Keras."""
    own_call = loss.call

    def in_dtype(y_true: Any, y_pred: Any) -> Any:
        return ops.convert_to_tensor(own_call(y_true, y_pred), dtype=loss.dtype)

    object.__setattr__(loss, "call", in_dtype)
    return loss


def _takes_masks(function: Any, options: dict[str, Any]) -> bool:
    """Whether a function needs two arguments more than its options."""
    parameters = inspect.signature(function).parameters.values()
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind in POSITIONAL
    ]
    return len([parameter for parameter in needed if parameter.name not in options]) >= 2


class MixedSamplesError(ValueError):
    """A loss gives one number for several samples."""


def per_sample(loss: keras.Loss, mask: Any, logits: Any) -> Any:
    """Return the loss of each sample of a batch, (batch,) in float32: the mean over its voxels.

    Raises MixedSamplesError for a loss that mixes the samples of a batch into one number.
    """
    values = loss.call(ops.cast(mask, loss.dtype), ops.cast(logits, loss.dtype))
    if len(values.shape) == 0 or values.shape[0] != mask.shape[0]:
        raise MixedSamplesError(
            f"The loss {loss.name!r} gives the shape {tuple(values.shape)} for {mask.shape[0]} "
            "samples. Its call must give a value for each sample (or voxel): a number for the "
            "whole batch would depend on how the batch is divided among devices."
        )
    return ops.mean(ops.reshape(ops.cast(values, "float32"), (mask.shape[0], -1)), axis=-1)


def class_probabilities(logits: Any) -> Any:
    """Return (batch, voxels, classes): softmax, or sigmoid and its complement for one channel."""
    logits = _flat(ops.cast(logits, keras.config.floatx()))
    if logits.shape[-1] == 1:
        foreground = ops.sigmoid(logits)
        return ops.concatenate([1.0 - foreground, foreground], axis=-1)
    return ops.softmax(logits, axis=-1)


def _flat(values: Any) -> Any:
    shape = ops.shape(values)
    return ops.reshape(values, (shape[0], -1, values.shape[-1]))


def one_hot(mask: Any, num_classes: int) -> Any:
    mask = ops.reshape(ops.cast(mask, "int32"), (ops.shape(mask)[0], -1))
    return ops.one_hot(mask, num_classes, dtype=keras.config.floatx())


def _voxel_crossentropy(mask: Any, logits: Any, class_weights: Sequence[float] = ()) -> Any:
    """Return (batch, voxels), each times the weight of its class, if there are weights."""
    logits = _flat(ops.cast(logits, keras.config.floatx()))
    if logits.shape[-1] == 1:
        logits = ops.concatenate([ops.zeros_like(logits), logits], axis=-1)
    mask = ops.reshape(ops.cast(mask, "int32"), (ops.shape(mask)[0], -1))
    values = ops.sparse_categorical_crossentropy(mask, logits, from_logits=True)
    if not class_weights:
        return values
    if len(class_weights) != logits.shape[-1]:
        raise ValueError(
            f"class_weights has {len(class_weights)} numbers, and there are {logits.shape[-1]} "
            "classes, with background. Give one for each, background first."
        )
    return values * ops.take(ops.convert_to_tensor(class_weights, keras.config.floatx()), mask)


def _checked_weights(class_weights: Sequence[float]) -> tuple[float, ...]:
    weights = tuple(class_weights)
    if any(not 0 <= weight < math.inf for weight in weights) or (weights and not any(weights)):
        raise ValueError(
            f"class_weights must not be negative, nor all 0, got {list(class_weights)}."
        )
    return weights


@keras.saving.register_keras_serializable(package="tfunet")
class CrossEntropy(keras.Loss):
    """Mean cross-entropy over the voxels of a sample, each times the weight of its class."""

    def __init__(
        self, class_weights: Sequence[float] = (), name: str = "crossentropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.class_weights = _checked_weights(class_weights)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.of_parts(y_true, y_pred, WHOLE)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        values = _voxel_crossentropy(y_true, y_pred, self.class_weights)
        return sample.mean(ops.mean(values, axis=-1))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "class_weights": list(self.class_weights)}


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
        truth = one_hot(y_true, probability.shape[-1])
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

    def __init__(
        self, class_weights: Sequence[float] = (), name: str = "dice_crossentropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.class_weights = _checked_weights(class_weights)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        values = _voxel_crossentropy(y_true, y_pred, self.class_weights)
        crossentropy = sample.mean(ops.mean(values, axis=-1))
        return super().of_parts(y_true, y_pred, sample) + crossentropy

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "class_weights": list(self.class_weights)}


@keras.saving.register_keras_serializable(package="tfunet")
class Focal(keras.Loss):
    """Cross-entropy with easy voxels weighted down by (1 - p)^gamma; a gamma of 0 weights none.

    Lin et al. 2017, "Focal loss for dense object detection", equation 4.
    """

    def __init__(
        self,
        gamma: float = 2.0,
        class_weights: Sequence[float] = (),
        name: str = "focal",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.class_weights = _checked_weights(class_weights)
        if gamma < 0:
            raise ValueError(f"gamma must not be negative, got {gamma}.")
        self.gamma = gamma

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.of_parts(y_true, y_pred, WHOLE)

    def of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        crossentropy = _voxel_crossentropy(y_true, y_pred)
        easy = (1.0 - ops.exp(-crossentropy)) ** self.gamma
        if self.class_weights:
            crossentropy = _voxel_crossentropy(y_true, y_pred, self.class_weights)
        weighted = easy * crossentropy
        return sample.mean(ops.mean(weighted, axis=-1))

    def get_config(self) -> dict[str, Any]:
        options = {"gamma": self.gamma, "class_weights": list(self.class_weights)}
        return {**super().get_config(), **options}


@keras.saving.register_keras_serializable(package="tfunet")
class TopKCrossEntropy(keras.Loss):
    """Mean cross-entropy over the share of a sample's voxels in which it is largest.

    Wu et al. 2016, "Bridging category-level and instance-level semantic image segmentation"; with
    nnU-Net's share of a tenth.
    """

    def __init__(
        self,
        share: float = 0.1,
        class_weights: Sequence[float] = (),
        name: str = "topk_crossentropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}.")
        self.share = share
        self.class_weights = _checked_weights(class_weights)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        values = _voxel_crossentropy(y_true, y_pred, self.class_weights)
        num_voxels = math.prod(y_pred.shape[1:-1])
        largest, _ = ops.top_k(values, max(1, round(self.share * num_voxels)), sorted=False)
        return ops.mean(largest, axis=-1)

    def get_config(self) -> dict[str, Any]:
        options = {"share": self.share, "class_weights": list(self.class_weights)}
        return {**super().get_config(), **options}


@keras.saving.register_keras_serializable(package="tfunet")
class DiceTopKCrossEntropy(TopKCrossEntropy):
    """Dice plus the cross-entropy of the worst voxels, with equal weights (nnU-Net)."""

    def __init__(
        self,
        background: bool = False,
        smooth: float = 1.0,
        name: str = "dice_topk_crossentropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self._dice = Dice(background=background, smooth=smooth)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._dice.call(y_true, y_pred) + super().call(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        options = self._dice.get_config()
        return {**super().get_config(), **{key: options[key] for key in ("background", "smooth")}}
