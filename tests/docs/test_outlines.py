"""From outlines around real nuclei to a scored network, as docs/data.md says."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from pages import blocks
from paths import ROOT
from PIL import Image
from skimage.measure import find_contours

from tfunet import exit_codes
from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.data.source import open_source
from tfunet.loop import run
from tfunet.single_device import SingleDevice

NUCLEI = ROOT.parent / "shared/data/dsb2018_nuclei256"
TINY = {
    "model_options": {"filters": 4, "levels": 2},
    "patch": [64, 64],
    "global_batch": 2,
    "patches_per_case": 8,
    "learning_rate": 0.01,
    "steps": 30,
    "metrics": ["instance_f1"],
}


def outlines(labels):
    """The number of each object, and the polygons (x, y) around its parts."""
    for number in np.unique(labels)[1:]:
        around = find_contours(np.pad(labels == number, 1).astype(float), 0.5)
        yield int(number), [contour[:, ::-1] - 0.5 for contour in around]


def annotate(folder, kind):
    """Ten images, with the outlines of what their masks hold; the masks by name."""
    images = sorted((NUCLEI / "images").glob("*.png"))[:10]
    masks = {image.stem: np.array(Image.open(NUCLEI / "labels" / image.name)) for image in images}
    content = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "nucleus"}]}
    folder.mkdir()
    for key, image in enumerate(images):
        (folder / image.name).write_bytes(image.read_bytes())
        height, width = masks[image.stem].shape
        size = {"height": height, "width": width}
        content["images"].append({"id": key, "file_name": image.name, **size})
        shapes = []
        for number, parts in outlines(masks[image.stem]):
            content["annotations"].append(
                {"id": len(content["annotations"]), "image_id": key, "category_id": 1}
                | {"segmentation": [points.ravel().tolist() for points in parts]}
            )
            shapes += [
                {"label": "nucleus", "group_id": number, "points": points.tolist()}
                for points in parts
            ]
        if kind == "LabelMe":
            facts = {"imagePath": image.name, "imageHeight": height, "imageWidth": width}
            (folder / f"{image.stem}.json").write_text(json.dumps({"shapes": shapes, **facts}))
    if kind == "COCO":
        (folder / "instances.json").write_text(json.dumps(content))
    return masks


@pytest.mark.parametrize("kind", ["COCO", "LabelMe"])
def test_ten_annotated_images_become_a_scored_network(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    masks = annotate(tmp_path / "nuclei", kind)
    assert main(["init", "nuclei"]) == exit_codes.OK
    assert main(["data", "check", "run.toml"]) == exit_codes.OK
    assert "no defects" in capsys.readouterr().out
    table = tomllib.loads((tmp_path / "run.toml").read_text())
    source = open_source(table["data"], table["data_options"])
    for index, file in enumerate(source.files):
        truth = masks[Path(file).stem]
        np.testing.assert_array_equal(source.read(index)[1], truth > 0)
        numbers = source.objects(index, truth.shape)
        assert len(np.unique(numbers)) == len(np.unique(truth))
    if kind == "COCO":
        return  # What a network sees is the same.
    config = from_dict({**table, **TINY})
    run(config, SingleDevice(Launch()), tmp_path / "run")
    command = ["evaluate", "run", "run.toml", "--training_cases", "--out", "scores"]
    assert main(command) == exit_codes.OK
    said = capsys.readouterr().out
    assert "nucleus  Dice" in said
    assert "instance_f1  10" in said


def test_the_description_of_the_page_opens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    annotate(tmp_path / "wells", "COCO")
    path = tmp_path / "wells/annotations/instances.json"
    path.parent.mkdir()
    content = json.loads((tmp_path / "wells/instances.json").read_text())
    names = ("Cell", "cell?", "debris")
    content["categories"] = [{"id": key, "name": name} for key, name in enumerate(names, 1)]
    for key, annotation in enumerate(content["annotations"]):
        annotation["category_id"] = 1 + key % 3
    path.write_text(json.dumps(content))
    page = (ROOT / "docs/data.md").read_text()
    (text,) = (block for block in blocks(page, "toml") if block.startswith("# wells.toml\n"))
    config = from_dict(tomllib.loads(text))
    source = open_source(config.data, config.data_options)
    assert list(source.regions) == ["cell", "debris"]
    assert np.unique(source.read(0)[1]).tolist() == [0, 1, 2]


def test_run_lengths_in_a_table_become_masks_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train_images", "masks"):
        (tmp_path / name).mkdir()
    Image.fromarray(np.zeros((3, 5), np.uint8)).save("train_images/a.png")
    # Down the columns, from 1.
    Path("train.csv").write_text("ImageId,EncodedPixels\na.png,1 2 7 1\na.png,15 1\n")
    page = (ROOT / "docs/data.md").read_text()
    (code,) = (block for block in page.split("```\n") if block.startswith("import csv"))
    exec(code, {})
    expected = [[1, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 2]]
    assert np.array(Image.open("masks/a.png")).tolist() == expected
