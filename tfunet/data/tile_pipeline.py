"""The tiles of training samples, for steps that take whole samples tile by tile.

All tiles of a step are shared out among the replicas in equal, contiguous parts, in the order of
the samples (here two samples of six tiles, for two and for three replicas):

    sample       |     0     |     1     |
    tile          0 1 2 3 4 5 0 1 2 3 4 5
    2 replicas         0           1
    3 replicas       0       1       2
"""

from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np
import tensorflow as tf

from tfunet.data.augmentation.random_streams import epoch_order
from tfunet.data.pipeline import (
    PREFETCHED_BATCHES,
    TrainingPipeline,
    check_replicas,
    finished,
    parallel_calls,
)
from tfunet.data.readers import window_reader
from tfunet.data.sample_order import epoch_spans, fed_position
from tfunet.geometry.grid import Grid


@final
@dataclass(frozen=True, kw_only=True)
class TilePipeline:
    """The tiles of the samples of a pipeline, for all of its steps.

    `pipeline(replicas)` yields, step by step, tile by tile and for each of these adjacent replicas
    in turn:
        image: (1, *window, channels) float32
        mask: (1, *window) uint8
        own_start, own_stop: (1, rank) int32; the tile's own part of its window
        tile: (1,) int64; its number among all tiles of all samples, sample after sample

    Args:
        samples: The samples of a step, as one replica would take them all. Its
            `changes_rows_alone` holds.
        grid: Cuts a sample.
        num_replicas: Over all processes; they can share out the tiles of a step equally.
    """

    samples: TrainingPipeline
    grid: Grid
    num_replicas: int = 1

    @property
    def replica_tiles(self) -> int:
        """Tiles of a replica in a step."""
        return self.samples.replica_batch * self.grid.num_tiles // self.num_replicas

    @property
    def buffered_bytes(self) -> int:
        """Most bytes of windows that a process holds at a time, as `TrainingPipeline`'s."""
        windows = PREFETCHED_BATCHES + 2 + parallel_calls()
        return windows * prod(self.grid.largest_window) * (self.samples.cases.channels * 4 + 1)

    def __call__(self, replicas: range) -> tf.data.Dataset:
        """Return the tiles of `replicas`."""
        check_replicas(replicas, self.num_replicas)
        dataset = self._tiles(replicas).map(self._reader(), num_parallel_calls=parallel_calls())
        if self.samples.synthetic:
            steps = self.samples.last_step - self.samples.first_step
            num_fed = steps * self.replica_tiles * len(replicas)
            dataset = dataset.take(len(replicas)).cache().repeat().take(num_fed)
        return finished(dataset)

    def _tiles(self, replicas: range) -> tf.data.Dataset:
        """Return (epoch, sample, tile of the sample) of each tile for `replicas`, in order."""
        samples, count = self.samples, len(replicas)
        fed = count * self.replica_tiles

        @tf.autograph.experimental.do_not_convert
        def of_epoch(span: tf.Tensor) -> tf.data.Dataset:
            epoch, first, last = span[0], span[1], span[2]
            element = tf.range(first * fed, last * fed)
            step, within = element // fed, element % fed
            # Replicas take turns, and each has adjacent tiles.
            turn = within % count * self.replica_tiles + within // count
            position = fed_position(
                step * fed + turn,
                replicas,
                replica_batch=self.replica_tiles,
                num_replicas=self.num_replicas,
            )
            order = epoch_order(samples.num_samples, samples.seed, epoch)
            chosen = tf.gather(order, position // self.grid.num_tiles)
            epochs = tf.fill(tf.shape(chosen), epoch)
            return tf.data.Dataset.from_tensor_slices(
                (epochs, chosen, position % self.grid.num_tiles)
            )

        spans = epoch_spans(samples.first_step, samples.last_step, samples.steps_per_epoch)
        table = np.asarray(spans, np.int64).reshape(-1, 3)
        return tf.data.Dataset.from_tensor_slices(table).flat_map(of_epoch)

    def _reader(self) -> Any:
        """Return the function of a tile to an element of this pipeline."""
        window = self.grid.largest_window
        read = self.samples.sample_reader(window_reader(self.samples.cases, window), window)
        table = np.asarray(
            [(tile.begin, tile.start, tile.stop) for tile in self.grid.even_tiles], np.int64
        )

        def tile_of(epoch: tf.Tensor, sample: tf.Tensor, tile: tf.Tensor) -> dict[str, tf.Tensor]:
            begin, start, stop = tf.unstack(tf.gather(table, tile))
            part = read(epoch, sample, begin)
            return {
                "image": part["image"][None],
                "mask": part["mask"][None],
                "own_start": tf.cast(start - begin, tf.int32)[None],
                "own_stop": tf.cast(stop - begin, tf.int32)[None],
                "tile": (sample * self.grid.num_tiles + tile)[None],
            }

        return tf.autograph.experimental.do_not_convert(tile_of)
