"""Data sets in layouts that users have open by their own descriptions."""

import json
import re

import h5py
import nibabel
import numpy as np
import pytest
from PIL import Image

from tfunet.arguments import parse
from tfunet.data.check import check
from tfunet.data.source import open_source

RNG = np.random.default_rng(0)


def volume(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), path)


def labels(high=4):
    return RNG.integers(0, high, (8, 9, 7)).astype(np.uint8)


def msd(root, about=None):
    for case in ("BRATS_001", "BRATS_002", "unlisted"):
        volume(root / f"imagesTr/{case}.nii.gz", RNG.normal(size=(8, 9, 7, 2)).astype(np.float32))
        volume(root / f"labelsTr/{case}.nii.gz", labels())
    listed = [
        {"image": f"./imagesTr/{case}.nii.gz", "label": f"./labelsTr/{case}.nii.gz"}
        for case in ("BRATS_001", "BRATS_002")
    ]
    description = {
        "modality": {"0": "FLAIR", "1": "T1w"},
        "labels": {"0": "background", "1": "edema", "2": "core", "3": "enhancing"},
        "training": listed,
    }
    # As the archives have it: value to name.
    description["labels"] = {str(i): n for i, n in enumerate(description["labels"].values())}
    (root / "dataset.json").write_text(json.dumps({**description, **(about or {})}))
    return root


def test_a_decathlon_task_opens_by_its_dataset_json(tmp_path):
    options = {"root": str(msd(tmp_path)), "regions": {"whole": ["edema", "core", "enhancing"]}}
    source = open_source("msd", options)
    assert source.case_ids == ("BRATS_001", "BRATS_002")
    assert (source.channels, source.num_classes, source.regions) == (2, 4, {"whole": (1, 2, 3)})
    assert source.label_names() == {1: "1 edema", 2: "2 core", 3: "3 enhancing"}
    assert check(source).defects == ()
    other_way_round = {"background": 0, "edema": 1, "core": 2, "enhancing": 3}
    msd(tmp_path, {"labels": other_way_round})
    assert open_source("msd", {"root": str(tmp_path)}).regions["core"] == (2,)
    (tmp_path / "labelsTr" / "BRATS_002.nii.gz").unlink()
    with pytest.raises(ValueError, match=r"BRATS_002.nii.gz: missing: dataset.json lists it"):
        open_source("msd", options)


OUTSIDE = ["../outside/a.nii.gz", "/outside/a.nii.gz", "imagesTr/../../a.nii.gz", "./../a.nii.gz"]


@pytest.mark.parametrize("key", ["image", "label"])
@pytest.mark.parametrize("path", OUTSIDE)
def test_a_dataset_json_names_no_file_outside_of_its_folder(tmp_path, path, key):
    (tmp_path / "data").mkdir()
    inside = "imagesTr/BRATS_001.nii.gz"
    pairs = [{"image": inside, "label": inside}, {"image": inside, "label": inside, key: path}]
    root = msd(tmp_path / "data", {"training": pairs})
    with pytest.raises(ValueError, match=rf"training\[1\]\.{key}: .* leads out of the data set"):
        open_source("msd", {"root": str(root)})


def test_the_ending_of_an_nnunet_folder_leads_nowhere_else(tmp_path):
    options = nnunet(tmp_path, {"background": 0, "a": 1}, {"0": "CT"})
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "file_ending": "/../../x.nii.gz"}))
    with pytest.raises(ValueError, match=r"file_ending: .* leads out of the data set"):
        open_source("nnunet", options)


def nnunet(root, labels_, channels, ending=".nii.gz", version=2):
    for case in ("brain_1", "brain_2"):
        for number in range(len(channels)):
            volume(root / f"imagesTr/{case}_{number:04d}{ending}", RNG.normal(size=(8, 9, 7)))
        volume(root / f"labelsTr/{case}{ending}", labels())
    about = {"labels": labels_, "file_ending": ending, "channel_names": channels}
    if version == 1:
        about = {"labels": labels_, "modality": channels}
    (root / "dataset.json").write_text(json.dumps(about))
    return {"root": str(root)}


