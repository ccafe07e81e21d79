"""`tfunet init` on folders of cases in which the names of files do not say which are masks."""

import re
import shlex
import tomllib

import numpy as np
import pytest
from init_folders import RNG, begun, grey, save, square
from paths import ROOT

from tfunet.data.check import check
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.source import open_source

SHAPE = (16, 14, 12)
BRATS = ("Flair_subtrMeanDivStd", "T1c_subtrMeanDivStd")


def scan():
    return RNG.normal(100, 20, SHAPE).astype(np.float32)


def labels(*values):
    return square(*values, shape=SHAPE)


def fill(folder, pattern, files, cases=("07", "08", "11")):
    for case in cases:
        for name, pixels in files.items():
            save(folder / pattern.format(case=case, name=name), pixels())


CONTENTS = {
    **dict.fromkeys(BRATS, scan),
    "brainmask": lambda: np.ones(SHAPE, np.uint8),
    "OTMultiClass": lambda: labels(1, 2, 3, 4),
}


def test_the_files_with_most_classes_are_the_masks(tmp_path):
    for side, cases in {"train": "12", "validation": "3", "test": "45"}.items():
        fill(tmp_path / side, "pat{case}/{name}.nii.gz", CONTENTS, cases)
    (tmp_path / "train/pat1/._T1c.nii.gz").write_bytes(b"\0\5")
    (tmp_path / "train/pat1/License.txt").write_text("free")
    table = begun(tmp_path)
    options = table["data_options"]
    assert options["images"] == [f"{{group}}/{{case}}/{name}.nii.gz" for name in BRATS]
    assert options["masks"] == "{group}/{case}/OTMultiClass.nii.gz"
    assert options["classes"] == {f"class_{value}": value for value in (1, 2, 3, 4)}
    assert options["exclude"] == [f"test/{{case}}/{BRATS[0]}.nii.gz"]
    assert table["validation_groups"] == ["validation"]
    text = describe_folder(str(tmp_path)).text([])
    assert "those of OTMultiClass.nii.gz are few whole numbers" in " ".join(text.split("\n# "))
    # The lines for the other masks work when they are copied.
    lines = re.findall(r"^# ((?:masks|classes) = .*)$", text, re.MULTILINE)
    assert lines == [
        'masks = "{group}/{case}/brainmask.nii.gz"',
        "classes = { foreground = 1 }",
    ]
    other = options | {"masks": "{group}/{case}/brainmask.nii.gz", "classes": {"foreground": 1}}
    assert len(open_source("folder", other).case_ids) == 3


@pytest.mark.parametrize(
    "pattern",
    [
        "p {case}/{name}.nii.gz",
        "p{case}/{name}.tif",
        "p{case}/p{case}_{name}.nii.gz",
        "p_{case}/{case}-{name}.nii.gz",
        "p{case}/{name}/scan.nii.gz",
        "{name}/p{case}.nii.gz",
        "p{case}_{name}.nii.gz",
        "train/{name}/p{case}.nii.gz",
    ],
)
def test_files_of_one_kind_have_one_name(tmp_path, pattern):
    first = "PWI" if "_{name}." in pattern else "ADC map"
    files = {first: scan, "perf": scan, "outline": lambda: labels(1, 2)}
    fill(tmp_path, pattern, files)
    if pattern.startswith("train"):
        fill(tmp_path, pattern.replace("train", "val"), files, ("21", "22"))
    options = begun(tmp_path)["data_options"]
    found = pattern.replace("p{case}", "{case}").replace("train", "{group}")
    assert options["images"] == [found.replace("{name}", name) for name in (first, "perf")]
    assert options["masks"] == found.replace("{name}", "outline")


def test_numbers_that_differ_from_case_to_case_mean_nothing(tmp_path):
    number = 54000
    for kind, case in (("HG", "0001"), ("HG", "0002"), ("LG", "0001")):
        for name, pixels in {"MR_Flair": scan(), "MR_T1": scan(), "OT": labels(1, 2)}.items():
            number += 3
            folder = f"VSD.O.{name}.{number}"
            save(tmp_path / kind / case / folder / f"{folder}.nii.gz", pixels)
    options = begun(tmp_path)["data_options"]
    assert options["images"] == [
        f"{{part}}/{{case}}/VSD.O.{name}.*/VSD.O.{name}.*.nii.gz" for name in ("MR_Flair", "MR_T1")
    ]


def test_visits_of_a_patient_stay_together(tmp_path):
    for patient in range(6):
        files = {"a": scan, "b": scan, "c": lambda: labels(1)}
        fill(tmp_path / f"pat{patient}", "visit{case}/{name}.nii.gz", files, "12")
    options = begun(tmp_path)["data_options"]
    assert options["masks"] == "{group}/{case}/c.nii.gz"


