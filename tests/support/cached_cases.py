"""A small data set for tests of the cache."""

import numpy as np

from tfunet.data.source import DataSource

EXTENTS = ((6, 9), (8, 3), (5, 7))


PATCH = (4, 5)


def decode(index):
    extent = EXTENTS[index]
    image = np.random.default_rng(index).random((*extent, 2), dtype=np.float32)
    return image, (image[..., 0] * 3).astype(np.uint8)


def source_of(read=decode, num_cases=3, fingerprint="one"):
    names = tuple(f"case{index}" for index in range(num_cases))
    return DataSource(
        name="odd/cells",
        case_ids=names,
        groups=names,
        num_classes=3,
        channels=2,
        regions={"cell": (1, 2)},
        patch=PATCH,
        fingerprint=fingerprint,
        read=read,
    )


def refuse(index):
    raise RuntimeError("must not be read")
