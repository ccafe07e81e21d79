"""`tfunet init`: layouts that users have, what is found in them, and what is asked for."""

import json
import re
import tomllib

import numpy as np
import pytest
from init_folders import RNG, begun, five_pairs, grey, save, square
from paths import ROOT

from tfunet.cli import main
from tfunet.data.check import check
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.discovery.first_training import Machine
from tfunet.data.discovery.pairs import find_pairs, list_files
from tfunet.data.source import open_source

SHARED = ROOT.parent / "shared" / "data"


def test_two_folders(tmp_path):
    five_pairs(tmp_path)
    table = begun(tmp_path)
    options = table["data_options"]
    assert (options["images"], options["masks"]) == ("images/{case}.png", "masks/{case}.png")
    assert options["classes"] == {"foreground": 255}
    assert table["patch"] == [32, 48]


def test_links_to_folders_are_followed_and_never_for_ever(tmp_path):
    for name in "abcde":
        save(tmp_path / "store/raw" / f"{name}.png", grey())
        save(tmp_path / "store/labels" / f"{name}.png", square(255))
    data = tmp_path / "data"
    data.mkdir()
    (data / "images").symlink_to(tmp_path / "store/raw")
    (data / "masks").symlink_to(tmp_path / "store/labels")
    (data / "self").symlink_to(data)
    options = begun(data)["data_options"]
    assert (options["images"], options["masks"]) == ("images/{case}.png", "masks/{case}.png")
    assert len(list_files(data)) == 10


@pytest.mark.parametrize(
    ("masks", "lines"),
    [
        (
            "masks/{}",
            ["# classes = { NAME = 0, background = 255 }", "classes = { foreground = 255 }"],
        ),
        (
            "images/{}_seg-axon",
            [
                '# masks = "images/{case}_seg-axon.png"',
                "# classes = { NAME = 0, background = 255 }",
                'masks = { axon = "images/{case}_seg-axon.png" }',
            ],
        ),
        (
            "masks of  all that we have drawn by hand/and then looked at once more, with care/{}",
            ["# classes = { NAME = 0, background = 255 }", "classes = { foreground = 255 }"],
        ),
    ],
)
def test_a_class_that_is_most_of_the_image_may_be_the_background(tmp_path, masks, lines):
    for name in "abcde":
        save(tmp_path / "images" / f"{name}.png", grey())
        save(tmp_path / f"{masks.format(name)}.png", 255 - square(255))
        if "axon" in masks:
            save(tmp_path / "images" / f"{name}_seg-background.png", square(255))
    text = describe_folder(str(tmp_path)).text([])
    assert "\n" + "\n".join(lines) + "\n" in text
    assert "has 98% of all pixels" in text


def test_a_defect_is_said_with_one_full_stop(tmp_path):
    five_pairs(tmp_path)
    (tmp_path / "images/c.png").write_bytes(b"")
    said = describe_folder(str(tmp_path)).summary()
    assert "such as images/c.png: cannot be read (the file is empty). `tfunet data" in said


def test_files_that_are_not_used_are_named(tmp_path):
    for name in "abcde":
        save(tmp_path / "raw" / f"{name}.png", grey())
        save(tmp_path / "labels" / f"{name}.png", square(255))
    assert "Not used" not in describe_folder(str(tmp_path)).summary()
    for name in "xy":
        save(tmp_path / "later/raw" / f"{name}.png", grey())
    run = describe_folder(str(tmp_path))
    said = "Not used: 2 files of other names, such as later/raw/x.png."
    assert said in run.summary().splitlines()
    assert said in " ".join(run.text([]).replace("#", "").split())


def test_the_file_says_how_long_it_takes_and_how_to_make_a_try_short(tmp_path):
    five_pairs(tmp_path)
    machine = Machine(num_cores=2, has_gpu=False)
    text = describe_folder(str(tmp_path), machine=machine).text([])
    reason = text[: text.index("\nepochs = ")].rpartition("\n\n")[2]
    above = " ".join(reason.replace("#", "").split())
    assert "On this machine's 2 CPU cores, this takes about 2 minutes. `tfunet train` says" in above
    assert "--epochs 1, or make patch, global_batch or model_options.filters smaller." in above
    assert "filters =" not in text


