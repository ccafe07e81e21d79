"""The small samples on which a step is proved: as small as the network allows, cut from real ones.

A size keeps its remainder by the factor by which the network pools, so that odd sizes stay odd.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from tfunet.config.run import RunConfig
from tfunet.geometry.grid import Grid, grid
from tfunet.pipeline.network import read_network
from tfunet.training.run_data import RunData
from tfunet.training.tiling import Tiles

# Rows of a part, or of an axis that is whole, that let a 3 x 3 kernel see more than borders.
LEAST_ROWS = 8
# Places at which a sample is cut, of which the one with most labels is taken.
TRIED_PLACES = 8
# The factor of a network whose layers cannot be listed.
GUESSED_STEP = 16


def pooling_steps(model: keras.Model, rank: int) -> tuple[int, ...]:
    """Return the factors by which a network's tensors are smaller than its input, on each axis."""
    try:
        network = read_network(model)
    except ValueError:
        return (GUESSED_STEP,) * rank
    image = network.tensors[network.inputs[0]].shape
    images = [tensor.shape for tensor in network.tensors if len(tensor.shape) == rank + 2]
    return tuple(
        math.lcm(*(max(1, round(image[axis] / shape[axis])) for shape in images))
        for axis in range(1, 1 + rank)
    )


def step_flops(model: keras.Model, rank: int) -> float:
    """Return about how many floating-point operations a training step takes for a sample.

    Only convolutions and matrix products count; 0 for a network whose layers cannot be listed.
    """
    try:
        network = read_network(model)
    except ValueError:
        return 0.0
    total = 0.0
    for node in network.nodes:
        weights = sum(
            math.prod(variable.shape)
            for variable in node.trainable_variables
            if len(variable.shape) > 1
        )
        voxels = max(
            (math.prod(network.tensors[at].shape[1:-1] or (1,)) for at in node.makes), default=1
        )
        total += 2.0 * weights * voxels
    return 3 * total  # The backward pass takes twice as many.


def small_patch(
    patch: Sequence[int], steps: Sequence[int], parts: Sequence[int]
) -> tuple[int, ...]:
    """Return the smallest sample that a network which pools by `steps` takes in so many parts."""
    sizes = []
    for extent, step, count in zip(patch, steps, parts, strict=True):
        rows = -(-max(LEAST_ROWS, step) * count // step) * step + extent % step
        sizes.append(min(rows, extent))
    # A normalisation over one voxel is nothing but its shift.
    if all(size // step <= 1 for size, step in zip(sizes, steps, strict=True)):
        sizes[0] = min(sizes[0] + steps[0], patch[0])
    return tuple(sizes)


def small_tiles(tiles: Tiles, patch: Sequence[int], steps: Sequence[int]) -> Tiles:
    """Return two tiles on each axis that has several, just larger than their halo."""
    counts = tuple(min(count, 2) for count in tiles.grid.tiles)
    sizes = []
    for extent, step, count, halo in zip(patch, steps, counts, tiles.grid.halo, strict=True):
        rounded = -(-halo // step) * step
        least = 2 * (rounded + step) if count > 1 else max(LEAST_ROWS, step)
        sizes.append(min(-(-least // step) * step, extent))
    cut: Grid = grid(sizes, counts, tiles.grid.halo, steps)
    return Tiles(grid=cut, statistics=tiles.statistics)


def small_config(config: RunConfig, patch: Sequence[int], tiles: Tiles | None) -> RunConfig:
    """Return a run that trains as this one does, with as few samples a step as its ways need."""
    tiling = () if tiles is None else tiles.grid.tiles
    count = config.num_replicas * config.accumulation * config.micro_batches
    if tiles is not None:
        tiles_each_turn = config.num_replicas * config.micro_batches
        count = tiles_each_turn // math.gcd(tiles_each_turn, tiles.grid.num_tiles)
    return replace(
        config,
        # Arrays have the shape that they have.
        patch=tuple(patch) if config.patch or len(patch) in (2, 3) else None,
        tiling=tiling,
        global_batch=max(2, count) if tiles is None or count > 1 else 1,
        replica_batch=None,
        # None of these is a way to compute a step, or all are left to other checks.
        swap=None,
        swap_host=None,
        swap_weights=None,
        swap_disk=None,
        xla=False,
        precision="float32",
        pipeline="tf",
        callbacks=(),
        tournament={},
        initial_weights=None,
        encoder_frozen_epochs=0,
        augmentation={},
        elastic=False,
        # It has its own `call` of layers that are left out.
        batch_norm="micro_batch",
    )


def real_samples(
    data: RunData, patch: Sequence[int], count: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return images, and the truth as batches have it, cut from training cases, no two alike.

    The same in every process. Images are (count, *patch, channels) float32, masks (count, *patch)
    uint8. Arrays are as they are.
    """
    chosen = [data.split.train[number % len(data.split.train)] for number in range(count)]
    if (samples := data.cases.samples) is not None:
        return samples.x[chosen], {"target": samples.y[chosen]}
    rng = np.random.default_rng(0)
    images: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    for case in chosen:
        image = data.cases.image(case, padded=True)
        mask = np.asarray(data.cases.mask(case, padded=True))
        places = [
            tuple(
                slice(start, start + size)
                for start, size in zip(
                    rng.integers(np.subtract(mask.shape, patch) + 1), patch, strict=True
                )
            )
            for _ in range(TRIED_PLACES)
        ]
        place = max(places, key=lambda place: len(np.unique(mask[place])))
        cut, labels = np.array(image[place]), np.array(mask[place])
        for axis in range(len(patch)):
            if not any(np.array_equal(cut, other) for other in images):
                break
            cut, labels = np.flip(cut, axis), np.flip(labels, axis)
        images.append(cut)
        masks.append(labels)
    targets: Any = data.cases.targets
    truth = {"mask": np.stack(masks)}
    if targets:
        truth["target"] = np.array([targets[case] for case in chosen], np.float32)
    return np.stack(images), truth