@pytest.mark.parametrize(
    ("given", "version", "regions"),
    [
        ({"background": 0, "a": 1, "b": 3, "c": 2}, 2, {"a": (1,), "b": (2,), "c": (3,)}),
        (
            {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3},
            2,
            {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)},
        ),
        # Version 1: value to name.
        ({"0": "background", "1": "a", "2": "b", "3": "c"}, 1, {"a": (1,), "b": (2,), "c": (3,)}),
    ],
)
def test_a_raw_nnunet_folder_opens_by_its_dataset_json(tmp_path, given, version, regions):
    options = nnunet(tmp_path, given, {"0": "T1", "1": "T2"}, version=version)
    source = open_source("nnunet", options)
    assert source.case_ids == ("brain_1", "brain_2")
    assert (source.channels, source.regions) == (2, regions)
    report = check(source)
    assert report.defects == ()
    stored = np.asarray(nibabel.load(tmp_path / "labelsTr" / "brain_1.nii.gz").dataobj)
    mask = source.read(0)[1]
    for name, values in given.items():
        if name in regions and isinstance(values, list):
            np.testing.assert_array_equal(np.isin(mask, regions[name]), np.isin(stored, values))


def test_regions_of_an_nnunet_folder_may_be_ones_own(tmp_path):
    options = nnunet(tmp_path, {"background": 0, "a": 1, "b": 2, "c": 3}, {"0": "CT"})
    source = open_source("nnunet", {**options, "regions": {"all": ["a", "b", "c"]}})
    assert source.regions == {"all": (1, 2, 3)}
    with pytest.raises(ValueError, match="'nnunet' has no option 'images'"):
        open_source("nnunet", {**options, "images": "{case}.nii.gz"})


def nnunet_files(root, names, files):
    """Write two cases of an nnU-Net folder: file number to the channels in it."""
    for case in ("a", "b"):
        for number, channels in files.items():
            shape = (20, 30) if channels == 1 else (20, 30, channels)
            path = root / f"imagesTr/{case}_{number:04d}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(RNG.integers(0, 256, shape).astype(np.uint8)).save(path)
        (root / "labelsTr").mkdir(exist_ok=True)
        mask = RNG.integers(0, 2, (20, 30)).astype(np.uint8)
        Image.fromarray(mask).save(root / f"labelsTr/{case}.png")
    about = {"labels": {"background": 0, "road": 1}, "file_ending": ".png"}
    names = {str(number): name for number, name in enumerate(names)}
    (root / "dataset.json").write_text(json.dumps({**about, "channel_names": names}))
    return {"root": str(root)}


@pytest.mark.parametrize(
    ("names", "files"),
    [("RGB", {0: 3}), ("RGBN", {0: 3, 1: 1}), ("RGBA", {0: 1, 1: 1, 2: 1, 3: 1}), ("R", {0: 1})],
)
def test_channels_of_an_nnunet_case_may_share_a_file(tmp_path, names, files):
    source = open_source("nnunet", nnunet_files(tmp_path, names, files))
    assert source.channels == len(names)
    stored = [np.asarray(Image.open(tmp_path / f"imagesTr/a_{file:04d}.png")) for file in files]
    np.testing.assert_array_equal(source.raw(0).image, np.dstack(stored))


@pytest.mark.parametrize(("names", "files"), [("RGB", {0: 1}), ("RG", {0: 3}), ("RGBN", {0: 3})])
def test_other_channels_than_an_nnunet_folder_names_are_refused(tmp_path, names, files):
    options = nnunet_files(tmp_path, names, files)
    with pytest.raises(ValueError, match=rf"names {len(names)} channels \(R, .* hold {files[0]}. "):
        open_source("nnunet", options)


def test_an_nnunet_label_to_ignore_counts_for_nothing(tmp_path):
    options = nnunet(tmp_path, {"background": 0, "a": 1, "b": 2, "ignore": 3}, {"0": "CT"})
    source = open_source("nnunet", options)
    assert source.regions == {"a": (1,), "b": (2,)}
    assert (source.num_classes, source.ignored) == (3, 255)
    stored = np.asarray(nibabel.load(tmp_path / "labelsTr/brain_1.nii.gz").dataobj)
    assert (stored == 3).any()
    np.testing.assert_array_equal(source.read(0)[1], np.where(stored == 3, 255, stored))
    found = check(source)
    assert found.defects == ()
    nnunet(tmp_path, {"background": 0, "a": 1, "ignore": [2, 3]}, {"0": "CT"})
    with pytest.raises(ValueError, match="Give it one"):
        open_source("nnunet", options)


