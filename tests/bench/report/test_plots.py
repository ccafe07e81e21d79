import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.plot_style import STYLES, draw_boxes, inline, make_grid, styles_of
from tfunet.bench.report.plots import FIGURES, draw_all
from tfunet.bench.report.score_plots import MAX_POINTS, case_dice, smooth

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    grid = {"backend": ["single", "mirrored", "horovod"], "num_replicas": [1, 2]}
    write_sweep(folder, make_study(repeats=2, grid=grid), regions=("whole <tumour>", "core"))
    return summarise(read_sweep(folder))


@pytest.fixture(scope="module")
def drawings(summary):
    return {drawing.name: drawing for drawing in draw_all(summary)}


def test_every_figure_is_drawn(drawings):
    assert list(drawings) == [name for name, *_ in FIGURES]


def test_figures_are_elements_that_stand_alone_and_name_nothing_outside(drawings):
    for drawing in drawings.values():
        root = ElementTree.fromstring(drawing.svg)
        assert root.tag == f"{SVG}svg"
        assert root.get("aria-label") == drawing.title
        links = re.findall(r'(?:href=|url\()"?([^")]+)', drawing.svg)
        # To its own parts, and to rows of the table of trials.
        assert all(link.startswith((f"#{drawing.name}-", "#trial-")) for link in links)
        assert "<metadata" not in drawing.svg


def test_figures_in_one_page_share_no_id(drawings):
    ids = [
        identifier
        for drawing in drawings.values()
        for identifier in re.findall(r'\bid="([^"]+)"', drawing.svg)
    ]
    assert ids
    assert len(ids) == len(set(ids))


def texts(drawing):
    return [element.text for element in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


def test_figures_name_backends_regions_and_axes(drawings):
    assert {"single", "mirrored", "horovod", "ideal", "Speed-up", "Efficiency"} <= set(
        texts(drawings["scaling"])
    )
    assert "Dice, whole <tumour>" in texts(drawings["scores"])
    assert {"start", "first step", "steady steps", "evaluation", "saving"} <= set(
        texts(drawings["phases"])
    )
    assert "horovod x2" in texts(drawings["throughput"])


@pytest.mark.parametrize(("name", "columns"), [("axon", 4), ("oligodendrocyte", 2), ("x" * 99, 1)])
def test_dice_and_iou_of_a_class_stand_in_one_row(name, columns):
    titles = [f"{score}, {name}" for _ in range(5) for score in ("Dice", "IoU")]
    _, rows = make_grid(titles, 1.0, together=2)
    assert {len(row) for row in rows[:-1]} == {columns}


def test_panels_of_many_classes_stand_in_rows(tmp_path, recwarn):
    grid = {"backend": ["single", "mirrored"], "num_replicas": [1]}
    regions = tuple(f"pedestrian {number}" for number in range(11))
    write_sweep(tmp_path, make_study(repeats=1, grid=grid, skip=[]), regions=regions)
    drawn = {drawing.name: drawing for drawing in draw_all(summarise(read_sweep(tmp_path)))}
    assert not [str(warned.message) for warned in recwarn if "collapsed" in str(warned.message)]
    for name, num_panels in (("cases", 11), ("scores", 22)):
        root = ElementTree.fromstring(drawn[name].svg)
        titles = [
            element for element in root.iter(f"{SVG}text") if "pedestrian" in (element.text or "")
        ]
        assert len(titles) == num_panels
        rows = {round(float(element.get("y")) / 10) for element in titles}
        assert len(rows) >= num_panels / 4


def test_every_backend_has_a_colour_and_a_marker_of_its_own():
    assert len({colour for colour, _ in STYLES.values()}) == len(STYLES)
    assert len({marker for _, marker in STYLES.values()}) == len(STYLES)


def test_backends_that_nobody_foresaw_get_different_styles(tmp_path):
    cases = [{"backend": "horovod", "backend_options.cycle": number} for number in range(20)]
    study = make_study(repeats=1, grid={"num_replicas": [2]}, case=cases, skip=[])
    write_sweep(tmp_path, study)
    styles = styles_of(summarise(read_sweep(tmp_path)))
    assert len(styles) == 24
    assert len(set(styles.values())) == 24


def test_a_backends_line_joins_only_its_own_points(summary, drawings):
    # single has one point, the others one each: no line has two.
    root = ElementTree.fromstring(drawings["scaling"].svg)
    for way, (colour, _) in STYLES.items():
        lines = [
            path.get("d")
            for path in root.iter(f"{SVG}path")
            if f"stroke: {colour.lower()}; stroke-width: 1.5" in (path.get("style") or "").lower()
            and "fill: none" in path.get("style")
        ]
        assert all(line.count("L") <= 1 for line in lines), way


def test_case_dice_holds_every_case_of_every_repeat(summary):
    cell = summary.families[0].cells[0]
    values = case_dice(cell, "core")
    assert len(values) == 2 * 12
    means = [result.dice["core"] for result in cell.results]
    assert values[:12].mean() == pytest.approx(means[0])
    assert values[12:].mean() == pytest.approx(means[1])
    assert len(case_dice(cell, "no such region")) == 0


def test_smoothing_keeps_a_constant_and_the_ends():
    step, seconds, loss = smooth(range(1, 1001), np.arange(1000.0), [2.0] * 1000)
    assert len(step) == MAX_POINTS
    assert (step[0], step[-1], seconds[-1]) == (1, 1000, 999)
    assert loss == pytest.approx(2.0)
    _, _, short = smooth([1, 2, 3], [1, 2, 3], [3.0, 2.0, 1.0])
    assert list(short) == [3.0, 2.0, 1.0]
    # Over 40 steps, each is averaged with the one before.
    _, _, pairs = smooth(range(40), range(40), list(range(40)))
    assert list(pairs[:3]) == [0.0, 0.5, 1.5]


def test_inline_renames_what_refers_to_an_id():
    svg = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg><path id="a"/><use href="#a"/>'
        '<g clip-path="url(#a)"/><g fill="url(#elsewhere)"/></svg>'
    )
    assert inline(svg, "f", 'a "b" <c>') == (
        '<svg role="img" aria-label="a &quot;b&quot; &lt;c>"><path id="f-a"/><use href="#f-a"/>'
        '<g clip-path="url(#f-a)"/><g fill="url(#elsewhere)"/></svg>'
    )


