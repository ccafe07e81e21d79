"""The figures of a report, listed in FIGURES, as SVG. Needs matplotlib; writes no files."""

import functools
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from tfunet.bench.analysis.study_cell import PHASES, Cell
from tfunet.bench.analysis.sweep_summary import Family, Summary
from tfunet.bench.report import plot_style
from tfunet.bench.report.epoch_plots import epoch_curves
from tfunet.bench.report.score_plots import (
    case_boxes,
    confusion_matrix,
    loss_curves,
    metric_boxes,
    scores_by_replicas,
)
from tfunet.bench.report.setting_plots import CAPTION, draw_setting, setting_figures
from tfunet.bench.report.tables import family_metrics
from tfunet.config.amount import GIB

PHASE_COLOURS = ("#999999", "#E69F00", "#0072B2", "#009E73", "#CC79A7")
PHASE_HATCHES = ("", "//", "", "..", "xx")
# Drawing a figure takes about half a second, and nobody looks at hundreds.
MAX_FAMILIES = 8

# Figures that would show a run alone as one dot or one bar.
OF_SEVERAL_RUNS = ("scaling", "throughput", "scores", "memory")

# Name, title, caption, and the function that draws the figure for a family.
FigureKind = tuple[
    str, str, plot_style.Caption, Callable[[Family, plot_style.Styles], Figure | None]
]
# Turns a speed-up of a cell into what is drawn.
Scale = Callable[[float, Cell], float]


@dataclass(frozen=True, kw_only=True)
class DrawnFigure:
    """A figure of a report; `svg` has no prolog, so that it can be part of HTML."""

    name: str
    title: str
    caption: str
    svg: str = field(repr=False)

    def _repr_html_(self) -> str:
        # A notebook shows this.
        return f"<h4>{escape(self.title)}</h4>{self.svg}<p>{escape(self.caption)}</p>"


def draw_all(summary: Summary, figures: Sequence[FigureKind] | None = None) -> list[DrawnFigure]:
    """Return those of `figures`, (name, title, caption, function), for which the sweep has numbers,
    for its first families of cells.
    """
    styles = plot_style.styles_of(summary)
    drawings = [] if figures is not None else setting_drawings(summary)
    for number, family in enumerate(summary.families[:MAX_FAMILIES], 1):
        suffix = f"-{number}" if len(summary.families) > 1 else ""
        kinds = list(_all_figures(family) if figures is None else figures)
        if summary.lone_run is not None and figures is None:
            kinds = [kind for kind in kinds if kind[0] not in OF_SEVERAL_RUNS]
            kinds.insert([name for name, *_ in kinds].index("cases"), CONFUSION)
        for name, title, caption, draw in kinds:
            heading = f"{title}: {family.title}" if family.title else title
            with styled(name + suffix):
                figure = draw(family, styles)
                if figure is not None:
                    drawings.append(_drawing(figure, name + suffix, heading, caption))
    return drawings


def setting_drawings(summary: Summary) -> list[DrawnFigure]:
    """Return a figure for each setting that varied, with all its values."""
    families, styles = summary.families, plot_style.styles_of(summary)
    return [
        drawn(
            f"setting-{_plain('-'.join(kind.keys))}",
            kind.title,
            CAPTION,
            functools.partial(draw_setting, kind, families, styles),
        )
        for kind in setting_figures(families)[:MAX_FAMILIES]
    ]


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name)


def _all_figures(family: Family) -> list[FigureKind]:
    """Return all figures; those of metrics of whole cases follow that of Dice."""
    metrics: list[FigureKind] = [
        (
            f"metric-{_plain(metric)}",
            f"{metric} of every case",
            BOXES,
            functools.partial(metric_boxes, metric),
        )
        for metric in family_metrics(family)
    ]
    after = next(at for at, (name, *_) in enumerate(FIGURES, 1) if name == "cases")
    return [*FIGURES[:after], *metrics, *FIGURES[after:]]


def drawn(
    name: str, title: str, caption: plot_style.Caption, draw: Callable[[], Figure]
) -> DrawnFigure:
    """Return a figure of any kind in the style of all."""
    with styled(name):
        return _drawing(draw(), name, title, caption)


def styled(name: str) -> AbstractContextManager[None]:
    """Return a context in which a figure is made and saved in our style; `name` fixes its ids."""
    return rc_context({**plot_style.RC, "svg.hashsalt": name})


def _drawing(figure: Figure, name: str, title: str, caption: plot_style.Caption) -> DrawnFigure:
    svg = plot_style.to_svg(figure, name, title)
    return DrawnFigure(name=name, title=title, caption=plot_style.said_of(figure, caption), svg=svg)


def named(*names: str) -> list[FigureKind]:
    """Return figures of a report by their names."""
    return [kind for kind in FIGURES if kind[0] in names]


