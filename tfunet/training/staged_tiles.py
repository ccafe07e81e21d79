"""Tiles that follow one another through the stages of a network, as micro-batches."""

from collections.abc import Callable
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.geometry.grid import Grid
from tfunet.learning.averaging import Averaging
from tfunet.learning.own_part import as_pixels, loss_of_tile
from tfunet.training.staged_network import StagedNetwork
from tfunet.training.tile_step import Batch

OF_TILE = ("mask", "own_start", "own_stop")


@final
class StagedTiles:
    """Tiles of a network in stages; see `tile_step.TileWork`. A pass is a tile a micro-batch.

    The sums of gradients are variables, since each device has those of its stage.

    Args:
        loss: A mean over pixels.
        cut: The tiles of a sample.
        passes: Passes of a step.
        averaging: In which optimizers are applied.
        prepare: Returns what a device works on of the tiles that it was fed; called on the device.
        whole: Returns the sum over all devices that share a tile; called on the device.
    """

    def __init__(
        self,
        backend: Backend,
        stages: StagedNetwork,
        loss: keras.Loss,
        cut: Grid,
        *,
        passes: int,
        averaging: Averaging,
        prepare: Callable[[Batch], Batch],
        whole: Callable[[tf.Tensor], tf.Tensor],
    ) -> None:
        self._backend, self._stages, self._loss, self._cut = backend, stages, loss, cut
        self._passes, self._averaging = passes, averaging
        self._prepare, self._whole = prepare, whole
        # Whether the loss depends on each weight, by stage.
        self._is_reached: dict[int, list[bool]] = {}

    def no_gradients(self) -> list[tf.Tensor]:
        return []

    def add(self, batch: Batch, sums: list[tf.Tensor]) -> dict[str, Any]:
        result: dict[str, Any] = self._backend.run(self._add_on_device, batch)
        return {**result, "sums": sums}

    def _add_on_device(self, fed: Batch) -> dict[str, Any]:
        batch, stages = self._prepare(fed), self._stages
        stage, totals = stages.stage(), stages.sums()
        tiles = {name: batch[name] for name in OF_TILE}
        value, gradients, outputs = stages.passes(
            batch["image"],
            tiles,
            lambda tile, output: loss_of_tile(self._loss, tile, output, self._cut, self._whole),
            times=self._passes,
        )
        self._is_reached[stage.number] = [gradient is not None for gradient in gradients]
        for total, gradient in zip(totals, gradients, strict=True):
            if gradient is not None:
                total.assign_add(gradient)
        each = [
            {name: value[at : at + 1] for name, value in tiles.items()}
            for at in range(len(outputs))
        ]
        seen = [
            (as_pixels(tile, tile["mask"]), as_pixels(tile, output))
            for tile, output in zip(each, outputs, strict=True)
        ]
        return {
            "tile": fed["tile"],
            "logs": stages.counted_logs(value, batch["image"].shape[0], seen),
        }

    def update(self, sums: list[tf.Tensor]) -> dict[str, Any]:
        took_over = self._stages.common_states()

        def on_device() -> dict[str, tf.Tensor]:
            stages = self._stages
            stage, totals = stages.stage(), stages.sums()
            means = [
                total.read_value() / self._passes if is_reached else None
                for total, is_reached in zip(totals, self._is_reached[stage.number], strict=True)
            ]
            stages.update(stage.averaged(means), took_over[stage.number])
            for total in totals:
                total.assign(tf.zeros_like(total))
            return {}

        with self._averaging.traced():
            result: dict[str, Any] = self._backend.run(on_device)
        return result
