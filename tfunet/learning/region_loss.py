"""The loss of a network with a logit for each region: the mean of a loss over the regions."""

from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np
from keras import ops

from tfunet.geometry.kinds import is_older
from tfunet.learning.losses import WHOLE


@final
@keras.saving.register_keras_serializable(package="tfunet")
class RegionLoss(keras.Loss):
    """The mean over regions of a loss of one logit, for inside the region against outside.

    With `dice_crossentropy` it is nnU-Net's loss of regions: Dice and binary cross-entropy.

    Args:
        each: The loss of a region.
        regions: The labels of each region, in the order of the logits.
        num_classes: Labels are 0 to num_classes - 1.
    """

    def __init__(
        self,
        each: keras.Loss,
        regions: Sequence[Sequence[int]],
        num_classes: int,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name or each.name, dtype=each.dtype, **kwargs)
        self.each = each
        self.regions = tuple(tuple(labels) for labels in regions)
        self.num_classes = num_classes
        # Without `of_parts`, the parts of a sample are put together first.
        self._has_parts = hasattr(each, "of_parts") and not is_older(each, "of_parts", "call")
        if self._has_parts:
            self.of_parts = self._of_parts

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if self._has_parts:
            return self._of_parts(y_true, y_pred, WHOLE)
        return self._mean(self.each.call(*self._by_region(y_true, y_pred)), y_true)

    def _of_parts(self, y_true: Any, y_pred: Any, sample: Any) -> Any:
        """Return the loss of each sample, of whose voxels these are a part."""
        return self._mean(self.each.of_parts(*self._by_region(y_true, y_pred), sample), y_true)

    def _by_region(self, mask: Any, logits: Any) -> tuple[Any, Any]:
        """Return masks (batch * regions, *spatial) and logits with one channel: each region of a
        sample as a sample.
        """
        if len(mask.shape) == len(logits.shape):
            mask = ops.squeeze(mask, -1)
        table = np.zeros((self.num_classes, len(self.regions)), np.float32)
        for region, labels in enumerate(self.regions):
            table[list(labels), region] = 1
        inside = ops.take(ops.convert_to_tensor(table), ops.cast(mask, "int32"), axis=0)
        inside, logits = ops.moveaxis(inside, -1, 1), ops.moveaxis(logits, -1, 1)
        samples, regions, *spatial = ops.shape(logits)
        shape = (samples * regions, *spatial)
        inside = ops.cast(ops.reshape(inside, shape), mask.dtype)
        return inside, ops.reshape(logits, (*shape, 1))

    def _mean(self, values: Any, mask: Any) -> Any:
        """Return values (batch, ...), the means over regions of values (batch * regions, ...)."""
        if len(values.shape) == 0:  # One number for several samples, which is refused.
            return values
        shape = (ops.shape(mask)[0], len(self.regions), *ops.shape(values)[1:])
        return ops.mean(ops.reshape(values, shape), axis=1)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "each": keras.saving.serialize_keras_object(self.each),
            "regions": [list(labels) for labels in self.regions],
            "num_classes": self.num_classes,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RegionLoss":
        return cls(**{**config, "each": keras.saving.deserialize_keras_object(config["each"])})
