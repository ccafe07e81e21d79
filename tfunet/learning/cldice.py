"""A loss of thin structures, by their centre lines."""

import functools
from typing import Any

import keras
from keras import ops

from tfunet.learning.losses import Dice, class_probabilities, one_hot


@keras.saving.register_keras_serializable(package="tfunet")
class ClDice(keras.Loss):
    """Dice, and how well the centre lines of predicted and true regions lie in each other.

    Shit et al. 2021, "clDice - a novel topology-preserving loss function for tubular structure
    segmentation", with the soft skeleton of its algorithm 1. For vessels, neurites and roads.

    Args:
        share: Share of the centre lines in the loss; the rest is the Dice loss.
        iterations: Half the width in voxels of the widest tube.
    """

    def __init__(
        self,
        share: float = 0.5,
        iterations: int = 3,
        smooth: float = 1.0,
        name: str = "cldice",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie between 0 and 1, got {share}.")
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}.")
        self.share, self.iterations = share, iterations
        self._dice = Dice(smooth=smooth)
        self.smooth = smooth

    def call(self, y_true: Any, y_pred: Any) -> Any:
        flat = class_probabilities(y_pred)
        shape = (-1, *y_pred.shape[1:-1], flat.shape[-1])
        predicted = ops.reshape(flat, shape)[..., 1:]
        true = ops.reshape(one_hot(y_true, flat.shape[-1]), shape)[..., 1:]
        precision = self._share_inside(self._skeleton(predicted), true)
        recall = self._share_inside(self._skeleton(true), predicted)
        lines = 1.0 - ops.mean(2.0 * precision * recall / (precision + recall), axis=-1)
        return (1.0 - self.share) * self._dice.call(y_true, y_pred) + self.share * lines

    def _share_inside(self, lines: Any, region: Any) -> Any:
        """Return (batch, classes)."""
        axes = tuple(range(1, len(lines.shape) - 1))
        inside = ops.sum(lines * region, axes) + self.smooth
        return inside / (ops.sum(lines, axes) + self.smooth)

    def _skeleton(self, region: Any) -> Any:
        skeleton = ops.relu(region - _dilated(_eroded(region)))
        for _ in range(self.iterations):
            region = _eroded(region)
            ridge = ops.relu(region - _dilated(_eroded(region)))
            skeleton = skeleton + ops.relu(ridge - skeleton * ridge)
        return skeleton

    def get_config(self) -> dict[str, Any]:
        options = {key: getattr(self, key) for key in ("share", "iterations", "smooth")}
        return {**super().get_config(), **options}


def _eroded(values: Any) -> Any:
    """Return the least value of each voxel and its neighbours across faces."""
    rank = len(values.shape) - 2
    windows = [tuple(3 if axis == along else 1 for axis in range(rank)) for along in range(rank)]
    least = [-ops.max_pool(-values, window, 1, "same") for window in windows]
    return functools.reduce(ops.minimum, least)


def _dilated(values: Any) -> Any:
    """Return the largest value of each voxel and its neighbours, across corners too."""
    return ops.max_pool(values, (3,) * (len(values.shape) - 2), 1, "same")
