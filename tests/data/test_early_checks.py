"""Errors of data come before TensorFlow is imported: `tfunet train` says them at once."""

import dataclasses
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from tfunet.arguments import from_dict
from tfunet.config.run import RunConfig
from tfunet.data.early_checks import check_data, check_early
from tfunet.data.source import open_source

DATA = {"images": "{case}.png", "masks": {"cell": "{case}_m.png"}}


@pytest.fixture
def folder(tmp_path):
    for name in "abcdef":
        Image.new("L", (32, 32), ord(name)).save(tmp_path / f"{name}.png")
        Image.new("L", (32, 32), 255).save(tmp_path / f"{name}_m.png")
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_options": {"images": "x/{case}.png"}}, "No image under"),
        ({"patch": [16, 16, 16]}, "has 3 sizes"),
        ({"validation_groups": ["z"]}, "has no group 'z'"),
        ({"global_batch": 40}, "An epoch has 5 training samples"),
        ({"metrics": ["nsd@1mm"]}, "state no pixel size"),
        ({"model_options": {"encoder_weights": "no.h5"}}, "'no.h5' is no file of weights"),
        ({"cache_dir": "$NOSUCH/cache"}, "names an environment variable that is not set"),
        ({"cache_dir": __file__}, "test_early_checks.py' is a file. Choose another cache_dir"),
        ({"model_options": {"filtrs": 8}}, "no option 'filtrs'. Did you mean 'filters'"),
        ({"augmentation": {"rotation90": True}, "patch": [16, 32]}, "rotation90"),
        ({"model_options": {"normalization": "instnace"}}, "Did you mean 'instance'"),
        ({"patch": [24, 32]}, r"must be a multiple of 16 \(4 halvings, levels=4\)"),
        ({"model": "nnunet2d"}, "levels=7"),
        ({"model": "cicek3d"}, "cicek3d is a 3D network"),
        ({"model_options": {"encoder": "MobileNetV2", "encoder_intensity": "byte"}}, "'bytes'"),
        (
            {"outputs": "regions", "loss_options": {"class_weights": [1, 2]}},
            "class_weights weigh classes, and with outputs = 'regions'",
        ),
        ({"tiling": [2, 1]}, "cannot be combined with loss = 'dice_crossentropy', which is not"),
        (
            {"tournament": {"trainers": 3, "round_steps": 1, "partition": True}},
            "at least 6 groups of training cases, and there are 5",
        ),
        (
            {"tournament": {"trainers": 2, "round_steps": 1, "partition": True}},
            "An epoch has [12] training samples, fewer than the global_batch=4",
        ),
    ],
)
def test_what_cannot_be_trained_on(changes, message, folder):
    options = {"root": str(folder), **DATA, **changes.get("data_options", {})}
    table = {"data": "folder", "global_batch": 4, **changes, "data_options": options}
    with pytest.raises(ValueError, match=message):
        check_early(from_dict(table))


def test_a_model_of_a_file_has_no_options(tmp_path):
    path = tmp_path / "net.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.15.1"}')
    table = {"data": "nowhere.py:open", "model": str(path)}
    check_early(from_dict(table))
    with pytest.raises(ValueError, match=r"came with model_options \['filters'\]\. Leave"):
        check_early(from_dict({**table, "model_options": {"filters": 4}}))


def test_defects_are_said_once_and_without_tensorflow(folder):
    for name in "abc":
        (folder / f"{name}_m.png").unlink()
    code = (
        "import sys\n"
        "from tfunet.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print('TensorFlow' if 'tensorflow' in sys.modules else 'none', code)\n"
    )
    (folder / "run.toml").write_text(
        'data = "folder"\n[data_options]\nroot = "."\nimages = "{case}.png"\n'
        'masks = { cell = "{case}_m.png" }\n'
    )
    command = [sys.executable, "-c", code, "train", "run.toml", "--out", "run"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == "none 2", ended.stderr
    assert ended.stderr.count("missing mask") == 1
    assert "a.png: missing mask: no file a_m.png (2 more like it: b.png, c.png)" in ended.stderr
    assert not (folder / "run").exists()


def test_code_of_users_is_not_run_before_the_run_is(tmp_path):
    check_early(from_dict({"data": "nowhere.py:open"}))


def test_a_patch_far_beyond_its_images_and_a_data_set_without_a_name_are_refused(tmp_path):
    for case in "abcd":
        np.save(tmp_path / f"{case}.npy", np.zeros((40, 40), np.float32))
        np.save(tmp_path / f"{case}_m.npy", np.ones((40, 40), np.uint8))
    options = {"root": str(tmp_path), "images": "{case}.npy", "masks": {"a": "{case}_m.npy"}}
    config = RunConfig(data="folder", data_options=options, patch=(100000, 100000))
    with pytest.raises(ValueError, match="makes 100000 x 100000 pixels of 40 x 40"):
        check_data(config)
    source = open_source("folder", options)
    with pytest.raises(ValueError, match="name of a data set must be a text, got None"):
        dataclasses.replace(source, name=None)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({"a": ["x", "y"], "b": ["y", "z"]}, "'a' and 'b' overlap, and neither lies in the other"),
        ({"all": ["x", "y"], "x": ["x"], "y": ["y"]}, "every class of 'all' is in a region inside"),
    ],
)
def test_regions_that_a_network_cannot_predict(regions, message, folder):
    classes = {"x": 255, "y": 1, "z": 2}
    options = {**DATA, "root": str(folder), "masks": "{case}_m.png", "classes": classes}
    table = {"data": "folder", "data_options": {**options, "regions": regions}}
    check_early(from_dict(table))  # They are scored.
    with pytest.raises(ValueError, match=message):
        check_early(from_dict({**table, "outputs": "regions"}))


def test_numbers_to_predict_are_no_regions():
    table = {"data": "universes", "model": "cosmoflow", "outputs": "regions"}
    with pytest.raises(ValueError, match="needs masks, and the data set 'universes' has numbers"):
        check_early(from_dict({**table, "loss": "MeanSquaredError"}))
