"""Cases in a report: those of the median repeat, at the most replicas of each backend."""

import io

import browser
import numpy as np
import pytest
from PIL import Image
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report import case_sheets
from tfunet.bench.report.case_sheets import draw_sheets
from tfunet.bench.report.sweep_report import summary_table, write_report
from tfunet.data.error_figure import differences
from tfunet.files.arrays import write_arrays

GRID = {"backend": ["single", "mirrored", "horovod"], "num_replicas": [1, 2]}


def keep(run, num_planes=1, colours=(), **changes):
    """Write three cases as a run keeps them."""
    draw = np.random.default_rng(0)
    facts = {
        "schema_version": 1,
        "label_names": {"1": "1 cell", "2": "2 nucleus"},
        "cases": [
            {"case": f"case{number:02d}", "rank": rank, "planes": [f"plane {number}"] * num_planes}
            for number, rank in enumerate(("worst", "median", "best"))
        ],
    }
    arrays = {
        f"{kind}-{number}-{at}": draw.integers(
            0, most, (24, 32, *(colours if kind == "image" else ())), dtype=np.uint8
        )
        for number in range(3)
        for at in range(num_planes)
        for kind, most in {"image": 256, "mask": 3, "labels": 3}.items()
    }
    write_arrays(run / "shown_cases.npz", arrays, facts | changes)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs") / "sweep"
    trials = write_sweep(folder, make_study(repeats=3, grid=GRID))
    for trial in trials:
        keep(folder / trial.id, num_planes=3 if trial.config.num_replicas == 2 else 1)
    return folder


def test_each_backend_has_a_sheet_in_page_and_markdown(sweep, tmp_path):
    report = write_report(sweep)
    browser.shows_all(report, tmp_path)
    assert [path.name for path in report.cases] == [f"cases-1-{at}.webp" for at in (1, 2, 3)]
    page, text = report.html.read_text(), report.markdown.read_text()
    for path in report.cases:
        assert f'<figure id="{path.stem}">' in page
        assert f"](figures/{path.name})" in text
        picture = Image.open(io.BytesIO(path.read_bytes()))
        assert picture.format == "WEBP"
        assert picture.width > 1000
    # mirrored x2 has three planes of each case.
    heights = [Image.open(path).height for path in report.cases]
    assert heights[1] > 2 * heights[0]
    assert page.count('src="data:image/webp;base64,') == 3
    assert "the one with the median Dice" in page
    assert "worst: case00; median: case01; best: case02" in page
    assert '<a href="#cases-shown">' in page


def test_a_report_of_many_backends_has_not_all_pictures(sweep, monkeypatch):
    monkeypatch.setattr(case_sheets, "MAX_SHEETS", 1)
    (sheet,) = draw_sheets(summarise(read_sweep(sweep)))
    assert sheet.title == "single x1"


def test_a_run_on_colour_images_has_a_sheet_in_colour(tmp_path):
    first, *_ = write_sweep(tmp_path, make_study(repeats=1, grid=GRID))
    keep(tmp_path / first.id, colours=(3,))
    (sheet,) = draw_sheets(summarise(read_sweep(tmp_path)))
    with Image.open(io.BytesIO(sheet.webp)) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    # The image is to the left; colours are drawn at random, and no two channels are alike.
    left = pixels[: len(pixels) * 9 // 10, : picture.width // 4]
    assert (np.ptp(left, -1) > 60).mean() > 0.3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colours": (4,)}, "image-0-0: expected (rows, columns) of uint8"),
        ({"label_names": 3}, "label_names"),
        ({"cases": [{"case": "a", "rank": "worst", "planes": ["x"] * 9}]}, "has no image-0-1"),
    ],
)
def test_wrong_kept_cases_are_named_and_left_out(changes, words, tmp_path):
    first, *_ = write_sweep(tmp_path, make_study(repeats=1, grid=GRID))
    keep(tmp_path / first.id, **changes)
    text = summary_table(tmp_path)
    assert f"{first.id}: shown_cases.npz cannot be used: " in text
    assert words in text
    assert draw_sheets(summarise(read_sweep(tmp_path))) == []


def test_differences_name_what_is_wrong():
    mask = np.array([[0, 0, 1, 1, 2]], np.uint8)
    predicted = np.array([[0, 1, 0, 1, 1]], np.uint8)
    assert differences(mask, predicted).tolist() == [[0, 1, 2, 0, 3]]