@pytest.fixture
def pairs(tmp_path):
    """Four images in folders of their own, listed in a table two folders away."""
    rows = ["scan,truth,patient,use,um"]
    for number in range(4):
        for part in ("raw", "gt"):
            path = tmp_path / f"{part}/s{number}/p.png"
            path.parent.mkdir(parents=True)
            high = 256 if part == "raw" else 2
            Image.fromarray(RNG.integers(0, high, (20, 30)).astype(np.uint8)).save(path)
        rows.append(f"../raw/s{number}/p.png,../gt/s{number}/p.png,p{number // 2},{number < 3},0.2")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "pairs.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "tables" / "pairs.csv"


def test_a_csv_of_pairs_opens(pairs):
    options = {"file": str(pairs), "images": "scan", "masks": {"cell": "truth"}}
    source = open_source(
        "csv",
        {
            **options,
            "group": "patient",
            "keep": {"use": ["True"]},
            "pixel_size": {"column": "um"},
            "target_pixel_size": 0.1,
        },
    )
    assert source.name == "pairs"
    assert source.groups == ("p0", "p0", "p1")
    assert source.regions == {"cell": (1,)}
    assert source.read(2)[0].shape == (40, 60, 1)
    assert check(source).defects == ()
    (pairs.parent / "../gt/s1/p.png").unlink()
    with pytest.raises(
        ValueError, match=r"\.\./gt/s1/p.png: missing: pairs.csv lists it, and there is no"
    ):
        open_source("csv", options)
    with pytest.raises(ValueError, match=r"pairs.csv has no column 'scans'. Did you mean 'scan'"):
        open_source("csv", {**options, "images": "scans"})
    with pytest.raises(ValueError, match=r"no option 'patc'"):
        open_source("csv", {**options, "patc": [8, 8]})


@pytest.fixture
def named_pairs(tmp_path):
    """Three pairs, one with a comma and one with an umlaut in its name."""
    names = ["a", "b, left", "größe"]
    for name in names:
        for part in ("img", "msk"):
            path = tmp_path / part / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            high = 256 if part == "img" else 2
            Image.fromarray(RNG.integers(0, high, (20, 30)).astype(np.uint8)).save(path)
    return tmp_path