@pytest.mark.parametrize(
    ("machine", "filters", "words"),
    [
        ({"num_cores": 2, "has_gpu": True}, None, "On a GPU this takes a small part"),
        ({"num_cores": 8, "has_gpu": False}, None, "this takes about 21 minutes."),
        ({"num_cores": 2, "has_gpu": False}, 16, "this takes about 21 minutes."),
        ({"num_cores": 1, "has_gpu": False}, 8, "this takes about 11 minutes."),
    ],
)
def test_a_first_look_does_not_take_hours(machine, filters, words, tmp_path):
    for name in "abcde":
        save(tmp_path / "images" / f"{name}.png", RNG.integers(0, 256, (300, 280, 3), np.uint8))
        save(tmp_path / "masks" / f"{name}.png", square(255, shape=(300, 280)))
    text = describe_folder(str(tmp_path), machine=Machine(**machine)).text([])
    assert tomllib.loads(text).get("model_options", {}).get("filters") == filters
    said = " ".join(text.replace("#", "").split())
    assert words in said
    assert ("With the default of 32 filters, 500 steps would take about" in said) == bool(filters)


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("cell_{}.tif", "cell_{}_mask.tif"),
        ("img{}.png", "lab{}.png"),
        ("volume-{}.nii.gz", "segmentation-{}.nii.gz"),
        ("p{}/image.nii.gz", "p{}/seg.nii.gz"),
        ("raw/a/{}_raw.png", "GT/a/{}_GT.tif"),
        ("x/seg_{}.png", "groundTruth/seg_{}.png"),
    ],
)
def test_pairs_by_name(image, mask, tmp_path):
    is_volume = image.endswith(".gz")
    shape = (16, 16, 16) if is_volume else (32, 48)
    for number in (1, 2, 10, 11):
        save(tmp_path / image.format(number), grey(*shape))
        save(tmp_path / mask.format(number), square(1, 2, shape=shape))
    options = begun(tmp_path)["data_options"]
    # Classes without a name have one that says so.
    assert options["classes"] == {"class_1": 1, "class_2": 2}
    found = open_source("folder", options)
    assert len(found.case_ids) == 4


def test_channels_test_images_and_sizes_of_nnunet_without_a_description(tmp_path):
    for number in range(5):
        for channel in ("0000", "0001"):
            save(
                tmp_path / f"imagesTr/brain_{number:03}_{channel}.nii.gz",
                grey(32, 24, 12),
                (1, 1, 1 + number),
            )
        save(
            tmp_path / f"labelsTr/brain_{number:03}.nii.gz",
            square(1, shape=(32, 24, 12)),
            (1, 1, 1 + number),
        )
    save(tmp_path / "imagesTs/brain_009_0000.nii.gz", grey(32, 24, 12))
    table = begun(tmp_path)
    options = table["data_options"]
    assert options["images"] == [
        "imagesTr/brain_{case}_0000.nii.gz",
        "imagesTr/brain_{case}_0001.nii.gz",
    ]
    assert options["masks"] == "labelsTr/brain_{case}.nii.gz"
    assert options["target_pixel_size"] == [1, 1, 3]
    # Few voxels are foreground.
    assert table["foreground_share"] == 0.33


@pytest.mark.parametrize("kind", ["msd", "nnunet"])
def test_a_description_names_cases_and_classes(kind, tmp_path):
    names = [f"spleen_{number}" for number in range(4)]
    ending = "_0000" if kind == "nnunet" else ""
    for name in names:
        save(tmp_path / f"imagesTr/{name}{ending}.nii.gz", grey(16, 16, 16))
        save(tmp_path / f"labelsTr/{name}.nii.gz", square(1, shape=(16, 16, 16)))
    pairs = [
        {"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"}
        for name in names
    ]
    # Version 1 of nnU-Net lists the cases without the channel.
    description = {"training": pairs, "labels": {"0": "background", "1": "spleen"}}
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    table = begun(tmp_path)
    assert table["data"] == kind
    assert list(open_source(kind, table["data_options"]).regions) == ["spleen"]


