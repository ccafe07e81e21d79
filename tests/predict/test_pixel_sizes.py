"""Images whose pixels are of other sizes than those of the training are told."""

import nibabel
import numpy as np
import pytest

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.loop import run
from tfunet.prediction.pixel_sizes import other_sizes
from tfunet.single_device import SingleDevice

TRAINED = ((1.0, 0.5), (1.0, 0.8))


@pytest.mark.parametrize(
    ("size", "unit", "is_told"),
    [
        ((1.0, 0.5), "mm", False),
        ((1.05, 0.85), "mm", False),
        ((1.0, 1.0), "mm", True),
        ((0.8, 0.6), "mm", True),
        ((1000.0, 600.0), "µm", False),
        ((1000.0, 600.0), "mm", True),
        ((4.0, 4.0), "", False),  # The unit is not known.
        (None, "mm", False),
        ((4.0, 4.0, 4.0), "mm", False),
    ],
)
def test_a_tenth_beyond_those_of_the_training_is_told(size, unit, is_told):
    line = other_sizes(TRAINED, "mm", [("good", (1.0, 0.7), "mm"), ("odd", size, unit)])
    assert bool(line) == is_told
    assert not is_told or line.startswith("1 image (odd) with pixels of ")
    assert other_sizes((), "mm", [("odd", size, unit)]) == ""


def write(path, array, size):
    nibabel.save(nibabel.Nifti1Image(array, np.diag([size, 1.0, 1.0, 1.0])), path)


@pytest.mark.parametrize("target", [None, 1.0])
def test_predict_tells_it_unless_images_are_resampled(target, tmp_path, capsys):
    dice = np.random.default_rng(0)
    for case in range(3):
        image = dice.normal(size=(16, 16, 16)).astype(np.float32)
        write(tmp_path / f"{case}.nii", image, 1.0)
        write(tmp_path / f"{case}_m.nii", (image > 0.5).astype(np.uint8), 1.0)
    (tmp_path / "others").mkdir()
    write(tmp_path / "others/new.nii", dice.normal(size=(16, 16, 16)).astype(np.float32), 2.5)
    (tmp_path / "others/again.nii").write_bytes((tmp_path / "2.nii").read_bytes())
    files = {"root": str(tmp_path), "images": "{case}.nii", "masks": "{case}_m.nii"}
    config = from_dict(
        {
            "data": "folder",
            "data_options": {**files, **({"target_pixel_size": target} if target else {})},
            "model_options": {"filters": 2, "levels": 1},
            "patch": [16, 16, 16],
            "global_batch": 2,
            "steps": 1,
            "cache_dir": str(tmp_path / "cache"),
        }
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    command = ["predict", str(tmp_path / "run"), "--no-overlay", "--out", str(tmp_path / "out")]
    for name, size in (("again", ""), ("new", "2.5 x 1 x 1")):
        capsys.readouterr()
        assert main([*command, str(tmp_path / f"others/{name}.nii")]) == 0
        said = capsys.readouterr().err
        is_told = f"with pixels of {size} mm; those of the training have 1 x 1 x 1 mm" in said
        assert is_told == (name == "new" and target is None), said