def _scaling(family: Family, styles: plot_style.Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.speed_up is not None]
    if not any(cell.num_devices > 1 for cell in cells):
        return None
    figure, (left, right) = plot_style.make_panels(1, 2, 3.7)
    counts = sorted({cell.num_devices for cell in cells})
    left.plot(counts, counts, color="#888888", linestyle="--", linewidth=1, zorder=1)
    # Between two numbers of replicas, where no interval crosses the text.
    middle = float(np.sqrt(counts[-1] * counts[max(len(counts) - 2, 0)]))
    left.annotate(
        "ideal",
        (middle, middle),
        xytext=(-6, 2),
        textcoords="offset points",
        ha="right",
        color="#666666",
    )
    right.axhline(1, color="#888888", linestyle="--", linewidth=1, zorder=1)
    scales: tuple[Scale, Scale] = (
        lambda speed_up, _: speed_up,
        lambda speed_up, cell: speed_up / cell.num_devices,
    )
    for axes, scale in zip((left, right), scales, strict=True):
        shown = speed_up_lines(axes, cells, styles, scale)
        # The ideal must be visible too.
        shown += [1.0, *(scale(cell.num_devices, cell) for cell in cells)]
        axes.set_ylim(0.85 * min(shown), 1.12 * max(shown))
    baseline = f"{family.baseline} x1" if family.baseline else "one replica"
    left.set(ylabel=f"times as fast as {baseline}", title="Speed-up")
    right.set(ylabel="speed-up / replicas", title="Efficiency")
    left.set_yscale("log", base=2)
    low, high = left.get_ylim()
    fine = [tick / 5 for tick in range(1, 12) if low <= tick / 5 <= high]
    ticks = fine if counts[-1] <= 2 else counts
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    right.set_ylim(0, max(1.1, right.get_ylim()[1]))
    for axes in (left, right):
        plot_style.replica_axis(axes, counts, f"replicas ({family.scaling} scaling)")
    plot_style.legend_above(figure, left)
    return figure


def speed_up_lines(
    axes: Any,
    cells: Sequence[Cell],
    styles: plot_style.Styles,
    scale: Scale,
    *,
    with_links: bool = True,
) -> list[float]:
    """Draw a line for each way: speed-ups with intervals, and a dot beside it for every repeat.

    Returns the values that the axes must show: intervals of two or three repeats can be so wide
    that they would flatten everything else.
    """
    shift = plot_style.shifts(cells)
    shown = []
    for way in dict.fromkeys(cell.way for cell in cells):
        colour, marker = styles[way]
        points = []
        for cell in cells:
            if cell.way == way and cell.speed_up is not None:
                estimate = cell.speed_up
                x = cell.num_devices * shift[way]
                ends = (estimate.value, estimate.low, estimate.high)
                points.append([x, *(scale(value, cell) for value in ends)])
                repeats = [scale(value, cell) for value in cell.speed_up_repeats]
                trials = cell.done if with_links else ()
                plot_style.repeat_dots(
                    axes, [x * plot_style.BESIDE] * len(repeats), repeats, colour, trials
                )
                shown += repeats
        x, middle, low, high = np.array(points).T
        marks = axes.errorbar(
            x,
            middle,
            yerr=np.nan_to_num([middle - low, high - middle]),
            color=colour,
            marker=marker,
            label=way,
            markersize=6,
            linewidth=1.5,
            elinewidth=2.2,
            capsize=5,
            capthick=2.2,
            zorder=3,
        )
        if len(x) > 1:
            marks.lines[0].set_label(plot_style.LINE)
        if not np.isnan(low).all():
            marks.lines[2][0].set_label(plot_style.INTERVAL)
        shown += list(middle)
    return shown


def _throughput(family: Family, styles: plot_style.Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.images_per_second is not None]
    if not cells:
        return None
    figure, (axes,) = plot_style.make_panels(1, 1, plot_style.bars_height(len(cells)))
    rates = [cell.images_per_second.values if cell.images_per_second else () for cell in cells]
    _bars(axes, cells, rates, styles, "{:.1f}")
    what = "samples" if cells[0].scores else "images"
    axes.set_xlabel(f"{what} per second, all replicas together (steady steps)")
    return figure


def _memory(family: Family, styles: plot_style.Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.resident_bytes is not None]
    if not cells:
        return None
    on_device = [cell for cell in cells if cell.device_bytes is not None]
    figure, panels = plot_style.make_panels(
        1, 2 if on_device else 1, plot_style.bars_height(len(cells))
    )
    resident = [cell.resident_bytes.values if cell.resident_bytes else () for cell in cells]
    _bars(panels[0], cells, [[value / GIB for value in row] for row in resident], styles, "{:.2f}")
    panels[0].set_xlabel("peak resident memory, all processes together (GiB)")
    if on_device:
        device = [cell.device_bytes.values if cell.device_bytes else () for cell in on_device]
        rows = [[value / GIB for value in row] for row in device]
        _bars(panels[1], on_device, rows, styles, "{:.2f}")
        panels[1].set_xlabel("peak device memory, fullest process (GiB)")
    return figure


