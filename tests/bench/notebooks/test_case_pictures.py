"""The worst and best cases of a sweep, and their pictures."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.notebooks.case_pictures import (
    PredictedCase,
    dice_of,
    draw_case,
    open_data,
    picture,
    read_case,
)
from tfunet.bench.notebooks.case_tables import case_rows, find_run, worst_and_best
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.config.run import RunConfig
from tfunet.data.error_figure import differences
from tfunet.data.image_files import read_image
from tfunet.record import CASE_COLUMNS, RunFolder


@pytest.fixture
def sweep(tmp_path):
    grid = {"backend": ["single", "horovod"], "num_replicas": [1, 2]}
    write_sweep(tmp_path / "sweep", make_study(repeats=2, grid=grid), regions=("whole", "core"))
    return tmp_path / "sweep"


def write_cases(run, dice):
    """Write cases.csv in which each case has this Dice in both of its regions."""
    rows = []
    for case, value in dice.items():
        hits = round(1000 * value)
        counts = (hits, 1000 - hits, 1000 - hits)
        rows += [
            dict(zip(CASE_COLUMNS, (3, case, region, *counts), strict=True))
            for region in ("whole", "core")
        ]
    RunFolder(run).write_cases(rows)


def test_dice_of_a_case_is_that_of_its_counts(sweep):
    run = next(sweep.glob("single-*"))
    write_cases(run, {"a": 0.9, "b": 0.25})
    assert dice_by_case(run) == {
        "a": {"whole": 0.9, "core": 0.9},
        "b": {"whole": 0.25, "core": 0.25},
    }


@pytest.mark.parametrize(
    ("dice", "ends"),
    [
        ({"a": 0.9, "b": 0.25, "c": 0.5}, ["b", "a"]),
        ({"only": 0.5}, ["only"]),  # shown once
    ],
)
def test_the_worst_and_the_best_case_of_a_run(sweep, dice, ends):
    run = next(sweep.glob("single-*"))
    write_cases(run, dice)
    assert worst_and_best(run) == ends


def test_a_run_without_scores_of_cases_says_to_name_them(sweep):
    run = next(sweep.glob("single-*"))
    (run / "cases.csv").unlink()
    with pytest.raises(ValueError, match="set `cases` to the names of those to show"):
        worst_and_best(run)


def test_cases_are_sorted_from_worst_to_best_and_the_middle_is_left_out(sweep):
    for run in sweep.glob("*-r*"):
        write_cases(run, {f"case{at}": 0.1 + 0.05 * at for at in range(10)})
    (family,) = summarise(read_sweep(sweep)).families
    rows = case_rows(family, shown=2)
    assert [row["case"] for row in rows] == ["case0", "case1", "case8", "case9"]
    assert list(rows[0]) == ["case", "mean", "single x1", "horovod x2"]
    assert rows[0]["single x1"] == "0.100"
    assert len(case_rows(family, shown=5)) == 10


def test_a_run_is_found_by_name_pattern_or_path(sweep):
    run = next(sweep.glob("single-1r-*r1-*"))
    (run / "model.keras").touch()
    for name in (run.name, "single-1r-*", str(run)):
        assert find_run(sweep, name) == run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mirrored-*", r"no run 'mirrored-\*' in .* Runs there: .*single-1r.* Set `run`"),
        ("single-1r-*", r"has no model\.keras.* train the run again .*: tfunet train --config "),
    ],
)
def test_a_run_that_cannot_predict_says_what_to_do(sweep, name, words):
    with pytest.raises(ValueError, match=words):
        find_run(sweep, name)


def write_run(folder, **settings):
    RunFolder(folder).create()
    RunFolder(folder).write_config(RunConfig(**settings))
    return folder


def test_data_is_read_from_where_the_notebook_says(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / "moved" / name).mkdir(parents=True)
        for case in "ab":
            pixels = rng.integers(0, 2, (20, 24), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "moved" / name / f"{case}.png")
    options = {
        "root": "elsewhere",
        "images": "images/{case}.png",
        "masks": "masks/{case}.png",
        "classes": {"cell": 1},
        "pixel_size": 0.1,
        "target_pixel_size": 0.2,
    }
    run = write_run(tmp_path / "run", data="folder", data_options=options)
    with pytest.raises(ValueError, match=r"'elsewhere' does not exist.* Set `root` to the folder"):
        open_data(run, None)
    source = open_data(run, str(tmp_path / "moved"))
    case = read_case(source, "b", tmp_path)
    assert case.files == str(tmp_path / "moved/images/b.png")
    # As stored, not as trained on: that is what a prediction is of.
    assert case.image.shape == (20, 24, 1)
    assert case.pixel_size == (0.1, 0.1)
    assert case.labels == {1: "1 cell"}
    with pytest.raises(ValueError, match=r"has no case 'c'\. Known: a, b"):
        read_case(source, "c", tmp_path)


@pytest.mark.parametrize(("data", "size", "shape"), [("cells", 32, (32, 32)), ("tumours", 24, 3)])
def test_a_generated_image_becomes_a_file(tmp_path, data, size, shape):
    run = write_run(tmp_path / "run", data=data, data_options={"num_cases": 2, "size": size})
    with pytest.raises(ValueError, match="reads no folder: set `root` to None"):
        open_data(run, "images")
    source = open_data(run, None)
    case = read_case(source, source.case_ids[1], tmp_path)
    image, mask = source.read(1)
    np.testing.assert_array_equal(read_image(Path(case.files)), image)
    np.testing.assert_array_equal(case.mask, mask)
    assert case.pixel_size is None


MASK = np.array([[0, 0, 1, 1], [2, 2, 0, 1]], np.uint8)
PREDICTED = np.array([[0, 1, 1, 0], [2, 1, 0, 1]], np.uint8)
CASE = PredictedCase(
    case_id="a <b>",
    files="a.png",
    pixel_size=None,
    image=np.arange(8, dtype=np.float32).reshape(2, 4, 1),
    mask=MASK,
    regions={"both": (1, 2), "one": (1,)},
    labels={1: "1 one", 2: "2"},
)


def test_differences_name_what_is_wrong():
    wanted = [[0, 1, 0, 2], [0, 3, 0, 0]]  # too much, missed, another class
    assert differences(MASK, PREDICTED).tolist() == wanted
    assert not differences(MASK, MASK).any()


def test_dice_of_a_prediction_is_of_each_region():
    # both: 4 hits, 1 too much, 1 missed; one: 2 hits, 2 too much, 1 missed.
    assert dice_of(CASE, PREDICTED) == pytest.approx({"both": 8 / 10, "one": 4 / 7})


def test_pixels_without_data_count_neither_for_nor_against_a_prediction(tmp_path):
    Image.fromarray(PREDICTED).save(tmp_path / "a.png")
    wrong = MASK != PREDICTED
    case = replace(CASE, mask=np.where(wrong, np.uint8(255), MASK), ignored=255)
    assert picture(case, tmp_path / "a.png").title == "a <b>: Dice both 1.000, one 1.000"


def test_a_picture_shows_image_mask_prediction_and_differences(tmp_path):
    Image.fromarray(PREDICTED).save(tmp_path / "a.png")
    drawing = picture(CASE, tmp_path / "a.png")
    assert drawing.title == "a <b>: Dice both 0.800, one 0.571"
    page = "".join(ElementTree.fromstring(drawing.svg).itertext())
    for words in ("image", "manual mask", "prediction", "where they differ", "1 one"):
        assert words in page
    ids = re.findall(r'\bid="([^"]+)"', drawing.svg)
    assert all(identifier.startswith("case-a-b-") for identifier in ids)


def test_a_prediction_of_another_image_is_refused(tmp_path):
    Image.fromarray(PREDICTED[:, :3]).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="it belongs to another image"):
        picture(CASE, tmp_path / "a.png")


def test_a_colour_image_is_shown_in_colour():
    colours = np.zeros((2, 4, 4), np.float32)
    colours[..., 0] = 9
    figure = draw_case(replace(CASE, image=colours, in_colour=True), PREDICTED)
    for axes in figure.axes:
        shown = axes.images[0].get_array()
        assert (shown == (255, 0, 0)).all()


def test_of_a_volume_the_slice_with_most_foreground_is_shown():
    empty = np.zeros_like(MASK)
    volume = replace(CASE, image=np.stack([CASE.image] * 3), mask=np.stack([empty, MASK, empty]))
    figure = draw_case(volume, np.stack([empty, PREDICTED, empty]))
    titles = [axes.get_title(loc="left") + axes.get_title() for axes in figure.axes]
    assert titles[0] == "image, slice 2 of 3"
    assert figure.axes[0].images[0].get_array().shape == MASK.shape
    # What is told of a file is that of the whole volume.
    assert json.dumps(dice_of(volume, volume.mask)) == '{"both": 1.0, "one": 1.0}'