def test_few_cases_are_dots_and_many_a_box():
    figure = Figure()
    axes = figure.subplots()
    draw_boxes(axes, [[0.1, 0.2, 0.6], list(range(10))], ["#000000", "#111111"])
    (dots,) = (line for line in axes.lines if line.get_marker() == "o")
    assert dots.get_xdata().tolist() == [0.1, 0.2, 0.6]
    with_area = [patch for patch in axes.patches if np.ptp(patch.get_path().vertices[:, 0]) > 0]
    assert len(with_area) == 1


@pytest.mark.parametrize(
    ("value", "limits"), [(0.0, (0, 1)), (1.0, (0, 1)), (7.0, (0, 7)), (-3.0, (-3, 1))]
)
@pytest.mark.parametrize("count", [1, 4, 40])
def test_values_that_are_all_one_are_on_an_axis_from_0_on(value, limits, count):
    figure = Figure()
    axes = figure.subplots()
    draw_boxes(axes, [[value] * count, []], ["#000000"] * 2)
    low, high = axes.get_xlim()
    margin = 0.05 * (limits[1] - limits[0])
    assert (low, high) == pytest.approx((limits[0] - margin, limits[1] + margin))
    # A line says where they are.
    assert any((line.get_xdata() == value).all() for line in axes.lines if len(line.get_xdata()))


ONE_COUNT = {"backend": ["single", "mirrored"], "num_replicas": [1]}


@pytest.mark.parametrize(
    ("grid", "repeats", "said", "unsaid"),
    [
        (ONE_COUNT, 3, {"scores": "Band:"}, {"scaling": "Dashed", "loss": "Dotted:"}),
        # One repeat has neither a range nor an interval.
        (
            {**ONE_COUNT, "num_replicas": [1, 2]},
            1,
            {"scaling": "Dashed", "loss": "Dotted:", "cases": "Box:"},
            {"scaling": "interval", "scores": "Band:", "cases": "Fewer than 10"},
        ),
        (
            {**ONE_COUNT, "num_replicas": [1, 2]},
            3,
            {"scaling": "interval", "scores": "Band:"},
            {},
        ),
        (
            {"backend": ["mirrored"], "num_replicas": [2, 4]},
            3,
            {"loss": "A line"},
            {"scores": "Band"},
        ),
    ],
)
def test_a_caption_speaks_of_what_is_drawn(grid, repeats, said, unsaid, tmp_path):
    write_sweep(tmp_path, make_study(repeats=repeats, grid=grid, skip=[]))
    figures = draw_all(summarise(read_sweep(tmp_path)))
    captions = {drawing.name: drawing.caption for drawing in figures}
    for name, words in said.items():
        assert words in captions[name]
    for name, words in unsaid.items():
        assert words not in captions.get(name, "")


def test_one_number_of_replicas_is_no_axis(tmp_path):
    write_sweep(tmp_path / "two", make_study(repeats=2, grid=ONE_COUNT, skip=[]))
    drawn = {drawing.name: drawing for drawing in draw_all(summarise(read_sweep(tmp_path / "two")))}
    assert {"single x1", "mirrored x1"} <= set(texts(drawn["scores"]))
    assert "replicas" not in texts(drawn["scores"])
    # One cell alone has nothing to stand beside.
    grid = {"backend": ["single"], "num_replicas": [1]}
    write_sweep(tmp_path / "one", make_study(repeats=2, grid=grid))
    names = [drawing.name for drawing in draw_all(summarise(read_sweep(tmp_path / "one")))]
    assert "scores" not in names


def test_a_median_is_written_away_from_the_dots(drawings):
    root = ElementTree.fromstring(drawings["throughput"].svg)
    medians = [t for t in root.iter(f"{SVG}text") if (t.text or "").startswith("median")]
    columns = {float(text.get("x")) for text in medians}
    dots = [float(use.get("x")) for use in root.iter(f"{SVG}use")]
    assert len(medians) > 1
    assert len(columns) == 1
    assert columns.pop() > max(dots)
