"""Batches for evaluation: windows whose cores cover each validation case once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import tensorflow as tf

from tfunet.data.cached_cases import CachedCases
from tfunet.data.pipeline import (
    check_cases,
    check_replicas,
    each_repeated,
    finished,
    parallel_calls,
)
from tfunet.data.readers import part_reader
from tfunet.data.sample_order import fed_position
from tfunet.geometry.grid import Grid, tiles_of
from tfunet.geometry.windows import Window, plan_windows
from tfunet.parallel.feed import fed_groups, parts_of
from tfunet.parallel.mesh import Mesh, part_bounds


@final
@dataclass(frozen=True, kw_only=True)
class EvaluationPipeline:
    """Windows that hold each voxel of each validation case exactly once in their cores.

    `pipeline(replicas)` yields, step by step and for each of these adjacent replicas in turn:
        image: (replica_batch, *patch, channels) float32
        mask: (replica_batch, *patch) uint8; none of arrays
        target: (replica_batch, targets) float32, if cases have some; see `TrainingPipeline`
        core_start, core_stop: (replica_batch, rank) int32; the counted voxels of the window
        case: (replica_batch,) int32; position in `validation`
        valid: (replica_batch,) float32; 1, or 0 for a filler with an empty core
        start: (replica_batch, rank) int32, with `tells_places`; the window's first voxel in its
            case
        own_start, own_stop: (replica_batch, rank) int32, with a `grid`; see `TilePipeline`
    Every replica gets `num_steps` batches: different numbers of collective operations would hang.

    Args:
        cases: The decoded cases; their `patch` is the spatial shape of the windows.
        validation: The cases to evaluate, as indices of `cases`.
        halo: Voxels of context on each inner side of a core.
        tells_places: Whether batches say where their windows lie.
        replica_batch: Windows per replica and step.
        num_replicas: Replicas over all processes.
        split, stages: See `TrainingPipeline`. A part has a part of the window's core, and of a
            tile's own part.
        grid: Cuts each window into tiles, each of which is fed by itself.
    """

    cases: CachedCases
    validation: tuple[int, ...]
    replica_batch: int
    num_replicas: int = 1
    split: tuple[int, ...] = ()
    stages: int = 1
    halo: int = 0
    tells_places: bool = False
    grid: Grid | None = None

    def __post_init__(self) -> None:
        check_cases(self.cases, self.validation)
        if self.replica_batch < 1:
            raise ValueError(f"replica_batch must be at least 1, got {self.replica_batch}.")

    @cached_property
    def _windows(self) -> np.ndarray:
        """One row a window: its case in `validation`, start in the cache, core start, core stop.

        The row of a tile goes on with the start and stop of the tile's own part.
        """
        rows = []
        for position, case in enumerate(self.validation):
            origin = np.asarray(self.cases.origins[case])
            for window in plan_windows(self.cases.extents[case], self.cases.patch, self.halo):
                for part, own in self._parts(window):
                    start = part.start + origin
                    rows.append([position, *start, *part.core_start, *part.core_stop, *own])
        return np.asarray(rows, np.int64)

    def _parts(self, window: Window) -> Iterator[tuple[Window, list[int]]]:
        """Yield what is fed of a window: all of it, or each of its tiles with its own part."""
        if self.grid is None:
            yield window, []
            return
        for tile, start, stop in tiles_of(window, self.grid):
            yield tile, [*start, *stop]

    @property
    def num_windows(self) -> int:
        """Number of windows of all validation cases."""
        return len(self._windows)

    @property
    def num_steps(self) -> int:
        """Number of batches of every replica."""
        return -(-self.num_windows // (self.replica_batch * self.num_replicas))

    def __call__(self, replicas: range) -> tf.data.Dataset:
        """Return the batches of `replicas`."""
        mesh = Mesh(groups=self.num_replicas, split=self.split, stages=self.stages)
        check_replicas(replicas, mesh.num_devices)
        groups = fed_groups(mesh, replicas)
        num_fed = self.num_steps * len(groups) * self.replica_batch
        dataset = tf.data.Dataset.range(num_fed).map(
            self._window_reader(groups), num_parallel_calls=parallel_calls()
        )
        dataset = dataset.batch(self.replica_batch, drop_remainder=True)
        if mesh.is_split:
            whole = self.cases.patch if self.grid is None else self.grid.largest_window
            dataset = parts_of(dataset, mesh, replicas, part_bounds(whole, self.split))
        else:
            dataset = each_repeated(dataset, len(replicas) // len(groups))
        return finished(dataset)

    def _window_reader(self, replicas: range) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
        extents = self.cases.patch if self.grid is None else self.grid.largest_window
        read = part_reader(self.cases, extents)
        validation = np.asarray(self.validation, np.int64)
        origins = np.asarray(self.cases.origins, np.int64)
        rank = len(self.cases.patch)

        @tf.autograph.experimental.do_not_convert
        def window_of(element: tf.Tensor) -> dict[str, tf.Tensor]:
            index = fed_position(
                element,
                replicas,
                replica_batch=self.replica_batch,
                num_replicas=self.num_replicas,
            )
            valid = index < self.num_windows
            row = tf.gather(self._windows, tf.minimum(index, self.num_windows - 1))
            case = tf.gather(validation, row[0])
            part = read(case, row[1 : 1 + rank])
            # A case that turns out to be of no use has no voxels.
            valid &= part.pop("case") >= 0
            core = tf.cast(tf.where(valid, row[1 + rank : 1 + 3 * rank], 0), tf.int32)
            window = {
                **part,
                "core_start": core[:rank],
                "core_stop": core[rank:],
                "case": tf.cast(row[0], tf.int32),
                "valid": tf.cast(valid, tf.float32),
            }
            if self.tells_places:
                start = row[1 : 1 + rank] - tf.gather(origins, tf.gather(validation, row[0]))
                window["start"] = tf.cast(start, tf.int32)
            if self.grid is not None:
                own = tf.cast(row[1 + 3 * rank :], tf.int32)
                window |= {"own_start": own[:rank], "own_stop": own[rank:]}
            return window

        return window_of