def test_a_file_for_each_class_and_one_for_all(tmp_path):
    for number in range(4):
        inner, outer = square(255), square(0, 255, 255)
        save(tmp_path / f"im_{number}.png", grey())
        save(tmp_path / f"im_{number}_seg-axon.png", inner)
        save(tmp_path / f"im_{number}_seg-both.png", inner // 2 + outer)
        save(tmp_path / f"im_{number}_seg-myelin.png", outer)
    options = begun(tmp_path)["data_options"]
    assert options["masks"] == {
        "myelin": "im_{case}_seg-myelin.png",
        "axon": "im_{case}_seg-axon.png",
    }
    assert "threshold" not in options


def test_numbers_for_each_pixel_may_have_a_class_at_zero_and_none_at_the_last(tmp_path):
    for number in range(4):
        save(tmp_path / "images" / f"{number}.png", grey())
        mask = np.repeat(np.arange(4, dtype=np.uint8), 8)[:, None].repeat(48, 1)
        save(tmp_path / "masks" / f"{number}.png", mask)
    text = describe_folder(str(tmp_path), labels="classes").text([])
    line, ignore = re.findall("^# ((?:classes|ignore_label) = .*)$", text, re.MULTILINE)
    written = tomllib.loads(f"{line}\n{ignore}")
    del written["classes"]["class_3"]
    options = {**tomllib.loads(text)["data_options"], **written}
    source = open_source("folder", options)
    assert list(source.regions) == ["class_0", "class_1", "class_2"]
    assert check(source).defects == ()


def test_slices_of_a_patient_stay_together(tmp_path):
    for patient in range(3):
        for number in range(4):
            save(tmp_path / f"images/patient{patient}_slice{number}.png", grey())
            save(tmp_path / f"masks/patient{patient}_slice{number}.png", square(1))
    source = open_source("folder", begun(tmp_path)["data_options"])
    assert set(source.groups) == {"patient0", "patient1", "patient2"}


def test_a_table_says_the_split(tmp_path):
    rows = ["id,split"]
    for name, side in zip("abcdef", ("train",) * 3 + ("val", "test", "test"), strict=True):
        save(tmp_path / "images" / f"{name}.png", grey())
        save(tmp_path / "masks" / f"{name}.png", square(1))
        rows.append(f"{name},{side}")
    (tmp_path / "index.csv").write_text("\n".join(rows) + "\n")
    table = begun(tmp_path)
    assert table["validation_groups"] == ["val"]
    assert open_source("folder", table["data_options"]).case_ids == tuple("abcd")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        # VOC: classes, and pixels that are not judged.
        ((1, 3, 255), {"class_1": 1, "class_3": 3, "ignore": 255}),
        ((1, 255), {"class_1": 1, "ignore": 255}),
        ((1, 200, 255), {"class_1": 1, "class_200": 200, "class_255": 255}),
        # Anti-aliased edges.
        ((255, 255, 255, 255, 255, 40, 90, 200), 127),
        ((*range(1, 8),), "ask"),
    ],
)
def test_values_of_masks(values, found, tmp_path):
    for number in range(5):
        save(tmp_path / "images" / f"{number}.png", grey())
        kept = values[: len(values) - number] if found == "ask" else values
        save(tmp_path / "masks" / f"{number}.png", square(*kept))
    if found == "ask":
        with pytest.raises(ValueError, match="--labels classes or --labels objects"):
            describe_folder(str(tmp_path))
        assert begun(tmp_path, labels="objects")["data_options"]["objects"] == "numbers"
        assert len(begun(tmp_path, labels="classes")["data_options"]["classes"]) == 7
    elif isinstance(found, dict):
        options = begun(tmp_path)["data_options"]
        ignored = {"ignore": options["ignore_label"]} if "ignore_label" in options else {}
        assert {**options["classes"], **ignored} == found
    else:
        assert begun(tmp_path)["data_options"]["threshold"] == found


