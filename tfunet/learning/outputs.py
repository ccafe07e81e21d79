"""What the channels of a network's output stand for: classes, or regions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.learning.counting import predicted_labels
from tfunet.learning.region_labels import region_labels


class Outputs(Protocol):
    """How logits become probabilities and labels."""

    @property
    def allowed_logits(self) -> tuple[int, ...]:
        """How many logits a voxel may have."""

    @property
    def num_probabilities(self) -> int:
        """Probabilities of a voxel."""

    @property
    def function(self) -> str:
        """The function that makes probabilities of logits: "softmax" or "sigmoid"."""

    def __str__(self) -> str:
        """Return what the logits are for, in words."""

    def as_json(self) -> dict[str, Any]:
        """Return what must be known of the channels beside the names of the classes."""

    def labels(self, logits: Any) -> tf.Tensor:
        """Return int32 labels (batch, *spatial) for logits (batch, *spatial, num_logits)."""

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each channel, (*any, num_probabilities)."""

    def most_probable(self, probabilities: np.ndarray) -> np.ndarray:
        """Return uint8 labels for probabilities."""


@final
@dataclass(frozen=True, kw_only=True)
class ClassOutputs:
    """A logit for each class, with background; or a single one, of foreground."""

    num_classes: int

    @property
    def allowed_logits(self) -> tuple[int, ...]:
        return (self.num_classes, 1) if self.num_classes == 2 else (self.num_classes,)

    @property
    def num_probabilities(self) -> int:
        return self.num_classes

    @property
    def function(self) -> str:
        return "softmax"

    def __str__(self) -> str:
        return f"{self.num_classes} classes (with background)"

    def as_json(self) -> dict[str, Any]:
        return {}

    def labels(self, logits: Any) -> tf.Tensor:
        return predicted_labels(logits)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        if logits.shape[-1] > 1:
            return keras.ops.convert_to_numpy(keras.ops.softmax(logits))
        foreground = keras.ops.convert_to_numpy(keras.ops.sigmoid(logits))
        return np.concatenate([1 - foreground, foreground], -1)

    def most_probable(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities.argmax(-1).astype(np.uint8)


@final
@dataclass(frozen=True, kw_only=True)
class RegionOutputs:
    """A logit for each region, of inside against outside; regions may lie in each other.

    Raises ValueError for regions that `region_labels` refuses, and for none.

    Args:
        regions: Region name to its labels, in the order of the channels.
    """

    regions: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        if not self.regions:
            raise ValueError("There are no regions.")
        region_labels(self.regions)

    @property
    def written(self) -> Mapping[str, int]:
        """The label of each region, in the order in which regions are written over each other."""
        return region_labels(self.regions)

    @property
    def allowed_logits(self) -> tuple[int, ...]:
        return (len(self.regions),)

    @property
    def num_probabilities(self) -> int:
        return len(self.regions)

    @property
    def function(self) -> str:
        return "sigmoid"

    def __str__(self) -> str:
        return f"{len(self.regions)} regions ({', '.join(self.regions)})"

    def as_json(self) -> dict[str, Any]:
        channels = list(self.regions)
        regions = {
            name: {
                "channel": channels.index(name),
                "labels": list(self.regions[name]),
                "written_label": label,
            }
            for name, label in self.written.items()
        }
        return {"regions": regions}

    def labels(self, logits: Any) -> tf.Tensor:
        return self._labels(tf.convert_to_tensor(logits), 0.0)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(keras.ops.sigmoid(logits))

    def most_probable(self, probabilities: np.ndarray) -> np.ndarray:
        return self._labels(tf.constant(probabilities), 0.5).numpy().astype(np.uint8)

    def _labels(self, values: tf.Tensor, threshold: float) -> tf.Tensor:
        """Return the labels of voxels whose channels are above a threshold where inside."""
        channels = list(self.regions)
        labels = tf.zeros(tf.shape(values)[:-1], tf.int32)
        for region, label in self.written.items():
            labels = tf.where(values[..., channels.index(region)] > threshold, label, labels)
        return labels
