"""The tiles of training samples, for steps that take whole samples tile by tile.

All tiles of a step are shared out among the replicas in equal, contiguous parts, in the order of
the samples (here two samples of six tiles, for two and for three replicas):

    sample       |     0     |     1     |
    tile          0 1 2 3 4 5 0 1 2 3 4 5
    2 replicas         0           1
    3 replicas       0       1       2

With stages or split, a replica has several devices. All get its tiles, or their parts of these.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, final

import numpy as np
import tensorflow as tf

from tfunet.data.augmentation.random_streams import epoch_order
from tfunet.data.pipeline import (
    PREFETCHED_BATCHES,
    Rows,
    TrainingPipeline,
    check_replicas,
    each_repeated,
    finished,
    parallel_calls,
)
from tfunet.data.sample_order import epoch_spans, fed_position
from tfunet.geometry.grid import Grid
from tfunet.parallel.feed import fed_groups, parts_of
from tfunet.parallel.mesh import Mesh, part_bounds, part_rows


@final
@dataclass(frozen=True, kw_only=True)
class TilePipeline:
    """The tiles of the samples of a pipeline, for all of its steps.

    `pipeline(replicas)` yields, step by step, pass by pass and for each of these adjacent replicas
    in turn:
        image: (pass_tiles, *window, channels) float32
        mask: (pass_tiles, *window) uint8
        own_start, own_stop: (pass_tiles, rank) int32; the tile's own part of its window
        tile: (pass_tiles,) int64; its number among all tiles of all samples, sample after sample

    Args:
        samples: The samples of a step, as one replica would take them all. Its
            `changes_rows_alone` holds.
        grid: Cuts a sample.
        num_replicas: Over all processes; they can share out the tiles of a step equally.
        pass_tiles: Tiles that a replica takes at a time; they divide `replica_tiles`.
        split, stages: See `TrainingPipeline`. Windows are split, and own parts with them.
    """

    samples: TrainingPipeline
    grid: Grid
    num_replicas: int = 1
    pass_tiles: int = 1
    split: tuple[int, ...] = ()
    stages: int = 1

    @property
    def replica_tiles(self) -> int:
        """Tiles of a replica in a step."""
        return self.samples.replica_batch * self.grid.num_tiles // self.num_replicas

    @property
    def passes(self) -> int:
        """Passes of a replica in a step."""
        return self.replica_tiles // self.pass_tiles

    @property
    def last_step(self) -> int:
        """One past the last optimizer step."""
        return self.samples.last_step

    def of_steps(self, first: int, last: int, *, synthetic: bool = False) -> "TilePipeline":
        """Return the same tiles for other steps."""
        return replace(self, samples=self.samples.of_steps(first, last, synthetic=synthetic))

    @property
    def buffered_bytes(self) -> int:
        """Most bytes of windows that a process holds at a time, as `TrainingPipeline`'s."""
        windows = (PREFETCHED_BATCHES + 2) * self.pass_tiles + parallel_calls()
        return windows * prod(self.grid.largest_window) * (self.samples.cases.channels * 4 + 1)

    def __call__(self, replicas: range) -> tf.data.Dataset:
        """Return the tiles of `replicas`."""
        mesh = Mesh(groups=self.num_replicas, split=self.split, stages=self.stages)
        check_replicas(replicas, mesh.num_devices)
        groups, window = fed_groups(mesh, replicas), self.grid.largest_window
        whole = tuple((0, length) for length in window)
        rows = part_rows(mesh, replicas.start, window) if len(replicas) == 1 else whole
        dataset = self._tiles(groups).map(self._reader(rows), num_parallel_calls=parallel_calls())
        dataset = dataset.batch(self.pass_tiles, drop_remainder=True)
        if not mesh.is_split:
            dataset = each_repeated(dataset, len(replicas) // len(groups))
        elif rows == whole:
            dataset = parts_of(dataset, mesh, replicas, part_bounds(window, self.split))
        if self.samples.synthetic:
            steps = self.samples.last_step - self.samples.first_step
            num_fed = steps * self.passes * len(replicas)
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
            # Replicas take turns, pass by pass, and each has adjacent tiles.
            taken, at = within // self.pass_tiles, within % self.pass_tiles
            turn = taken % count * self.replica_tiles + taken // count * self.pass_tiles + at
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

    def _reader(self, rows: Rows) -> Any:
        """Return the function of a tile to these rows of its window."""
        extents, first = [end - begin for begin, end in rows], [begin for begin, _ in rows]
        read = self.samples.sample_reader(extents)
        table = np.asarray(
            [(tile.begin, tile.start, tile.stop) for tile in self.grid.even_tiles], np.int64
        )

        def tile_of(epoch: tf.Tensor, sample: tf.Tensor, tile: tf.Tensor) -> dict[str, tf.Tensor]:
            begin, start, stop = tf.unstack(tf.gather(table, tile))
            begin += first
            part = read(epoch, sample, begin)
            own_start, own_stop = (
                tf.cast(tf.clip_by_value(place - begin, 0, extents), tf.int32)
                for place in (start, stop)
            )
            return {
                "image": part["image"],
                "mask": part["mask"],
                "own_start": own_start,
                "own_stop": own_stop,
                "tile": sample * self.grid.num_tiles + tile,
            }

        return tf.autograph.experimental.do_not_convert(tile_of)