def listing(separator=",", *, quote='"', end="\n", slash="/", before="", after=""):
    rows = [("image", "mask", "um")]
    for name in ("a", "b, left", "größe"):
        rows.append((f"img{slash}{name}.png", f"msk{slash}{name}.png", "0.5"))
    lines = [separator.join(f"{quote}{field}{quote}" for field in row) for row in rows]
    return end.join([before + lines[0], *lines[1:], after])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", listing().encode()),
        ("t.csv", listing(";", quote="").encode()),
        ("t.csv", listing("\t", quote="").encode()),
        ("t.tsv", listing("\t", quote="").encode()),
        ("t.tsv", listing().encode()),  # A comma all the same.
        ("t.csv", listing("|", quote="").encode()),
        ("t.csv", listing(before="\ufeff", end="\r\n", slash="\\").encode()),  # Windows.
        ("t.csv", listing(";", quote="").encode("cp1252")),  # Excel, in older versions.
        ("t.txt", listing("\t", quote="").encode("utf-16")),  # Excel's "Unicode text".
        ("t.csv", listing(";", quote="", before="sep=;\r\n", end="\r\n").encode()),
        ("t.csv", listing(", ").encode()),
        ("t.csv", listing(end="\r").encode()),
        ("t.csv", listing(after="\n  \n,,\n").encode()),  # Rows that a spreadsheet leaves empty.
        ("t.csv", listing(end=",\n").encode()),
        # As macOS writes the letter: two characters.
        ("t.csv", listing().replace("ö", "o\u0308").encode()),
    ],
)
def test_a_table_is_read_as_spreadsheets_and_editors_write_it(named_pairs, name, content):
    (named_pairs / name).write_bytes(content)
    options = {"pixel_size": {"column": "um"}, "target_pixel_size": 0.25}
    source = open_source("csv", {"file": str(named_pairs / name), **options})
    assert source.case_ids == ("img_a", "img_b, left", "img_größe")
    assert source.read(2)[0].shape == (40, 60, 1)
    assert check(source).defects == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"image,mask\nimg/a.png,msk/a.png\nimg/b, left.png,msk/b.png\n", "line 3 has 3, the he"),
        (b'image,mask\nimg/a.png,"msk/a.png\nx,y\n', "line 3: unexpected end of data"),
        (b"image,mask,mask\nimg/a.png,msk/a.png,msk/a.png\n", "has several columns 'mask'"),
        (b"PK\3\4\0\0", "it is not text). Save it as CSV in UTF-8"),
        (b"image\x81,mask\n\xff,b\n", "cannot be read"),
        (b"image;mask;um\nimg/a.png;msk/a.png;0,5\n", "pixel size '0,5'; allowed: a positive"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(named_pairs, content, words):
    (named_pairs / "t.csv").write_bytes(content)
    options = {"pixel_size": {"column": "um"}, "target_pixel_size": 1} if b"um" in content else {}
    with pytest.raises(ValueError, match=re.escape(words)):
        open_source("csv", {"file": str(named_pairs / "t.csv"), **options})


def test_rows_are_chosen_before_a_case_may_be_there_once(named_pairs):
    rows = ["image,mask,rater,patient"]
    for rater, mask in (("A", "a"), ("B", "größe")):
        rows += [f"img/{name}.png,msk/{mask}.png,{rater},p" for name in ("a", "größe")]
    table = named_pairs / "raters.csv"
    table.write_text("\n".join(rows))
    options = {"file": str(table), "masks": {"cell": "mask"}}
    (of_a, of_b) = (
        open_source("csv", {**options, "keep": {"rater": [rater]}}).read(0)[1] for rater in "AB"
    )
    for mask, name in ((of_a, "a"), (of_b, "größe")):
        with Image.open(named_pairs / f"msk/{name}.png") as stored:
            np.testing.assert_array_equal(mask, np.asarray(stored))
    with pytest.raises(ValueError, match=r"names a case twice: 'img/a.png'.* keep = { rater = "):
        open_source("csv", options)
    with pytest.raises(ValueError, match=r"leaves no case of raters.csv.*'rater' holds A, B"):
        open_source("csv", {**options, "keep": {"rater": "C"}})
    # The same with a folder, whose table only chooses cases.
    (named_pairs / "ids.csv").write_text("id,rater,animal\na,A,x\na,B,y\ngröße,A,x\ngröße,B,y\n")
    table = {"file": "ids.csv", "key": "id", "group": "animal"}
    options = {"root": str(named_pairs), "images": "img/{case}.png", "masks": "msk/{case}.png"}
    (named_pairs / "img" / "b, left.png").unlink()
    (named_pairs / "msk" / "b, left.png").unlink()
    source = open_source("folder", {**options, "table": {**table, "keep": {"rater": "B"}}})
    assert source.groups == ("y", "y")
    with pytest.raises(ValueError, match="names a case twice: 'a'"):
        open_source("folder", {**options, "table": table})


def test_paths_in_a_csv_may_be_absolute_and_name_arrays_in_a_file(pairs, monkeypatch):
    folder = pairs.parents[1]
    rows = ["image,mask"]
    with h5py.File(folder / "all.h5", "w") as file:
        for number in range(2):
            file[f"raw/{number}"] = RNG.random((20, 30), np.float32)
            rows.append(f"{folder}/all.h5:raw/{number},{folder}/gt/s{number}/p.png")
    pairs.write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("TABLES", str(pairs.parent))
    source = open_source("csv", {"file": "$TABLES/pairs.csv"})
    assert [case.rpartition("_all_")[2] for case in source.case_ids] == ["raw_0", "raw_1"]
    assert not any("/" in case for case in source.case_ids)
    assert check(source).defects == ()


def test_a_data_set_may_be_described_in_a_file_of_its_own(pairs, monkeypatch):
    place = pairs.parents[1]
    (place / "own.toml").write_text(
        'root = "raw"\nimages = "{case}/p.png"\nmasks = { cell = "../gt/{case}/p.png" }\n'
    )
    (place / "pairs.toml").write_text(
        'data = "csv"\nfile = "tables/pairs.csv"\nimages = "scan"\nmasks = "truth"\n'
    )
    monkeypatch.chdir(place / "tables")
    listed = open_source("../pairs.toml", {"patch": [16, 16]})
    assert (len(listed.case_ids), listed.patch) == (4, (16, 16))
    config = parse(["--data", "../pairs.toml"])
    assert (config.data, config.data_options["images"]) == ("csv", "scan")
    assert config.data_options["file"] == "../tables/pairs.csv"
    with pytest.raises(ValueError, match=r"'none.toml' cannot be read"):
        open_source("none.toml", {})


def test_colours_in_a_mask_are_classes(tmp_path):
    for name, pixels in (
        ("a.png", RNG.integers(0, 256, (4, 6)).astype(np.uint8)),
        ("a_seg.png", np.zeros((4, 6, 3), np.uint8)),
    ):
        if name == "a_seg.png":
            pixels[1] = [255, 0, 0]
            pixels[2] = [0, 0x80, 255]
            pixels[3] = 255
        Image.fromarray(pixels).save(tmp_path / name)
    options = {"root": str(tmp_path), "images": "{case}.png", "masks": "{case}_seg.png"}
    classes = {"axon": "#FF0000", "myelin": ["#0080ff"], "background": ["#000000", "#ffffff"]}
    source = open_source("folder", {**options, "classes": classes})
    assert source.read(0)[1][:, 0].tolist() == [0, 1, 2, 0]
    (defect,) = check(open_source("folder", {**options, "classes": {"axon": "#ff0000"}})).defects
    assert "values #0080ff, #ffffff; allowed: #000000, #ff0000" in defect.what
    with pytest.raises(ValueError, match="mixes values and colours"):
        open_source("folder", {**options, "classes": {"axon": "#ff0000", "myelin": 2}})
    with pytest.raises(ValueError, match="'red'; allowed: whole numbers, or colours such as '#ff"):
        open_source("folder", {**options, "classes": {"axon": "red"}})


def test_a_folder_of_instances_becomes_classes_by_a_threshold(tmp_path):
    instances = np.arange(24, dtype=np.uint16).reshape(4, 6) * 300
    Image.fromarray(np.zeros((4, 6), np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(instances).save(tmp_path / "a_ids.png")
    options = {"images": "{case}.png", "masks": {"cell": "{case}_ids.png"}, "threshold": 0}
    source = open_source("folder", {"root": str(tmp_path), **options})
    np.testing.assert_array_equal(source.read(0)[1], instances > 0)


@pytest.mark.parametrize(
    ("rows", "options", "defects", "warnings"),
    [
        ("a.png,x.png,1\nb.png,y.png,2\n", {}, [], []),
        (
            "a.png,x.png,1\nb.png,x.png,2\n",
            {},
            [],
            ["x.png: is the mask of 2 images: a.png, b.png"],
        ),
        (
            "a.png,x.png,1\nb.png,y.png,\nc.png,z.png,\n",
            {"group": "patient"},
            [],
            ["b.png: its group is empty", "c.png: its group is empty"],
        ),
        ("a.png,x.png,1\nx.png,x.png,2\n", {}, ["lists it as image and as mask"], []),
    ],
)
def test_what_a_table_may_have_wrong_is_said(rows, options, defects, warnings, tmp_path):
    for name in "abc":
        Image.fromarray(labels()[0] * 60).save(tmp_path / f"{name}.png")
    for name in "xyz":
        Image.fromarray(labels(2)[0]).save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text(f"image,mask,patient\n{rows}")
    table = {"file": str(tmp_path / "t.csv"), **options}
    source = open_source("csv", table, skip_bad=True)
    for found, words in ((source.defects, defects), (source.warnings, warnings)):
        assert [word in str(defect) for defect, word in zip(found, words, strict=True)] == [
            True
        ] * len(words)
