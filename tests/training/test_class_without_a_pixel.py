"""A class that no case has ends a run, as `tfunet data check` calls it a defect."""

import numpy as np
import pytest
from PIL import Image

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.single_device import SingleDevice


def test_a_class_without_a_pixel_ends_a_run_before_its_first_step(tmp_path):
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        Image.fromarray((pixels > 127).astype(np.uint8) * 255).save(tmp_path / f"{number}_m.png")
    config = RunConfig(
        data="folder",
        data_options={
            "root": str(tmp_path),
            "images": "{case}.png",
            "masks": "{case}_m.png",
            "classes": {"cell": 255, "nucleus": 7},
        },
        cache_dir=str(tmp_path / "cache"),
        global_batch=1,
        steps=1,
    )
    with pytest.raises(ValueError, match="no case has a pixel of the class 2 nucleus: nothing can"):
        run(config, SingleDevice(Launch()), tmp_path / "run")
    assert not (tmp_path / "run/steps.csv").exists()
