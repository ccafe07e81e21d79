"""What a run records of its images tells whether others are in their place."""

import numpy as np
import pytest
from PIL import Image

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.data.cache import build_cache
from tfunet.data.source import open_source
from tfunet.data.split import Split
from tfunet.loop import run
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice
from tfunet.training.trained_on import contents, first_contents, training_files

SPLIT = Split(train=(0, 2), validation=(1,))
RNG = np.random.default_rng(0)


def write(folder, name, box=10):
    mask = np.zeros((32, 40), np.uint8)
    mask[:box, :box] = 1
    Image.fromarray(RNG.integers(0, 256, mask.shape).astype(np.uint8)).save(folder / f"{name}.png")
    Image.fromarray(mask).save(folder / f"{name}_m.png")


def opened(folder):
    patterns = {"images": "{case}.png", "masks": {"cell": "{case}_m.png"}}
    return open_source("folder", {"root": str(folder), **patterns})


def decoded(folder):
    return build_cache(opened(folder), folder / "cache", patch=(32, 32))


def touch(folder):
    (folder / "b.png").touch()


def other_image(folder):
    write(folder, "b")


def other_mask(folder):
    mask = np.array(Image.open(folder / "c_m.png"))
    mask[20] = 1
    Image.fromarray(mask).save(folder / "c_m.png")


@pytest.mark.parametrize(("change", "is_other"), [(touch, 0), (other_image, 1), (other_mask, 1)])
def test_other_images_and_masks_are_noticed(tmp_path, change, is_other):
    for name in "abc":
        write(tmp_path, name)
    record = RunFolder(tmp_path / "run")
    record.create()
    before = decoded(tmp_path)
    facts = {"name": "set", "channels": 1, "num_classes": 2, "patch": [32, 32], "preparation": None}
    # A record of an earlier version tells nothing.
    record.write_data(facts)
    assert first_contents(record) is None
    record.write_data({**facts, "contents": contents(before, SPLIT)})
    change(tmp_path)
    assert (first_contents(record) != contents(decoded(tmp_path), SPLIT)) == is_other
    (record.path / "data.json").write_text("{")
    assert first_contents(record) is None


def test_the_files_of_the_training_cases(tmp_path):
    for name in "abc":
        write(tmp_path, name)
    source = opened(tmp_path)
    assert training_files(source, SPLIT) == [f"{tmp_path.resolve()}/{name}.png" for name in "ac"]
    assert training_files(open_source("cells", {"num_cases": 3, "size": 32}), SPLIT) == []


def test_each_resume_says_that_program_and_images_are_others_than_at_the_begin(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in "abcd":
        write(tmp_path, name)
    program = (
        "import keras\n"
        "def build(*, image_shape, num_classes):\n"
        "    image = keras.Input(image_shape)\n"
        "    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(image))\n"
    )
    (tmp_path / "net.py").write_text(program)
    files = [tmp_path / "run" / name for name in ("programs/net.py", "programs.json")]

    def said(epochs):
        config = RunConfig(
            model="net.py:build",
            data="folder",
            data_options={"root": ".", "images": "{case}.png", "masks": {"cell": "{case}_m.png"}},
            global_batch=2,
            patch=(32, 32),
            epochs=epochs,
            cache_dir="cache",
        )
        record = RunFolder(tmp_path / "run")
        record.create()
        record.begin(config)
        run(config, SingleDevice(Launch()), record.path)
        return [line for line in capsys.readouterr().out.splitlines() if "warning: " in line]

    assert said(1) == []
    kept = [file.read_bytes() for file in files]
    assert said(2) == []
    other_image(tmp_path)
    (tmp_path / "net.py").write_text(f"{program}# changed\n")
    for epochs in (3, 4):
        (of_program, of_images) = said(epochs)
        assert of_program == (
            "warning: net.py is another than the one that this run began with (kept: "
            f"{files[0]}). Start a new run, or restore the file."
        )
        assert of_images.startswith("warning: images or masks are others than those")
    assert kept == [file.read_bytes() for file in files]