def test_colours_are_classes(tmp_path):
    for number in range(4):
        mask = np.zeros((32, 48, 3), np.uint8)
        mask[:8, :8], mask[10:20, :8] = (255, 0, 0), (0, 128, 0)
        save(tmp_path / "images" / f"{number}.png", grey(32, 48, 3))
        save(tmp_path / "masks" / f"{number}.png", mask)
    classes = begun(tmp_path)["data_options"]["classes"]
    assert classes == {"colour_008000": "#008000", "colour_ff0000": "#ff0000"}


@pytest.mark.parametrize(
    ("files", "given", "message"),
    [
        (["x1.npy", "x2.npy", "y1.npy", "y2.npy"], {}, r"'x\{case\}.npy'  \(2 files\)"),
        (
            [f"{kind}/{n}.png" for kind in ("raw", "denoised", "masks") for n in (1, 2)],
            {},
            r"--images 'denoised/\{case\}.png'  \(2 files\)",
        ),
        (
            [f"i/{n}.png" for n in "ab"] + [f"mask/{n}_{m}.png" for n in "ab" for m in "12"],
            {},
            "Several sets of files can be the masks",
        ),
        (["i/a.png", "masks/b.png"], {}, "a part of their names in common"),
        (["notes.txt"], {}, "no file that tfunet can read"),
    ],
)
def test_what_names_do_not_say_is_asked_for(files, given, message):
    files = [file for file in files if not file.endswith(".txt")]
    with pytest.raises(ValueError, match=message):
        find_pairs(files, **given, root=ROOT)


def test_two_people_who_marked_the_same_are_no_classes(tmp_path):
    for number in range(3):
        save(tmp_path / f"images/{number}.png", grey())
        for name in ("ann", "bob"):
            save(tmp_path / f"masks/{number}_{name}.png", square(1))
    with pytest.raises(ValueError, match="mark the same pixels"):
        describe_folder(str(tmp_path))
    one = begun(tmp_path, masks=["masks/{case}_ann.png"])
    assert one["data_options"]["masks"] == "masks/{case}_ann.png"


def test_the_command_writes_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        save(tmp_path / "d" / "images" / f"{name}.png", grey())
        save(tmp_path / "d" / "masks" / f"{name}.png", square(255))
    assert main(["init", "d"]) == 0
    first = (tmp_path / "run.toml").read_text()
    assert 'root = "d"' in first
    assert "tfunet data check run.toml" in capsys.readouterr().out
    assert main(["init", "d"]) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert (tmp_path / "run.toml").read_text() == first
    assert main(["init", "e", "--out", "other.toml"]) == 2
    assert not (tmp_path / "other.toml").exists()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ((), ""),
        (("images/f.TIF", "masks/f.TIF"), "2 files of other names, such as images/f.TIF"),
        (("overlay.png",), "1 file of other names, such as overlay.png"),
    ],
)
def test_files_that_are_not_used_are_said(extra, words, tmp_path):
    five_pairs(tmp_path)
    for name in extra:
        (tmp_path / name).touch()
    run = describe_folder(str(tmp_path))
    assert words in run.summary()
    assert words in " ".join(run.text([]).replace("#", "").split())
    assert ("Not used" in run.summary()) == bool(words)


