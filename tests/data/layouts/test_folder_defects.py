"""Folders that cannot be trained with: every defect, by file, in one message."""

import math
import re
import string

import numpy as np
import pytest
from small_images import save

from tfunet.data.check import check
from tfunet.data.defects import ADVICE, Defect, DefectsError
from tfunet.data.image_files import read_header
from tfunet.data.layouts.folder import open_folder
from tfunet.data.source import DataSource, open_source

PAIRS = {"images": "images/{case}.png", "masks": "masks/{case}.png"}


@pytest.fixture
def folder(tmp_path):
    """Five noisy images of 40x48 with a mask of 0 and 1 each."""
    rng = np.random.default_rng(0)
    for name in "abcde":
        save(tmp_path / "images" / f"{name}.png", rng.integers(0, 256, (40, 48)).astype(np.uint8))
        save(tmp_path / "masks" / f"{name}.png", rng.integers(0, 2, (40, 48)).astype(np.uint8))
    return tmp_path


def message(folder, **options):
    with pytest.raises(ValueError, match=r"\w") as caught:
        open_source("folder", {"root": str(folder), **PAIRS, **options})
    return str(caught.value)


def found(source):
    return [str(defect) for defect in check(source).defects]


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def test_all_defects_of_the_files_come_in_one_message(folder):
    (folder / "masks" / "a.png").unlink()
    save(folder / "masks" / "b.png", np.zeros((40, 47), np.uint8))
    cut(folder / "images" / "c.png")
    (folder / "images" / "d.png").write_bytes(b"no image")
    save(folder / "masks" / "z.png", np.zeros((40, 48), np.uint8))
    said = message(folder)
    lines = said.splitlines()
    assert "has 5 defects (5 images and 5 masks)" in lines[0]
    assert any("images/a.png: missing mask: no file masks/a.png" in line for line in lines)
    assert any(
        "masks/b.png: has shape (40, 47), and its image images/b.png has (40, 48)" in line
        for line in lines
    )
    assert any("c.png: cannot be read" in line and "truncated" in line for line in lines)
    assert any("d.png: cannot be read" in line for line in lines)
    assert any("masks/z.png: mask without its image" in line for line in lines)
    assert lines[6:] == [ADVICE]


def test_equal_defects_are_one_line(folder):
    for number in range(30):
        save(folder / "masks" / f"extra{number}.png", np.zeros((2, 2), np.uint8))
    (folder / "images" / "a.png").unlink()
    lines = message(folder).splitlines()
    assert "31 defects (4 images and 35 masks)" in lines[0]
    assert lines[1:-1] == [
        "  masks/a.png: mask without its image (30 more like it: masks/extra0.png, "
        "masks/extra1.png, masks/extra10.png, ...)"
    ]


def test_many_defects_are_counted_and_not_all_shown():
    defects = [Defect(file=f"{name}.png", what=f"is {name * 3}") for name in string.ascii_letters]
    lines = str(DefectsError("set", defects)).splitlines()
    assert "52 defects" in lines[0]
    assert len(lines) == 23
    assert lines[-2].strip() == "... and 32 more."


def test_two_masks_for_an_image_are_shown(folder):
    save(folder / "masks" / "a_2.png", np.zeros((40, 48), np.uint8))
    said = message(folder, masks="masks/{case}*.png", images="images/{case}.png")
    assert "masks/a_2.png" in said


def test_images_of_another_kind_than_the_rest_are_named(folder):
    save(folder / "images" / "b.png", np.zeros((40, 48, 3), np.uint8))
    said = message(folder)
    assert (
        "images/b.png: is 2D with 3 channels, the other images are 2D with 1; grey = true" in said
    )
    assert open_folder(root=str(folder), **PAIRS, grey=True).channels == 1


@pytest.mark.parametrize(("num_values", "is_smooth"), [(5, False), (30, True)])
def test_a_mask_with_many_values_in_between_needs_a_threshold(folder, num_values, is_smooth):
    values = np.arange(1920).reshape(40, 48) % num_values
    save(folder / "masks" / "c.png", values.astype(np.uint8))
    source = open_folder(root=str(folder), **PAIRS, classes={"cell": 255})
    with pytest.raises(ValueError, match="labels out of range") as caught:
        source.read(2)
    assert (
        "masks = { CLASS = PATTERN, ... } and threshold = 127" in str(caught.value)
    ) is is_smooth


def test_a_mask_that_changed_its_size_after_opening_is_refused(folder):
    source = open_folder(root=str(folder), **PAIRS)
    save(folder / "masks" / "a.png", np.zeros((10, 10), np.uint8))
    with pytest.raises(ValueError, match=r"a\.png: the mask has shape \(10, 10\), its image \(40"):
        source.read(0)


