"""Small trained runs, and an image that is larger than their patch."""

import numpy as np
import pytest
import tifffile

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.single_device import SingleDevice

SHAPE = (75, 92)


def scene(shape, seed):
    """An image of three channels with brighter squares, and its mask."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 2000, (*shape, 3)).astype(np.uint16)
    mask = np.zeros(shape, np.uint8)
    for row, column in rng.integers(0, min(shape) - 10, (8, 2)):
        mask[row : row + 10, column : column + 10] = 1
    image[mask > 0] += 30000
    return image, mask


def write_tiled(path, array):
    tifffile.imwrite(
        path,
        array,
        tile=(16, 32),
        compression="zlib",
        photometric="minisblack",
        planarconfig="contig" if array.ndim == 3 else None,
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Three cases as tiled TIFF, and `scene.tif`, which no run was trained on."""
    root = tmp_path_factory.mktemp("scenes")
    for index in range(3):
        image, mask = scene((64, 64), index)
        write_tiled(root / f"case{index}_image.tif", image)
        write_tiled(root / f"case{index}_mask.tif", mask)
    write_tiled(root / "scene.tif", scene(SHAPE, 7)[0])
    return root


@pytest.fixture(scope="session")
def train(folder, tmp_path_factory):
    """A function that trains a network for a few steps and returns its folder."""

    def trained(normalization="none", **options):
        place = tmp_path_factory.mktemp("run")
        config = RunConfig(
            model_options={"filters": 2, "levels": 2, "normalization": normalization},
            data="folder",
            data_options={
                "root": str(folder),
                "images": "{case}_image.tif",
                "masks": "{case}_mask.tif",
                **options,
            },
            patch=(32, 32),
            replica_batch=2,
            patches_per_case=60,
            foreground_share=0.5,
            epochs=1,
            learning_rate=0.01,
            cache_dir=str(place / "cache"),
        )
        run(config, SingleDevice(Launch()), place / "run")
        return place / "run"

    return trained


@pytest.fixture(scope="session")
def local_run(train):
    """A run whose network has no statistics of the whole image."""
    return train()
