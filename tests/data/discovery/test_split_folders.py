"""`tfunet init`: folders of masks beside those of images, and sides of a split."""

import re
import tomllib

import numpy as np
import pytest
from init_folders import begun, grey, save, square
from pages import blocks
from paths import ROOT

from tfunet.cli import main
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.discovery.pairs import find_pairs
from tfunet.data.source import open_source


@pytest.mark.parametrize("has_test", [False, True])
def test_folders_that_are_sides_of_a_split(has_test, tmp_path):
    for side in ("train", "val", *(["test"] if has_test else [])):
        for number in range(3):
            save(tmp_path / side / "images" / f"{number}.png", grey())
            save(tmp_path / side / "masks" / f"{number}.png", square(1))
    table = begun(tmp_path)
    options = table["data_options"]
    assert options["images"] == "{group}/images/{case}.png"
    assert options.get("exclude", []) == ["test/images/{case}.png"] * has_test
    assert table["validation_groups"] == ["val"]


PLAIN = ["train", "val", "test"]


@pytest.mark.parametrize(
    ("image", "mask", "sides", "without_masks"),
    [
        ("{}/{}.png", "{}annot/{}.png", PLAIN, ""),
        ("{}/{}.png", "{}_labels/{}_L.png", PLAIN, ""),
        ("{}_images/{}.png", "{}_masks/{}.png", PLAIN, ""),
        ("d/{}/s/{}.png", "d/annot_{}/s/{}.png", ["Training", "Validation", "Testing"], ""),
        ("images/{}/{}.png", "masks/{}/{}.png", PLAIN, "test"),
        ("{}/{}.png", "{}mask/{}.png", PLAIN, "test"),
    ],
)
def test_folders_of_masks_beside_those_of_images(image, mask, sides, without_masks, tmp_path):
    for side in sides:
        for number in range(3):
            save(tmp_path / image.format(side, number), grey())
            if side != without_masks:
                save(tmp_path / mask.format(side, number), square(1))
    run = describe_folder(str(tmp_path))
    table = begun(tmp_path)
    options = table["data_options"]
    assert options["images"] == image.format("{group}", "{case}")
    assert options["masks"] == mask.format("{group}", "{case}")
    assert table["validation_groups"] == [sides[1]]
    assert "for the final score" in run.summary()
    assert set(run.source.groups) == set(sides[:2])
    # What the comment says to write for the final score has the cases for tests alone.
    if not without_masks:
        (line,) = re.findall("^# (exclude = .*)$", run.text([]), re.MULTILINE)
        scored = open_source("folder", {**options, **tomllib.loads(line)})
        assert set(scored.groups) == {sides[2]}


def test_train_and_test_without_val_are_split_by_a_share(tmp_path):
    for side in ("train", "test"):
        for number in range(5):
            save(tmp_path / side / f"{number}.png", grey())
            save(tmp_path / f"{side}annot" / f"{number}.png", square(1))
    run, table = describe_folder(str(tmp_path)), begun(tmp_path)
    assert table["data_options"]["images"] == "train/{case}.png"
    assert (table["validation_share"], len(run.source.case_ids)) == (0.2, 5)
    assert "{group} keeps" not in run.text([])
    assert "write test in the place of train" in " ".join(run.text([]).replace("#", "").split())


def test_the_example_of_the_page_is_what_is_written(tmp_path):
    page = (ROOT / "docs" / "data.md").read_text()
    examples = {
        block.split("\n")[0]: tomllib.loads(block)["data_options"] for block in blocks(page, "toml")
    }
    for side in PLAIN:
        for number in range(4):
            save(tmp_path / side / f"{number}.png", grey())
            mask = np.repeat(np.array([0, 1, 2, 11], np.uint8), 8)[:, None].repeat(48, 1)
            save(tmp_path / f"{side}annot" / f"{number}.png", mask)
    run = describe_folder(str(tmp_path), labels="classes")
    written = tomllib.loads(run.text([]))["data_options"]
    shown, scored = examples["# street.toml"], examples["# test.toml"]
    for key in ("images", "masks", "exclude"):
        assert written[key] == shown[key]
    assert shown | {"exclude": 0} == scored | {"exclude": 0}
    assert f"# exclude = {scored['exclude']}".replace("'", '"') in run.text([]).splitlines()


def test_many_names_are_shown_by_their_folders(tmp_path):
    files = [f"{folder}/{n}TP_{n}.png" for folder in ("a", "azz") for n in range(100, 160)]
    with pytest.raises(ValueError, match="do not say which") as error:
        find_pairs(files, root=tmp_path)
    assert "'a/{case}.png'  (60 files)\n  'azz/{case}.png'  (60 files)\nSay" in str(error.value)
    example = re.search("--images '(.*)' --masks '(.*)'", str(error.value))
    pairs = find_pairs(files, *([pattern] for pattern in example.groups()), root=tmp_path)
    assert len(pairs.values) == 60


def test_a_folder_in_the_place_of_a_configuration_is_told_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for side in ("train", "val"):
        for number in range(4):
            save(tmp_path / "my street" / side / f"{number}.png", grey())
            save(tmp_path / "my street" / f"{side}annot" / f"{number}.png", square(1))
    assert main(["data", "check", "my street"]) == 2
    assert "write a configuration for it first: tfunet init 'my street'" in capsys.readouterr().err
    assert main(["init", "my street"]) == 0
    assert capsys.readouterr().err == "Reading masks: 8 files\n"
    assert main(["data", "check", "."]) == 2
    assert "is a folder, not a configuration. It holds run.toml." in capsys.readouterr().err
    assert main(["data", "check", "run.toml"]) == 0
    assert capsys.readouterr().err == "Reading images and masks: 8 cases\n"
