"""A generated data set of two large images with four channels, made in parts."""

import numpy as np

from tfunet.data.source import DataSource, StoredCase

CHANNELS = 4
PART_ROWS = 256
VERSION = 1


def rows_of(case: int, first: int, last: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of an image, (rows, size, CHANNELS) float32, and of its mask."""
    rows, columns = np.arange(first, last)[:, None] + 400 * case, np.arange(size)
    mask = np.sin(rows / 37) * np.sin(columns / 53) > 0.6
    rng = np.random.default_rng([case, first])
    image = rng.standard_normal((last - first, size, CHANNELS), np.float32)
    image += mask[..., None] * np.linspace(0.5, 2, CHANNELS, dtype=np.float32)
    return image, mask.astype(np.uint8)


def open_scene(*, size: int) -> DataSource:
    """Open two images of size x size, one to train on and one to validate with."""

    def parts(case: int) -> StoredCase:
        cuts = range(0, size, PART_ROWS)
        return StoredCase(
            shape=(size, size),
            parts=(rows_of(case, at, min(at + PART_ROWS, size), size) for at in cuts),
        )

    def read(case: int) -> tuple[np.ndarray, np.ndarray]:
        images, masks = zip(*parts(case).parts, strict=True)
        return np.concatenate(images), np.concatenate(masks)

    names = ("scene", "validation")
    return DataSource(
        name="scene",
        case_ids=names,
        groups=names,
        num_classes=2,
        channels=CHANNELS,
        regions={"spot": (1,)},
        patch=(size, size),
        fingerprint=f"scene {size} {VERSION}",
        read=read,
        stored=parts,
        shapes=((size, size),) * 2,
    )