def _bars(
    axes: Any,
    cells: Sequence[Cell],
    rows: Sequence[Sequence[float]],
    styles: plot_style.Styles,
    text: str,
) -> None:
    largest = max(max(row) for row in rows)
    for at, (cell, values) in enumerate(zip(cells, rows, strict=True)):
        colour, _ = styles[cell.way]
        median = float(np.median(values))
        axes.barh(at, median, height=0.62, color=colour, alpha=0.55, zorder=2)
        # A trial for each value, unless some trials lack it.
        trials = cell.done if len(values) == len(cell.done) else ()
        plot_style.repeat_dots(axes, values, [at] * len(values), "#222222", trials, size=4)
        said = text.format(median) if len(values) == 1 else f"median {text.format(median)}"
        # In a column of its own: beside a dot it would be taken for the number of the dot.
        axes.text(1.01, at, said, va="center", transform=axes.get_yaxis_transform())
    axes.set_xlim(0, largest * 1.05)
    plot_style.name_rows(axes, cells)


def _phases(family: Family, styles: plot_style.Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.phases]
    if not cells:
        return None
    figure, (axes,) = plot_style.make_panels(1, 1, plot_style.bars_height(len(cells)) + 0.3)
    left = np.zeros(len(cells))
    for phase, colour, hatch in zip(PHASES, PHASE_COLOURS, PHASE_HATCHES, strict=True):
        widths = np.array([cell.phases[phase] for cell in cells if cell.phases])
        axes.barh(
            range(len(cells)),
            widths,
            left=left,
            height=0.62,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            label=phase,
            zorder=2,
        )
        left += widths
    for at, total in enumerate(left):
        axes.text(total + 0.01 * left.max(), at, f"{total:.1f} s", va="center")
    axes.set_xlim(0, left.max() * 1.1)
    axes.set_xlabel("seconds (median of the repeats)")
    plot_style.name_rows(axes, cells)
    plot_style.legend_above(figure, axes)
    return figure


BOXES: plot_style.Caption = (
    "Cases of all repeats.",
    (
        "Box: quartiles and median; whiskers: up to 1.5 times the quartile range beyond the box.",
        plot_style.BOX,
    ),
    (
        f"Fewer than {plot_style.FEWEST_OF_BOX} cases are dots, with a line at their median.",
        plot_style.FEW,
    ),
)
CONFUSION: FigureKind = (
    "confusion",
    "Which class is taken for which",
    "A row has the voxels of a true class in all validation cases: the share that was predicted as "
    "each class. Grey: no voxel has this class. confusion.csv has the counts.",
    confusion_matrix,
)

FIGURES: tuple[FigureKind, ...] = (
    (
        "scaling",
        "Speed-up and efficiency",
        (
            "A dot for every repeat links to its trial.",
            ("Upright: 95 % interval of a ratio, cut at the edge.", plot_style.INTERVAL),
            "Dashed: ideal.",
            ("A line joins points of one backend.", plot_style.LINE),
        ),
        _scaling,
    ),
    (
        "throughput",
        "Speed",
        "Bar: median. Dots: every repeat.",
        _throughput,
    ),
    (
        "loss",
        "Training loss over steps and over time",
        (
            "A line for every repeat: a running mean over a twentieth of the steps.",
            ("Dotted: one replica, for comparison.", plot_style.REFERENCE),
            "Over steps, equal curves lie inside each other. Time is that of training, with the "
            "first step.",
        ),
        loss_curves,
    ),
    (
        "epochs",
        "Loss and score over epochs",
        "A line for every repeat of each backend with the most replicas. Validation losses and "
        "scores are those of the evaluations. Equal curves lie inside each other.",
        epoch_curves,
    ),
    (
        "scores",
        "Scores of every repeat",
        (
            "Hollow: every repeat. Filled: their median.",
            ("Band: range of the baseline's repeats.", plot_style.BAND),
        ),
        scores_by_replicas,
    ),
    (
        "cases",
        "Dice of every case",
        BOXES,
        case_boxes,
    ),
    (
        "phases",
        "Where the time goes",
        "Wall-clock time of the phases of a run. The first step includes tracing and compilation.",
        _phases,
    ),
    (
        "memory",
        "Peak memory",
        "Bar: median. Dots: every repeat.",
        _memory,
    ),
)
