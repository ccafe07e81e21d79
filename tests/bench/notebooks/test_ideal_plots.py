from dataclasses import replace

import pytest
from campaign_logs import GPUS, ONE_GPU, PUBLISHED, write_log
from synthetic_sweep import EFFICIENCY, make_study, write_sweep

from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.notebooks.ideal_plots import (
    DEVIATION_FIGURE,
    beside_campaign,
    campaign_figure,
    deviation,
)
from tfunet.bench.records.published_campaign import read_campaign
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.plot_style import styles_of
from tfunet.bench.report.plots import draw_all, named


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ideal")
    write_sweep(folder, make_study(repeats=3), noise=0.0)
    return summarise(read_sweep(folder))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    for kind, efficiencies in PUBLISHED.items():
        for count, value in zip((1, *GPUS), (1.0, *efficiencies), strict=True):
            write_log(folder / f"log_{kind}{count}.csv", ONE_GPU[kind] / count / value)
    return read_campaign(folder)


def lines(axes):
    """The labelled lines: those of a way, without its dots."""
    by_name = {container.get_label(): container.lines[0] for container in axes.containers}
    by_name |= {line.get_label(): line for line in axes.lines}
    return {label: value for label, value in by_name.items() if not label.startswith("_")}


def test_the_deviation_is_what_is_lost_of_the_ideal(summary):
    (axes,) = deviation(summary.families[0], styles_of(summary)).axes
    found = lines(axes)
    for way, efficiency in EFFICIENCY.items():
        lost = 100 * (efficiency - 1)
        assert found[way].get_ydata()[-1] == pytest.approx(lost)
    assert "%" in axes.get_ylabel()
    assert "replicas (weak scaling)" in axes.get_xlabel()


def test_one_replica_has_no_deviation(summary):
    family = summary.families[0]
    alone = replace(family, cells=tuple(cell for cell in family.cells if cell.num_replicas == 1))
    assert deviation(alone, styles_of(summary)) is None


def test_the_campaign_stands_beside_the_sweep_on_the_same_scale(summary, runs):
    figure = beside_campaign(summary.families[0], runs, styles_of(summary), "mine")
    ours, theirs, iou, their_iou = figure.axes
    assert ours.get_ylim() == theirs.get_ylim()
    assert iou.get_ylim() == their_iou.get_ylim()
    published = lines(theirs)
    low, high = theirs.get_ylim()
    drawn = [value for line in published.values() for value in line.get_ydata()]
    assert low < min(drawn) < max(drawn) < high
    assert published["horovod"].get_ydata()[1:] == pytest.approx(
        [100 * (value - 1) for value in PUBLISHED["hvd_"]], abs=0.05
    )
    assert published["multiworker"].get_ydata() == pytest.approx(
        [100 * (value - 1) for value in PUBLISHED[""][1:]], abs=0.05
    )
    assert len(published["mirrored"].get_ydata()) == 1
    assert list(lines(their_iou)["horovod"].get_ydata()) == [0.96] * 8
    values = [value for marks in iou.collections for _, value in marks.get_offsets()]
    assert summary.families[0].cells[0].results[0].iou["cell"] in values


def test_runs_without_iou_leave_their_panel_empty(summary, runs):
    bare = [replace(run, iou=None) for run in runs]
    *_, panel = beside_campaign(summary.families[0], bare, styles_of(summary), "mine").axes
    assert all(len(line.get_ydata()) == 0 for line in panel.lines)


def test_chosen_figures_are_drawn_in_their_order(summary, runs):
    figures = [campaign_figure(runs, "mine"), DEVIATION_FIGURE, *named("scaling")]
    drawings = draw_all(summary, figures)
    assert [drawing.name for drawing in drawings] == ["campaign", "deviation", "scaling"]
    page = drawings[0]._repr_html_()
    assert drawings[0].svg in page
    assert drawings[0].caption in page
    # With it, every notebook would hold each figure twice.
    assert "<svg" not in repr(drawings[0])
