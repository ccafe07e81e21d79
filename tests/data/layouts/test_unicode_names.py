"""Names in two Unicode forms are one name, and what is no UTF-8 is named."""

import json
import os
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from tfunet.cli import main
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.source import open_source

NAMES = ("Zürich 1", "naïve", "日本", "가", "plain")
NO_UTF8 = os.fsdecode(b"caf\xe9")


def save(path, *, is_mask=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    dice = np.random.default_rng(len(path.name))
    pixels = dice.integers(0, 255, (16, 16)).astype(np.uint8)
    Image.fromarray((pixels > 200).astype(np.uint8) * 255 if is_mask else pixels).save(path)


def write(root, image, mask, forms, names=NAMES):
    for name in names:
        for pattern, form, is_mask in ((image, forms[0], False), (mask, forms[1], True)):
            save(root / normalize(form, pattern.format(name)), is_mask=is_mask)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{}.png", "{}.json"),
        ("images/{}.png", "masks/{}.png"),
        ("{}.png", "{}_mask.png"),
        ("{}/image.png", "{}/mask.png"),
    ],
)
def test_init_finds_cases_in_any_alphabet(image, mask, form, tmp_path):
    names = ("é1", "ö2", "ü3", "ñ4", "Я5", "ß6")
    shape = {"label": "a", "points": [[1, 1], [9, 1], [9, 9]], "shape_type": "polygon"}
    for name in names:
        save(tmp_path / normalize(form, image.format(name)))
        path = tmp_path / normalize(form, mask.format(name))
        if mask.endswith("json"):
            path.write_text(json.dumps({"shapes": [shape]}))
        else:
            save(path, is_mask=True)
    run = describe_folder(str(tmp_path))
    assert len(run.source.case_ids) == len(names)
    assert not run.unused


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("images/{}.png", "masks/{}.png"),
        ("{}.png", "{}_mask.png"),
        ("{}/image.png", "{}/mask.png"),
        ("bilder größe/{}.png", "masks größe/{}.png"),
        ("in/{}.png", "masks/{}/1.png"),
    ],
)
def test_both_forms_of_a_name_are_one(image, mask, forms, tmp_path):
    write(tmp_path, image, mask, forms)
    run = describe_folder(str(tmp_path), **({"labels": "classes"} if "/1" not in mask else {}))
    assert not run.source.defects
    assert {name.removesuffix("_image") for name in run.source.case_ids} == {
        normalize("NFC", name) for name in NAMES
    }
    options = {
        "root": str(tmp_path),
        "images": image.format("{case}"),
        "masks": mask.format("{case}"),
    }
    for form in ("NFC", "NFD"):
        given = {key: normalize(form, value) for key, value in options.items() if key != "root"}
        source = open_source("folder", {**options, **given, "classes": {"a": 255}})
        assert len(source.case_ids) == len(NAMES)
        assert source.read(0)[1].any()


def test_tables_and_lists_name_files_in_either_form(tmp_path):
    write(tmp_path, "images/{}.png", "masks/{}.png", ("NFD", "NFD"))
    (tmp_path / "pairs.csv").write_text(
        "image,mask\n" + "".join(f"images/{name}.png,masks/{name}.png\n" for name in NAMES)
    )
    (tmp_path / "groups.csv").write_text(
        "id,who\n" + "".join(f"{normalize('NFD', name)},{name[0]}\n" for name in NAMES)
    )
    pairs = [{"image": f"images/{name}.png", "label": f"masks/{name}.png"} for name in NAMES]
    labels = {"0": "background", "255": "cell"}
    (tmp_path / "dataset.json").write_text(json.dumps({"training": pairs, "labels": labels}))
    folder = {
        "root": str(tmp_path),
        "images": "images/{case}.png",
        "masks": {"a": "masks/{case}.png"},
        "table": {"file": "groups.csv", "key": "id", "group": "who"},
    }
    csv = {"file": str(tmp_path / "pairs.csv"), "classes": {"cell": 255}}
    for data, options in (("csv", csv), ("msd", {"root": str(tmp_path)}), ("folder", folder)):
        assert len(open_source(data, options).case_ids) == len(NAMES)


def test_two_files_of_one_name_are_told(tmp_path):
    write(tmp_path, "images/{}.png", "masks/{}.png", ("NFC", "NFC"))
    save(tmp_path / "masks" / normalize("NFD", "naïve.png"), is_mask=True)
    options = {"root": str(tmp_path), "images": "images/{case}.png", "masks": "masks/{case}.png"}
    source = open_source("folder", {**options, "classes": {"a": 255}}, skip_bad=True)
    (defect,) = source.defects
    assert "2 files match masks/naïve.png" in defect.what


def test_a_name_that_is_no_utf8_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "d", "images/{}.png", "masks/{}.png", ("NFC", "NFC"), (*NAMES, NO_UTF8))
    assert main(["init", "d"]) == 0
    assert main(["data", "check", "run.toml"]) == 2
    said = capsys.readouterr().out
    assert r"images/caf\udce9.png: its name is no UTF-8" in said
    assert "convmv" in said
    (tmp_path / "d").rename(tmp_path / NO_UTF8)
    assert main(["init", NO_UTF8, "--out", "other.toml"]) == 2
    assert r"error: caf\udce9: its name is no UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "other.toml").exists()
