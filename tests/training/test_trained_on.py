"""What a run records of its images tells whether others are in their place."""

import numpy as np
import pytest
from PIL import Image

from tfunet.data.cache import build_cache
from tfunet.data.source import open_source
from tfunet.data.split import Split
from tfunet.record import RunFolder
from tfunet.training.trained_on import contents, contents_changed, training_files

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
    assert not contents_changed(record, before, SPLIT)
    record.write_data({**facts, "contents": contents(before, SPLIT)})
    change(tmp_path)
    assert contents_changed(record, decoded(tmp_path), SPLIT) == is_other
    (record.path / "data.json").write_text("{")
    assert not contents_changed(record, before, SPLIT)


def test_the_files_of_the_training_cases(tmp_path):
    for name in "abc":
        write(tmp_path, name)
    source = opened(tmp_path)
    assert training_files(source, SPLIT) == [f"{tmp_path.resolve()}/{name}.png" for name in "ac"]
    assert training_files(open_source("cells", {"num_cases": 3, "size": 32}), SPLIT) == []