@pytest.mark.parametrize("classes", [("axon", "cell"), ("axon", "cell", "myelin", "nucleus")])
def test_no_class_is_lost_where_names_have_no_numbers(classes, tmp_path):
    """Every second file is of the same class."""
    for name in "abcdefgh":
        save(tmp_path / f"{name}_image.png", grey())
        for at, class_name in enumerate(classes):
            mask = np.zeros((32, 48), np.uint8)
            mask[8 * at : 8 * at + 8] = 255
            save(tmp_path / f"{name}_mask_{class_name}.png", mask)
    assert set(begun(tmp_path)["data_options"]["masks"]) == set(classes)


def test_a_mask_of_the_background_is_left_out(tmp_path):
    for name in "abcde":
        save(tmp_path / f"{name}_image.png", grey())
        save(tmp_path / f"{name}_mask_cell.png", square(255))
        save(tmp_path / f"{name}_mask_background.png", 255 - square(255))
    options = begun(tmp_path)["data_options"]
    assert options["masks"] == {"cell": "{case}_mask_cell.png"}


def test_real_folders():
    """What `init` finds in the example data is what docs/data.md says of it."""
    if not SHARED.is_dir():
        test = [f"sub-r{n // 2}/m/sub-r{n // 2}_d{n}_SEM.png" for n in range(6)]
        masks = [f"labels/{file.replace('SEM', 'SEM_seg-axon')}" for file in test]
        assert find_pairs([*test, *masks], root=ROOT).images == (
            "sub-{group}/m/sub-{group}_{case}_SEM.png",
        )
        return
    run = describe_folder(str(SHARED / "axondeepseg_sem"))
    sem = tomllib.loads(run.text([]))["data_options"]
    assert sem["images"] == "sub-{group}/micr/sub-{group}_sample-{case}_SEM.png"
    assert set(sem["masks"]) == {"axon", "myelin"}
    # One file for each image, or for each animal.
    assert sem["pixel_size"] == {"file": "sub-{group}/micr/*.json", "key": "PixelSize"}
    assert (sem["threshold"], sem["target_pixel_size"]) == (127, 0.1)
    assert len(run.source.case_ids) == 10
    hippocampus = find_pairs(list_files(SHARED / "msd_hippocampus"), root=ROOT)
    assert hippocampus.images == ("imagesTr/hippocampus_{case}.nii.gz",)
    assert len(hippocampus.values) == 260


@pytest.mark.parametrize(
    ("image", "others"),
    [
        # Cellpose: the mask beside it in a file of its own, and all it knows as Python's objects.
        ("{}.tif", ("{}_flows.tif", "{}_seg.npy")),
        ("{}.png", ("{}_flows.tif", "{}_cp_outlines.png")),
        ("in/{}.png", ("in/{}_depth.png",)),
        ("{}_raw.tif", ("{}_raw_denoised.tif", "{}_raw-probability.tif")),
    ],
)
def test_the_plain_name_that_others_extend_is_the_image(image, others, tmp_path):
    names = ["a", "b", "c1", "c2"]
    for name in names:
        save(tmp_path / image.format(name), grey())
        save(tmp_path / f"{name}_masks.tif", square(255))
        for other in others:
            file = tmp_path / other.format(name)
            if file.suffix == ".npy":
                np.save(file, np.array({"masks": square(1)}, object), allow_pickle=True)
            else:
                save(file, grey())
    run = describe_folder(str(tmp_path))
    options = tomllib.loads(run.text([]))["data_options"]
    assert options["images"] == image.format("{case}")
    assert options["masks"] == "{case}_masks.tif"
    assert not run.source.defects
    assert run.source.case_ids == tuple(names)
    assert f"Not used: {4 * len(others)} files of other names" in run.summary()


def test_an_image_without_a_mask_is_told_though_it_extends_anothers_name(tmp_path):
    for name in ("mouse1", "mouse2", "mouse3", "mouse1_2", "mouse2_2", "mouse3_late"):
        save(tmp_path / "images" / f"{name}.png", grey())
        if "_" not in name:
            save(tmp_path / "masks" / f"{name}.png", square(255))
    run = describe_folder(str(tmp_path))
    assert len(run.source.defects) == 3
    assert "exclude" not in run.options