def test_two_cases_of_one_name_are_refused(folder):
    save(folder / "images" / "x_y" / "z.png", np.zeros((4, 4), np.uint8))
    save(folder / "images" / "x" / "y_z.png", np.zeros((4, 4), np.uint8))
    for path in ("x_y/z.png", "x/y_z.png"):
        save(folder / "masks" / path, np.zeros((4, 4), np.uint8))
    said = message(folder, images="images/{group}/{case}.png", masks="masks/{group}/{case}.png")
    assert "images/x_y/z.png: named 'x_y_z', as is images/x/y_z.png" in said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"root": "/nowhere/at/all"}, "'/nowhere/at/all' does not exist; give a folder"),
        ({"root": "$NOT_SET_ANYWHERE/a"}, "names an environment variable that is not set"),
        ({"images": "img/{case}.png"}, "matches 'img/{case}.png'. It holds images/, masks/"),
        ({"images": "images/*.png"}, "has no placeholder. Write {case}"),
        ({"images": "images/{case.png"}, "a brace that belongs to no placeholder"),
        ({"images": "/images/{case}.png"}, "must be relative to root"),
        ({"masks": "masks/{name}.png"}, "placeholders ['name']; it needs one or more of"),
        ({"masks": "masks/all.png"}, "placeholders []; it needs one or more of"),
        ({"masks": "images/{case}.png"}, "images= and masks= both name"),
        ({"masks": {}}, "masks= names no file"),
        ({"classes": {"a": 1}, "threshold": 5}, "Give one of the two"),
        ({"masks": {"a": "masks/{case}.png"}, "classes": {"a": 1}}, "Leave classes out"),
        ({"classes": {}}, "names 0 classes"),
        (
            {"classes": {"a": 0}},
            "inside classes, such as: classes = { a = 0, background = 255 }.",
        ),
        (
            {"classes": {"a": 0, "b c": [1, 255]}},
            'write: classes = { a = 0, "b c" = [1, 255], background = [] }.',
        ),
        (
            {"classes": {"a": "#000000"}},
            'such as: classes = { a = "#000000", background = "#ffffff" }.',
        ),
        ({"classes": {"a": 1, "b": [2, 1]}}, "the value 1 to 'a' and to 'b': two classes"),
        (
            {"classes": {"a": 0}, "background": 255},
            "It belongs inside classes: classes = { a = 0, background = 255 }.",
        ),
        ({"classes": {"a": 1.5}}, "value 1.5; allowed: whole numbers"),
        ({"classes": {"axon": 1}, "regions": {"all": ["axno"]}}, "Did you mean 'axon'?"),
        ({"intensity": "z-score"}, "Unknown intensity 'z-score'. Known: 'zscore'"),
        ({"patch": [16, 16, 16]}, "patch=[16, 16, 16] for images with 2 axes"),
        ({"table": {"fil": "a.csv"}}, "Unknown key of table=: 'fil'. Did you mean 'file'?"),
        ({"table": {"file": "a.csv"}}, "table= needs file (CSV or TSV) and key"),
        ({"table": {"file": "a.csv", "key": "id"}}, "There is no table 'a.csv' in the folder"),
        ({"table": {"file": "images", "key": "id"}}, "images cannot be read"),
        ({"pixel_size": {"fle": "a"}, "target_pixel_size": 1}, "Did you mean 'file'?"),
        ({"pixel_size": {"key": "a"}, "target_pixel_size": 1}, "needs either file"),
        (
            {"pixel_size": {"column": "a"}, "target_pixel_size": 1},
            "names a column of table=. Give table= too",
        ),
        ({"pixel_size": {"file": "{x}.json"}, "target_pixel_size": 1}, "placeholders ['x']"),
        (
            {"pixel_size": {"file": "{case}.json"}, "target_pixel_size": 1},
            "needs exactly one file a.json, and 0 match",
        ),
        ({"pixel_size": -1, "target_pixel_size": 1}, "pixel size -1; allowed: a positive number"),
        (
            {"pixel_size": [1, 1, 1], "target_pixel_size": 1},
            "a positive number, or 2 of them, one an axis",
        ),
        ({"target_pixel_size": 1}, "states no pixel size; give pixel_size="),
    ],
)
def test_wrong_options_say_what_is_allowed(folder, options, reason):
    assert reason in message(options.pop("root", folder), **options)


