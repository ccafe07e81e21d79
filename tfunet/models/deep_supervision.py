"""Training by losses at lower resolutions, too: deep supervision, as in nnU-Net."""

from typing import Any, final

import keras


@final
class DeeplySupervised(keras.Model):
    """A network that is trained by the logits of several resolutions.

    Its outputs are logits, from the full resolution down, each half as large as the one before.
    A call without training returns the first, and a file holds the network of the first alone.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        logits = super().call(inputs, training=training, mask=mask)
        return logits if training else logits[0]

    def compute_output_spec(
        self, inputs: Any, training: bool | None = None, mask: Any = None
    ) -> Any:
        logits = super().compute_output_spec(inputs)
        return logits if training else logits[0]

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the weighted mean of the losses of all resolutions."""
        of_one = super().compute_loss
        if not isinstance(y_pred, list | tuple):
            return of_one(x, y, y_pred, sample_weight, training)
        weights = level_weights(len(y_pred))
        losses = [
            weight * of_one(x, lowered(y, level, logits), logits, sample_weight, training)
            for level, (weight, logits) in enumerate(zip(weights, y_pred, strict=True))
        ]
        return sum(losses[1:], start=losses[0])

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the metrics of the full resolution."""
        full = y_pred[0] if isinstance(y_pred, list | tuple) else y_pred
        return super().compute_metrics(x, y, full, sample_weight)

    def save(self, filepath: Any, *args: Any, **options: Any) -> None:
        """Write the network of the full resolution, which loads without tfunet."""
        self._full_resolution().save(filepath, *args, **options)

    def save_weights(self, filepath: Any, *args: Any, **options: Any) -> None:
        """Write the weights of the network of the full resolution."""
        self._full_resolution().save_weights(filepath, *args, **options)

    def _full_resolution(self) -> keras.Model:
        return keras.Model(self.input, self.outputs[0], name=self.name)


def level_weights(num_levels: int) -> list[float]:
    """Return the weight of each resolution's loss: each half of the one before, 1 in sum."""
    total = sum(0.5**level for level in range(num_levels))
    return [0.5**level / total for level in range(num_levels)]


def lowered(mask: Any, level: int, logits: Any) -> Any:
    """Return a mask (batch, *spatial) at the resolution of the logits of a level.

    It keeps the voxel nearest to the centre of each block of 2**level voxels along an axis, the
    later of two such: PyTorch's "nearest-exact", with which nnU-Net resamples.
    """
    if level == 0:
        return mask
    picks = slice(2 ** (level - 1), None, 2**level)
    return mask[(slice(None), *[picks] * (len(logits.shape) - 2))]
