"""The tiles of arrays, as a pipeline of training feeds them."""

import numpy as np


def fed_tiles(cut, images, masks):
    """Return all tiles of some samples, a batch of one each."""
    rows = []
    for sample, (image, mask) in enumerate(zip(images, masks, strict=True)):
        for number, tile in enumerate(cut.even_tiles):
            window = tuple(
                slice(begin, begin + size)
                for begin, size in zip(tile.begin, cut.largest_window, strict=True)
            )
            rows.append(
                {
                    "image": image[window][None],
                    "mask": mask[window][None],
                    "own_start": np.subtract(tile.start, tile.begin).astype(np.int32)[None],
                    "own_stop": np.subtract(tile.stop, tile.begin).astype(np.int32)[None],
                    "tile": np.array([sample * cut.num_tiles + number]),
                }
            )
    return rows
