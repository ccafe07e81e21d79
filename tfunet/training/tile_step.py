"""An optimizer step that takes whole samples tile by tile: sample parallelism."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import keras
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.geometry.grid import Grid
from tfunet.inside.of_keras import loss_tracker
from tfunet.learning.averaging import Averaging
from tfunet.learning.own_part import as_pixels, loss_of_tile
from tfunet.parallel.network import SplitNetwork
from tfunet.timing.stamps import Note, timed

Batch = dict[str, tf.Tensor]


class TileWork(Protocol):
    """What the devices of this process make of tiles."""

    def no_gradients(self) -> list[tf.Tensor]:
        """Return the sums of the gradients of no tile."""

    def add(self, batch: Batch, sums: list[tf.Tensor]) -> dict[str, Any]:
        """Return "sums" with the gradients of the next tiles, and "logs"; traced once."""

    def update(self, sums: list[tf.Tensor]) -> dict[str, Any]:
        """Update the weights by the gradients of all tiles; traced once."""


@final
class TileStep:
    """An optimizer step over the tiles of its samples, pass by pass.

    Args:
        work: What this process's devices do.
        passes: Passes of a step; each takes the next batch of tiles.
        alive: Called before each pass.
        note: Told of each wait for tiles, as "input".
    """

    def __init__(
        self,
        work: TileWork,
        *,
        passes: int,
        alive: Callable[[], None] = lambda: None,
        note: Note | None = None,
    ) -> None:
        self._work, self._passes, self._alive, self._note = work, passes, alive, note
        self._add = tf.function(self._added, autograph=False, reduce_retracing=True)
        self._update = tf.function(work.update, autograph=False)

    def __call__(self, batches: Any) -> dict[str, Any]:
        """Make a step with the iterator of a feed.

        Returns "sample" (local replicas, tiles): the numbers of the tiles; and "logs", as
        `training.step.make_step`.
        """
        sums = self._work.no_gradients()
        numbers: list[tf.Tensor] = []
        logs: dict[str, tf.Tensor] = {}
        for _ in range(self._passes):
            self._alive()
            result = self._add(batches, sums)
            sums, logs = result["sums"], result["logs"]
            numbers.append(result["tile"])
        self._update(sums)
        return {"sample": tf.concat(numbers, axis=1), "logs": logs}

    def _added(self, batches: Any, sums: list[tf.Tensor]) -> dict[str, Any]:
        batch = timed("input", self._note, lambda _: next(batches), device="CPU:0")
        return self._work.add(batch, sums)


@final
class UncutNetwork:
    """Tiles of a network that each device has as a whole; a pass is a tile.

    Args:
        cut: The tiles of a sample.
        num_local: Replicas of this process.
        passes: Tiles of a replica in a step.
        averaging: How the optimizer averages gradients over replicas.
        prepare: Returns what a device works on of the tile that it was fed; called on the device.
        split: Runs the model on parts of tiles; None where tiles are whole.
    """

    def __init__(
        self,
        backend: Backend,
        model: keras.Model,
        cut: Grid,
        *,
        num_local: int,
        passes: int,
        averaging: Averaging,
        prepare: Callable[[Batch], Batch] = lambda batch: batch,
        split: SplitNetwork | None = None,
    ) -> None:
        self._backend, self._model, self._cut = backend, model, cut
        self._num_local, self._passes, self._averaging = num_local, passes, averaging
        self._prepare, self._split = prepare, split
        # Whether the loss depends on each weight.
        self._is_reached: list[bool] = []

    def no_gradients(self) -> list[tf.Tensor]:
        return [
            tf.zeros(self._of_local(weight.shape), weight.dtype)
            for weight in self._model.trainable_variables
        ]

    def _of_local(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what `Backend.run` takes for tensors of this shape."""
        return (self._num_local, *shape) if self._num_local > 1 else tuple(shape)

    def add(self, batch: Batch, sums: list[tf.Tensor]) -> dict[str, Any]:
        result: dict[str, Any] = self._backend.run(self._replica_tile, batch, sums)
        if self._num_local == 1:
            result["sums"] = [total[0] for total in result["sums"]]
        return result

    def _replica_tile(self, fed: Batch, sums: list[tf.Tensor]) -> dict[str, Any]:
        batch, model = self._prepare(fed), self._model
        if self._split is None:
            output, value, gradients = self._gradients(batch, lambda loss: loss)
        else:
            with self._split.traced_step(times=self._passes):
                output, value, gradients = self._gradients(batch, self._split.group().sum)
        self._is_reached = [gradient is not None for gradient in gradients]
        # All devices together count a tile once.
        devices = 1 if self._split is None else self._split.mesh.sample_parts
        loss_tracker(model).update_state(value, sample_weight=1 / devices)
        # Each pixel as a sample, so that large tiles count more than small ones.
        pixels = as_pixels(batch, batch["mask"]), as_pixels(batch, output)
        return {
            "sums": [
                total if gradient is None else total + tf.convert_to_tensor(gradient)
                for total, gradient in zip(sums, gradients, strict=True)
            ],
            "tile": fed["tile"],
            "logs": model.compute_metrics(batch["image"], *pixels, None),
        }

    def _gradients(
        self, batch: Batch, whole: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        """Return the output for a tile, its loss, and the gradient of each weight."""
        model = self._model
        with tf.GradientTape() as tape:
            output = model(batch["image"], training=True)
            value = tf.add_n(
                [loss_of_tile(model.loss, batch, output, self._cut, whole), *model.losses]
            )
            scaled = model.optimizer.scale_loss(value)
        return output, value, tape.gradient(scaled, model.trainable_variables)

    def update(self, sums: list[tf.Tensor]) -> dict[str, Any]:
        def replica_update(totals: list[tf.Tensor]) -> dict[str, tf.Tensor]:
            gradients = [
                total / self._passes if is_reached else None
                for total, is_reached in zip(totals, self._is_reached, strict=True)
            ]
            weights = self._model.trainable_variables
            self._model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {}

        with self._averaging.traced():
            result: dict[str, Any] = self._backend.run(replica_update, sums)
        return result
