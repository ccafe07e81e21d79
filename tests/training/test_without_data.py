"""Pixels without data that the user has filled change neither weights nor scores."""

import numpy as np
import pytest

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.single_device import SingleDevice

NAMES = "abcde"


def trained(folder, *, label, **settings):
    """Train on images with a hole, under which the masks have this label."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name in NAMES:
        image = draw.normal(size=(16, 16)).astype(np.float32)
        mask = (image > 0).astype(np.uint8)
        image[3:9, 2:7], mask[3:9, 2:7] = np.nan, label
        np.save(folder / f"{name}.npy", image)
        np.save(folder / f"{name}_m.npy", mask)
    config = RunConfig(
        data="folder",
        data_options={
            "root": str(folder),
            "images": "{case}.npy",
            "masks": {"cell": "{case}_m.npy"},
            "fill": -3.0,
            "name": "holes",
        },
        patch=(16, 16),
        model_options={"filters": 4, "levels": 2},
        replica_batch=2,
        steps=2,
        cache_dir=str(folder / "cache"),
        **settings,
    )
    return run(config, SingleDevice(Launch()), folder / "run")


def test_masks_under_a_hole_change_neither_weights_nor_scores(tmp_path):
    metrics = ("hd95", "assd", "nsd@1px", "lesion_f1", "volume_difference", "cldice", "arand")
    zeros, ones = (trained(tmp_path / f"{label}", label=label, metrics=metrics) for label in (0, 1))
    for name in ("weights_hash", "loss", "val_loss", "dice"):
        assert zeros[name] == ones[name]
    for table in ("cases.csv", "confusion.csv"):
        first, second = ((tmp_path / label / "run" / table).read_text() for label in "01")
        assert first == second


def test_what_would_count_pixels_without_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"metrics=\('accuracy',\) would count them. Leave one"):
        trained(tmp_path / "a", label=0, metrics=("hd95", "accuracy"))