def test_a_case_without_one_modality_is_a_defect(tmp_path):
    fill(tmp_path, "p{case}/{name}.nii.gz", CONTENTS, "1234")
    (tmp_path / f"p3/{BRATS[0]}.nii.gz").unlink()
    run = describe_folder(str(tmp_path))
    assert len(run.source.case_ids) == 3
    (first, *others) = check(run.source).defects
    assert (first.file, first.what) == (f"p3/{BRATS[1]}.nii.gz", "image without its image")
    assert [other.what for other in others] == ["mask without its image"]


def test_binary_files_are_classes_and_regions_of_interest_are_none(tmp_path):
    organs = {
        "ct": scan,
        "liver": lambda: labels(1),
        "spleen": lambda: np.roll(labels(1), 8, 0),
        "body": lambda: np.ones(SHAPE, np.uint8),
    }
    fill(tmp_path, "p{case}/{name}.nii.gz", organs)
    options = begun(tmp_path)["data_options"]
    assert options["images"] == "{case}/ct.nii.gz"
    assert options["masks"] == {n: f"{{case}}/{n}.nii.gz" for n in ("liver", "spleen")}


def test_names_come_before_values(tmp_path):
    files = {
        "first": scan,
        "second": scan,
        "parcels": lambda: labels(1, 2, 3),
        "seg": lambda: labels(1),
        "brain_mask": lambda: np.ones(SHAPE, np.uint8),
    }
    fill(tmp_path, "p{case}/{name}.nii.gz", files)
    options = begun(tmp_path)["data_options"]
    assert options["images"] == ["{case}/first.nii.gz", "{case}/second.nii.gz"]
    assert options["masks"] == "{case}/seg.nii.gz"


def test_images_with_other_pixels_are_no_channels(tmp_path):
    files = {"a": scan, "low": lambda: scan()[::2], "zones": lambda: labels(1, 2)}
    fill(tmp_path, "p{case}/{name}.nii.gz", files)
    options = begun(tmp_path)["data_options"]
    assert options["images"] == "{case}/a.nii.gz"


def test_masks_of_several_people_are_asked_for_with_commands_that_work(tmp_path):
    files = {"a": scan, "b": scan, **dict.fromkeys(("rater1", "rater2"), lambda: labels(1, 2))}
    fill(tmp_path, "p{case}/{name}.nii.gz", files)
    with pytest.raises(ValueError, match="Several kinds of files can be the masks") as error:
        describe_folder(str(tmp_path))
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        given = {name: [] for name in ("images", "masks")}
        for option, pattern in zip(words[::2], words[1::2], strict=True):
            given[option.removeprefix("--")].append(pattern)
        assert len(begun(tmp_path, **given)["data_options"]["images"]) == 2
        assert begun(tmp_path, masks=given["masks"])["data_options"]["masks"] == given["masks"][0]


def test_pictures_of_one_thing_are_no_channels(tmp_path):
    files = dict.fromkeys(("photo", "drawn"), lambda: np.stack([grey()] * 3, -1))
    fill(tmp_path, "p{case}/{name}.png", files | {"x": lambda: square(1, 2)})
    with pytest.raises(ValueError, match="do not say which files are the masks"):
        describe_folder(str(tmp_path))


def test_the_example_of_the_page_is_what_is_written(tmp_path):
    page = (ROOT / "docs" / "data.md").read_text()
    (block,) = re.findall(r"```toml\n(# brains.toml\n.*?)```", page, re.DOTALL)
    shown = tomllib.loads(block)["data_options"]
    files = {name.removesuffix("_subtrMeanDivStd"): pixels for name, pixels in CONTENTS.items()}
    for side, cases in {"train": "12", "validation": "3", "test": "45"}.items():
        fill(tmp_path / side, "p{case}/{name}.nii.gz", files, cases)
    written = begun(tmp_path)["data_options"]
    for key in ("images", "masks", "exclude"):
        assert written[key] == shown[key]


def test_kinds_of_patients_are_no_groups(tmp_path):
    files = {"t1": scan, "seg": lambda: labels(1)}
    for kind in ("HGG", "LGG"):
        fill(tmp_path / kind, "case {case}/{name}.nii.gz", files, "12345")
    assert begun(tmp_path)["data_options"]["masks"] == "{part}/case {case}/seg.nii.gz"
    given = {"images": ["{group}/{case}/t1.nii.gz"], "masks": ["{group}/{case}/seg.nii.gz"]}
    assert begun(tmp_path, **given)["data_options"]["masks"].startswith("{group}/")
