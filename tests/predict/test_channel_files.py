"""The order of the files of an image."""

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tfunet import exit_codes
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.prediction.channel_files import check_order, image_patterns
from tfunet.single_device import SingleDevice

BRATS = ("{case}/flair.nii.gz", "{case}/t1c.nii.gz")


@pytest.mark.parametrize(
    ("patterns", "files"),
    [
        (BRATS, ["a/t1c.nii.gz", "a/flair.nii.gz"]),
        (("{case}_0000.*", "{case}_0001.*"), ["x_0001.nii.gz", "x_0000.nii.gz"]),
        # Folders tell apart what names do not.
        (("flair/{case}.png", "t1c/{case}.png"), ["new/t1c/7.png", "new/flair/7.png"]),
        (("{case}/flair/", "{case}/t1c/"), ["a/t1c", "a/flair"]),
        (("{case}.h5:a/x", "{case}.h5:b/x"), ["1.h5:b/x", "1.h5:a/x"]),
        ((*BRATS, "{case}/t2.nii.gz"), ["t1c.nii.gz", "t2.nii.gz", "flair.nii.gz"]),
    ],
)
def test_another_order_is_refused_and_the_right_one_is_said(patterns, files):
    with pytest.raises(ValueError, match="in another order than those of the training") as caught:
        check_order([Path(file) for file in files], patterns)
    right = str(caught.value).rpartition("images: ")[2].split(",")
    assert sorted(right) == sorted(files)
    check_order([Path(file) for file in right], patterns)


@pytest.mark.parametrize(
    ("patterns", "files"),
    [
        (BRATS, ["a/t1c.nii", "a/flair.nii"]),  # Other names, which tell nothing.
        (BRATS, ["a/x.nii.gz", "a/flair.nii.gz"]),
        (BRATS, ["a/flair.nii.gz", "a/flair.nii.gz"]),
        (("{case}.png", "{case}_b.png"), ["x_b.png", "x.png"]),  # One fits both patterns.
        (("{group}/{case}.png", "{side}/{case}.png"), ["b/x.png", "a/x.png"]),
        ((), ["a.png", "b.png"]),
    ],
)
def test_names_that_tell_nothing_are_not_judged(patterns, files):
    check_order([Path(file) for file in files], patterns)


def test_where_the_patterns_are_known(tmp_path):
    config = RunConfig(data="folder", data_options={"images": list(BRATS)})
    assert image_patterns(config, 2) == BRATS
    assert image_patterns(config, 1) == ()
    assert image_patterns(RunConfig(data="csv", data_options={"images": ["a", "b"]}), 2) == ()
    assert image_patterns(RunConfig(data="nnunet"), 2)[1] == "imagesTr/{case}_0001.*"
    file = tmp_path / "set.toml"
    file.write_text(f"images = {json.dumps(BRATS)}\n")
    assert image_patterns(RunConfig(data=str(file)), 2) == BRATS
    file.unlink()
    assert image_patterns(RunConfig(data=str(file)), 2) == ()


def test_a_run_on_two_files_takes_them_in_its_order_only(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for case in "abc":
        (tmp_path / case).mkdir()
        for name in ("flair", "t1c"):
            image = rng.integers(0, 200, (32, 32)).astype(np.uint8)
            tifffile.imwrite(tmp_path / case / f"{name}.tif", image)
        tifffile.imwrite(tmp_path / case / "mask.tif", (image > 100).astype(np.uint8))
    config = RunConfig(
        model_options={"filters": 2, "levels": 2},
        data="folder",
        data_options={
            "root": str(tmp_path),
            "images": ["{case}/flair.tif", "{case}/t1c.tif"],
            "masks": "{case}/mask.tif",
        },
        patch=(16, 16),
        patches_per_case=2,
        epochs=1,
        cache_dir=str(tmp_path / "cache"),
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    command = ["predict", str(tmp_path / "run"), "--no-overlay", "--out", str(tmp_path / "out")]
    flair, t1c = (f"{tmp_path}/{{case}}/{name}.tif" for name in ("flair", "t1c"))
    assert main([*command, f"{t1c},{flair}"]) == exit_codes.BAD_INPUT
    assert "flair.tif is file 1 ('{case}/flair.tif')" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, f"{flair},{t1c}"]) == exit_codes.OK
    assert {path.name for path in (tmp_path / "out").glob("*.tif")} == {"a.tif", "b.tif", "c.tif"}
    facts = json.loads((tmp_path / "out/a.json").read_text())
    assert facts["channels"] == config.data_options["images"]
    # What was predicted is still known.
    assert main([*command, f"{flair},{t1c}"]) == exit_codes.OK
    assert "a: done already" in capsys.readouterr().out
    export = ["export", str(tmp_path / "run"), "--to", "savedmodel", "--images"]
    assert main([*export, f"{t1c},{flair}"]) == exit_codes.BAD_INPUT
    assert "in another order" in capsys.readouterr().err
    assert main([*export, f"{flair},{t1c}"]) == exit_codes.OK
    facts = json.loads((tmp_path / "run/savedmodel/network.json").read_text())
    assert facts["channels"] == config.data_options["images"]
