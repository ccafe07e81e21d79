"""Images of other bits or another scale than those of the training are told."""

import numpy as np
import pytest
import tifffile
from conftest import scene, write_tiled

from tfunet.cli import main


@pytest.mark.parametrize("intensity", [[0, 32000], "none"])
def test_predict_and_evaluate_tell_of_another_scale(train, intensity, tmp_path, capsys):
    run = str(train(intensity=intensity))
    image, mask = scene((64, 64), 9)
    write_tiled(tmp_path / "as_trained_image.tif", image)
    write_tiled(tmp_path / "between_0_and_1_image.tif", (image / 65535).astype(np.float32))
    for case in ("as_trained", "between_0_and_1"):
        write_tiled(tmp_path / f"{case}_mask.tif", mask)
    images = sorted(map(str, tmp_path.glob("*_image.tif")))
    for command in (
        ["predict", run, *images, "--out", str(tmp_path / "predicted")],
        ["evaluate", run, str(tmp_path), "--out", str(tmp_path / "scores")],
    ):
        capsys.readouterr()
        assert main(command) == 0
        said = capsys.readouterr().err
        assert "as_trained_image.tif:" not in said
        assert f"warning: {images[1]}: its values, " in said
        assert "Save it as the training images were, in bits and scale" in said
        if command[0] == "predict":
            assert tifffile.imread(tmp_path / "predicted" / "as_trained_image.tif").any()
