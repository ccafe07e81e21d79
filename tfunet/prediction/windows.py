"""The windows of an image: their shape and halo, and how the network predicts them."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tqdm import tqdm

from tfunet.data.lazy_image import LazyImage
from tfunet.geometry.tiles import Predict, Tiling, blended, with_halo
from tfunet.prediction.ahead import ahead
from tfunet.prediction.ensemble import Member, joint_patch
from tfunet.prediction.network import WindowFacts
from tfunet.prediction.options import Options

# Voxels that a device takes at once: with fewer, what an op begins with takes most of its time.
VOXELS_AT_ONCE = 2**16


def windows_at_once(window: Sequence[int]) -> int:
    """Return how many windows of this spatial shape a device takes at once."""
    return max(1, VOXELS_AT_ONCE // math.prod(window))


def window_and_halo(
    members: Sequence[Member], options: Options, facts: WindowFacts | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape of a window, and its halo along each axis."""
    rank = len(members[0].network.patch)
    if options.window is not None and len(options.window) != rank:
        raise ValueError(
            f"--window {','.join(map(str, options.window))} has {len(options.window)} sizes; this "
            f"network takes {rank}."
        )
    if facts is None:
        return options.window or joint_patch(members), None
    if options.halo is None and facts.reach is None:
        raise ValueError(
            f"It is not known how far this network looks ({facts.reach_unknown}). Give --halo, or "
            "use --tiles gaussian."
        )
    halo = (options.halo,) * rank if options.halo is not None else facts.reach or ()
    # In a window that is 8 halos wide, 56 % are no halo. In a volume it would be too large.
    halos = 8 if rank == 2 else 4
    patch = joint_patch(members) if options.window is None else options.window
    sizes = [
        max(length, -(-halos * margin // step) * step)
        for length, margin, step in zip(patch, halo, facts.alignment, strict=True)
    ]
    return options.window or tuple(sizes), halo


def tiling_of(
    shape: Sequence[int],
    window: Sequence[int],
    halo: Sequence[int] | None,
    facts: WindowFacts | None,
) -> Tiling:
    if facts is None or halo is None:
        return blended(shape, window)
    return with_halo(shape, window, halo, facts.alignment)


def predictor(
    tiling: Tiling,
    images: Sequence[LazyImage],
    forward: Callable[..., np.ndarray],
    batch: int,
    bar: tqdm | None = None,
) -> Predict:
    """Return the function for `Tiling.line_sum` that predicts windows.

    Args:
        images: An image as it is prepared in different ways; `forward` takes windows of each.
        batch: How many windows it takes at once.
    """

    def read(starts: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        return [
            np.stack([_padded_window(image, tiling, start) for start in starts]) for image in images
        ]

    def predict_windows(starts: Sequence[tuple[int, ...]]) -> Iterator[np.ndarray]:
        groups = [starts[first : first + batch] for first in range(0, len(starts), batch)]
        for windows in ahead(read, groups):
            yield from forward(*windows)
            if bar is not None:
                bar.update(len(windows[0]))

    return predict_windows


def _padded_window(image: LazyImage, tiling: Tiling, start: tuple[int, ...]) -> np.ndarray:
    """Return a window of the image, padded with 0, which is the mean of a z-scored image."""
    first = np.subtract(start, tiling.before)
    low = np.maximum(first, 0)
    high = np.minimum(first + tiling.window, tiling.extent)
    pixels = image.read(low.tolist(), high.tolist())
    padded = np.zeros((*tiling.window, image.channels), np.float32)
    padded[tuple(map(slice, low - first, high - first))] = pixels
    return padded
