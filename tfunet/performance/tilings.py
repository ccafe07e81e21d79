"""Which tiles of an image a network can be trained on: halo, redundancy, memory of each grid."""

import math
from collections.abc import Callable, Sequence

import keras

from tfunet.config.amount import MIB
from tfunet.geometry.grid import Grid, best_grid, grid
from tfunet.geometry.receptive_field import (
    UnknownReachError,
    alignment,
    reach,
    receptive_field,
    statistics_layers,
)
from tfunet.pipeline.chain import Chain
from tfunet.process.terminal import columns

# Along each axis; the table ends where tiles are finer than their halo.
SHOWN = (1, 2, 4, 8, 16, 32, 64)
FLOAT_BYTES = 4


def tilings_text(
    name: str,
    model: keras.Model,
    chain: Chain,
    *,
    image: Sequence[int],
    memory_bytes: int,
) -> str:
    """Return the tilings of an image as a table, with the best that fits in the memory.

    Args:
        chain: The costs of the model for one sample of the size that it was built for.
        image: Spatial sizes.

    Raises ValueError if the image is none for the network, or its halo is not known.
    """
    axes = len(model.input.shape) - 2
    if len(image) != axes:
        raise ValueError(
            f"An image for {name} has {axes} spatial sizes, got {len(image)}: "
            f"{','.join(map(str, image))}."
        )
    if min(image) < 1:
        raise ValueError(f"Sizes of an image must be at least 1, got {','.join(map(str, image))}.")
    try:
        halo, field, steps = reach(model), receptive_field(model), alignment(model)
    except UnknownReachError as error:
        raise ValueError(
            f"The halo of {name} is not known: {error}. Without it no tiles are exact."
        ) from error
    whole = chain.stage(0, len(chain.layers))
    # While a step takes its tiles, the sum of their gradients is kept.
    sums = sum(math.prod(variable.shape) * FLOAT_BYTES for variable in model.trainable_variables)
    weight_bytes = whole.weight_bytes + sums
    built_for = math.prod(model.input.shape[1:-1])
    bytes_per_pixel = (whole.kept_bytes + whole.working_bytes) / built_for

    def tile_bytes(candidate: Grid) -> float:
        return weight_bytes + bytes_per_pixel * math.prod(candidate.largest_window)

    most_pixels = (memory_bytes - weight_bytes) / bytes_per_pixel
    best = best_grid(image, halo, steps, most_pixels)
    rows = _rows(_shown(image, halo, steps, best), best, tile_bytes, memory_bytes)
    lines = [
        f"{name} on tiles of an image of {_times(image)}, one on a device of "
        f"{memory_bytes / MIB:,.0f} MiB",
        f"halo             {_times(halo)} pixels on each side",
        f"receptive field  {_times(field)} pixels",
        f"alignment        {_times(steps)}: borders of tiles are multiples of what the network "
        "pools by",
        "",
        *columns(rows),
        "",
        "F: pixels of all windows for each pixel of the image. F inside: of a tile far from the",
        "borders, before alignment. Memory: weights, gradients, their sum over tiles, Adam, and",
        "one window's activations, predicted.",
        _best_line(best, weight_bytes, memory_bytes),
        *_statistics_lines(model),
    ]
    return "\n".join(lines)


def _shown(
    image: Sequence[int], halo: Sequence[int], steps: Sequence[int], best: Grid | None
) -> list[Grid]:
    """Return the grids of the table, from the coarsest on."""
    shown: list[Grid] = []
    for count in SHOWN:
        tiles = [min(count, -(-size // step)) for size, step in zip(image, steps, strict=True)]
        candidate = grid(image, tiles, halo, steps)
        if candidate.is_finer_than_halo or candidate in shown:
            break
        shown.append(candidate)
    if best is not None and best not in shown:
        shown.append(best)
    return sorted(shown, key=lambda one: math.prod(one.tiles))


def _rows(
    shown: Sequence[Grid],
    best: Grid | None,
    tile_bytes: Callable[[Grid], float],
    memory_bytes: int,
) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("tiles", "largest window", "F", "F inside", "memory (MiB)", "")]
    for tiling in shown:
        mark = (
            "best" if tiling == best else "" if tile_bytes(tiling) <= memory_bytes else "too large"
        )
        rows.append(
            (
                _times(tiling.tiles),
                _times(tiling.largest_window),
                f"{tiling.redundancy:.2f}",
                f"{tiling.inner_redundancy:.2f}",
                f"{tile_bytes(tiling) / MIB:,.0f}",
                mark,
            )
        )
    return rows


def _best_line(best: Grid | None, weight_bytes: int, memory_bytes: int) -> str:
    if best is not None:
        aligned = [axis[-1].end for axis in best.axes]
        patch = "" if aligned == list(best.image) else f" and patch = {aligned}"
        return (
            f"Best: {_times(best.tiles)} tiles, the least redundancy of those that fit: train with "
            f"tiling = {list(best.tiles)}{patch}."
        )
    if weight_bytes >= memory_bytes:
        return (
            f"None fits: weights, gradients and Adam alone take {weight_bytes / MIB:,.0f} MiB. Cut "
            "the network into stages (--stages)."
        )
    return (
        "None fits that is not finer than its halo. Use large-model support (swap), split, or a "
        "smaller network."
    )


def _statistics_lines(model: keras.Model) -> list[str]:
    layers = statistics_layers(model)
    if not layers:
        return []
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    return [
        f"Not exact: {layers[0]}{more} normalize by statistics of the whole image, which no halo",
        "gives. Gradients on tiles were 13 to 25 % off where this was measured. With `split` they",
        "are exact.",
    ]


def _times(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