@pytest.mark.parametrize(
    ("rows", "table", "reason"),
    [
        ("id\na\nb\nc\nd\n", {}, "images/e.png: t.csv has no row 'e'"),
        ("id\na\nb\nc\nd\ne\nf\n", {}, "t.csv: row 'f' has no complete case"),
        ("name\na\n", {}, "t.csv has no column 'id'"),
        ("id,split\na,x\n", {"group": "spilt"}, "Did you mean 'split'?"),
        ("id,n\na,1\nb,1\nc,1\nd,1\ne,1\n", {"keep": {"n": 2}}, "leaves no case"),
        ("id\na\na\n", {}, "names a case twice"),
        ("id,x\na\n", {}, "more or fewer fields"),
        ("", {}, "has no rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(folder, rows, table, reason):
    (folder / "t.csv").write_text(rows)
    assert reason in message(folder, table={"file": "t.csv", "key": "id", **table})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be used: Expecting property name"),
        ('{"Pixel": 1}', "has no 'PixelSize' (it has: Pixel)"),
        ('{"PixelSize": "wide"}', "pixel size 'wide'"),
        ('{"PixelSize": NaN}', "pixel size nan"),
        ('{"PixelSize": [true, true]}', "pixel size [True, True]"),
    ],
)
def test_a_pixel_size_file_that_does_not_fit_is_refused(folder, text, reason):
    for name in "abcde":
        (folder / "images" / f"{name}.json").write_text(text)
    said = message(folder, pixel_size={"file": "images/{case}.json"}, target_pixel_size=1)
    assert "5 defects" in said
    assert said.count(reason) == 1
    assert "(4 more like it: images/b.png, images/c.png, images/d.png, ...)" in said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target_pixel_size": 1e-6}, "makes {big} pixels of {size}, which take"),
        ({"target_pixel_size": 1e9}, "to 1e+09 x 1e+09 leaves one pixel of {size}. Are both in"),
        ({"target_pixel_size": 1e-300}, "pixel size 1e-300; allowed: a positive number"),
    ],
)
def test_a_unit_that_is_mistaken_is_named_before_it_fills_the_memory(folder, options, reason):
    said = message(folder, pixel_size=1, **options)
    height, width = read_header(folder / "images" / "a.png").shape
    words = {"size": f"{height} x {width}", "big": f"{height}000000 x {width}000000"}
    assert said.count(reason.format(**words)) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"masks": {"a\nb": "masks/{case}.png"}}, r"The name 'a\nb' of a class has hidden"),
        ({"masks": {" ": "masks/{case}.png"}}, "The name ' ' of a class"),
        ({"regions": {"\x1b[2J": ["cell"]}}, r"The name '\x1b[2J' of a region"),
        ({"masks": {"a": "masks/{case}.png"}, "threshold": math.inf}, "threshold=inf; allowed"),
    ],
)
def test_names_of_several_lines_and_no_threshold_are_refused(folder, options, reason):
    given = {"masks": {"cell": "masks/{case}.png"}, **options}
    with pytest.raises(ValueError, match=re.escape(reason)):
        open_folder(root=str(folder), images="images/{case}.png", **given)


def faulty(image, mask):
    return DataSource(
        name="own", case_ids=("x",), groups=("x",), num_classes=3, channels=2,
        regions={"cell": (1,)}, patch=(8, 8), fingerprint="", read=lambda _: (image, mask),
    )  # fmt: skip


IMAGE, MASK = np.zeros((9, 9, 2), np.float32), np.zeros((9, 9), np.uint8)


@pytest.mark.parametrize(
    ("image", "mask", "reason"),
    [
        (IMAGE, MASK, None),
        (IMAGE.astype(np.float64), MASK, "image of type float64"),
        (IMAGE, MASK.astype(np.int64), "mask of type int64"),
        (IMAGE[..., :1], MASK, "image of shape (9, 9, 1); needed: (height, width, 2)"),
        (IMAGE[..., 0], MASK[0], "image of shape (9, 9); needed"),
        (IMAGE, MASK[:8], "mask of shape (8, 9) for an image of shape (9, 9)"),
        (IMAGE * np.float32(np.nan), MASK, "holds NaN or infinity"),
        (IMAGE, MASK + np.uint8(3), "labels out of range: up to 3; allowed: 0 to 2"),
    ],
)
def test_check_judges_any_source_a_users_too(image, mask, reason):
    lines = [line for line in found(faulty(image, mask)) if "no case has a pixel" not in line]
    assert len(lines) == (reason is not None)
    if reason:
        assert lines[0].startswith("x: ")
        assert reason in lines[0]
