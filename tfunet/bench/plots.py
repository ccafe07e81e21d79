"""Draws the figures of a report as SVG. Needs matplotlib; nothing is shown or written."""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfunet import scores
from tfunet.bench.collect import read_cases, read_steps
from tfunet.bench.comparison import PHASES, Cell, Family, Summary

# Okabe and Ito 2008, told apart by the colour-blind; yellow is left out, too pale on white. Each
# has a marker of its own too. Names that come often keep theirs from report to report.
STYLES = {
    "single": ("#4d4d4d", "o"),
    "mirrored": ("#0072B2", "s"),
    "multiworker": ("#009E73", "^"),
    "horovod": ("#D55E00", "D"),
}
OTHER_STYLES = (("#CC79A7", "v"), ("#56B4E9", "P"), ("#E69F00", "X"), ("#000000", "*"))
PHASE_COLOURS = ("#999999", "#E69F00", "#0072B2", "#009E73", "#CC79A7")
PHASE_HATCHES = ("", "//", "", "..", "xx")
WIDTH = 9.0  # inches, which a page of 900 pixels shows at its own size
MAX_COUNTS = 4
MAX_POINTS = 300
GIB = 2.0**30
RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    # Text stays text: it can be searched, copied and read aloud.
    "svg.fonttype": "none",
}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure for the report: `svg` has no prolog, so that it can stand inside HTML."""

    name: str
    title: str
    caption: str
    svg: str


def draw_all(summary: Summary) -> list[Drawing]:
    """Return all figures for which the sweep has numbers, family by family."""
    drawings = []
    styles = _styles(summary)
    for number, family in enumerate(summary.families, 1):
        suffix = f"-{number}" if len(summary.families) > 1 else ""
        for name, title, caption, draw in FIGURES:
            with rc_context({**RC, "svg.hashsalt": name + suffix}):
                figure = draw(family, styles)
                if figure is None:
                    continue
                heading = f"{title}: {family.title}" if family.title else title
                svg = _svg(figure, name + suffix, heading)
            drawings.append(Drawing(name=name + suffix, title=heading, caption=caption, svg=svg))
    return drawings


Styles = dict[str, tuple[str, str]]


def _styles(summary: Summary) -> Styles:
    ways = list(dict.fromkeys(way for family in summary.families for way in family.ways))
    others = [way for way in ways if way not in STYLES]
    extra = {way: OTHER_STYLES[at % len(OTHER_STYLES)] for at, way in enumerate(others)}
    return {**STYLES, **extra}


def _scaling(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.speed_up is not None]
    if not any(cell.num_replicas > 1 for cell in cells):
        return None
    figure, (left, right) = _panels(1, 2, 3.7)
    counts = sorted({cell.num_replicas for cell in cells})
    left.plot(counts, counts, color="#888888", linestyle="--", linewidth=1, zorder=1)
    left.annotate(
        "ideal",
        (counts[-1], counts[-1]),
        xytext=(-6, 2),
        textcoords="offset points",
        ha="right",
        color="#666666",
    )
    right.axhline(1, color="#888888", linestyle="--", linewidth=1, zorder=1)
    _lines(left, cells, styles, lambda cell: 1.0)
    _lines(right, cells, styles, lambda cell: 1.0 / cell.num_replicas)
    baseline = f"one replica of {family.baseline}" if family.baseline else "one replica"
    left.set(ylabel=f"times as fast as {baseline}", title="Speed-up")
    right.set(ylabel="speed-up / replicas", title="Efficiency")
    left.set_ylim(bottom=0)
    right.set_ylim(0, max(1.1, right.get_ylim()[1]))
    for axes in (left, right):
        axes.set_xticks(counts)
        axes.set_xlabel(f"replicas ({family.scaling} scaling)")
    _legend(figure, left)
    return figure


def _lines(
    axes: Any, cells: Sequence[Cell], styles: Styles, scale: Callable[[Cell], float]
) -> None:
    """Draw a line a way: medians with their intervals, and a dot for every repeat beside."""
    shift = _shifts(cells)
    tops = [1.0]
    for way in dict.fromkeys(cell.way for cell in cells):
        colour, marker = styles[way]
        own = [cell for cell in cells if cell.way == way]
        x = np.array([cell.num_replicas + shift[way] for cell in own])
        middle = np.array([cell.speed_up.value * scale(cell) for cell in own if cell.speed_up])
        low = np.array([cell.speed_up.low * scale(cell) for cell in own if cell.speed_up])
        high = np.array([cell.speed_up.high * scale(cell) for cell in own if cell.speed_up])
        errors = np.nan_to_num([middle - low, high - middle])
        axes.errorbar(
            x, middle, yerr=errors, color=colour, marker=marker, label=way, markersize=6,
            linewidth=1.5, elinewidth=1.2, capsize=3, zorder=3,
        )  # fmt: skip
        for at, cell in zip(x, own, strict=True):
            values = [value * scale(cell) for value in cell.speed_up_repeats]
            axes.plot(
                [at] * len(values), values, linestyle="none", marker=".", markersize=5,
                markerfacecolor="white", markeredgecolor=colour, markeredgewidth=0.9, zorder=4,
            )  # fmt: skip
            tops += values
        tops += list(middle)
    # Intervals of two or three repeats are so wide that they would flatten everything else.
    axes.set_ylim(top=max(tops) * 1.12)


def _shifts(cells: Sequence[Cell]) -> dict[str, float]:
    """Return a small step aside for each way, so that equal values do not hide each other."""
    ways = list(dict.fromkeys(cell.way for cell in cells))
    counts = sorted({cell.num_replicas for cell in cells})
    gap = min((b - a for a, b in zip(counts, counts[1:], strict=False)), default=1)
    middle = (len(ways) - 1) / 2
    return {way: (at - middle) * 0.07 * gap for at, way in enumerate(ways)}


def _throughput(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.images_per_second is not None]
    if not cells:
        return None
    figure, (axes,) = _panels(1, 1, _height(len(cells)))
    rates = [cell.images_per_second.values if cell.images_per_second else () for cell in cells]
    _bars(axes, cells, rates, styles, "{:.1f}")
    axes.set_xlabel("images per second, all replicas together (steady steps)")
    return figure


def _memory(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.resident_bytes is not None]
    if not cells:
        return None
    on_device = [cell for cell in cells if cell.device_bytes is not None]
    figure, panels = _panels(1, 2 if on_device else 1, _height(len(cells)))
    resident = [cell.resident_bytes.values if cell.resident_bytes else () for cell in cells]
    _bars(panels[0], cells, [[one / GIB for one in row] for row in resident], styles, "{:.2f}")
    panels[0].set_xlabel("peak resident memory, all processes together (GiB)")
    if on_device:
        device = [cell.device_bytes.values if cell.device_bytes else () for cell in on_device]
        rows = [[one / GIB for one in row] for row in device]
        _bars(panels[1], on_device, rows, styles, "{:.2f}")
        panels[1].set_xlabel("peak device memory, fullest process (GiB)")
    return figure


def _bars(
    axes: Any,
    cells: Sequence[Cell],
    rows: Sequence[Sequence[float]],
    styles: Styles,
    text: str,
) -> None:
    """Draw a bar a cell as long as the median, with a dot for every repeat."""
    largest = max(max(row) for row in rows)
    for at, (cell, values) in enumerate(zip(cells, rows, strict=True)):
        colour, _ = styles[cell.way]
        median = float(np.median(values))
        axes.barh(at, median, height=0.62, color=colour, alpha=0.55, zorder=2)
        axes.plot(
            values, [at] * len(values), linestyle="none", marker="o", markersize=4,
            markerfacecolor="white", markeredgecolor="#222222", markeredgewidth=0.9, zorder=3,
        )  # fmt: skip
        axes.text(max(values) + 0.015 * largest, at, text.format(median), va="center")
    axes.set_xlim(0, largest * 1.12)
    _name_rows(axes, cells)


def _phases(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.phases]
    if not cells:
        return None
    figure, (axes,) = _panels(1, 1, _height(len(cells)) + 0.3)
    left = np.zeros(len(cells))
    for phase, colour, hatch in zip(PHASES, PHASE_COLOURS, PHASE_HATCHES, strict=True):
        widths = np.array([cell.phases[phase] for cell in cells if cell.phases])
        axes.barh(
            range(len(cells)), widths, left=left, height=0.62, color=colour, hatch=hatch,
            edgecolor="white", linewidth=0.5, label=phase, zorder=2,
        )  # fmt: skip
        left += widths
    for at, total in enumerate(left):
        axes.text(total + 0.01 * left.max(), at, f"{total:.1f} s", va="center")
    axes.set_xlim(0, left.max() * 1.1)
    axes.set_xlabel("seconds (median of the repeats)")
    _name_rows(axes, cells)
    _legend(figure, axes)
    return figure


def _loss(family: Family, styles: Styles) -> Figure | None:
    curves = {
        (cell.way, cell.num_replicas): _curves(cell) for cell in family.cells if cell.results
    }
    counts = _some(sorted({count for (_, count), found in curves.items() if found and count > 1}))
    counts = counts or [1]
    if not any(curves.values()):
        return None
    figure, panels = _panels(2, len(counts), 5.6, sharey=True)
    grid = np.array(panels, dtype=object).reshape(2, len(counts))
    for column, count in enumerate(counts):
        for (way, replicas), found in curves.items():
            # One replica is in every column, as what the others are measured by.
            if found and replicas in (1, count):
                label = way if replicas > 1 or count == 1 else f"{way} x1"
                for row in (0, 1):
                    _curve(grid[row, column], found, row, styles[way][0], label, replicas == 1)
        plural = "s" if count > 1 else ""
        grid[0, column].set_title(f"{count} replica{plural}")
        grid[0, column].set_xlabel("optimizer steps")
        grid[1, column].set_xlabel("seconds of training")
    for row in (0, 1):
        grid[row, 0].set_ylabel("training loss")
    _legend(figure, *grid[0])
    return figure


Curve = tuple[np.ndarray, np.ndarray, np.ndarray]


def _curves(cell: Cell) -> list[Curve]:
    """Return (step, seconds since the start of training, smoothed loss) of every repeat."""
    found = []
    for trial in cell.done:
        table = read_steps(trial.folder)
        if table["step"]:
            found.append(smooth(table["step"], np.cumsum(table["seconds"]), table["loss"]))
    return found


def smooth(step: Sequence[float], seconds: Sequence[float], loss: Sequence[float]) -> Curve:
    """Return a running mean of the loss over a twentieth of the steps, at most 300 points."""
    width = max(1, len(loss) // 20)
    sums = np.cumsum(np.insert(np.asarray(loss, float), 0, 0.0))
    last = np.arange(1, len(loss) + 1)
    first = np.maximum(0, last - width)
    mean = (sums[last] - sums[first]) / (last - first)
    keep = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), MAX_POINTS)).astype(int))
    return np.asarray(step)[keep], np.asarray(seconds)[keep], mean[keep]


def _curve(
    axes: Any, found: Sequence[Curve], column: int, colour: str, label: str, is_reference: bool
) -> None:
    for number, curve in enumerate(found):
        axes.plot(
            curve[column], curve[2], color=colour, linewidth=1.1, alpha=0.75,
            linestyle=":" if is_reference else "-", label=label if number == 0 else None,
        )  # fmt: skip


def _score_figure(family: Family, styles: Styles) -> Figure | None:
    regions = _regions(family)
    if not regions:
        return None
    figure, panels = _panels(2, len(regions), 5.4)
    grid = np.array(panels, dtype=object).reshape(2, len(regions))
    counts = sorted({cell.num_replicas for cell in family.cells if cell.results})
    for column, region in enumerate(regions):
        _score_panel(grid[0, column], family, region, "dice", styles)
        _score_panel(grid[1, column], family, region, "iou", styles)
        grid[0, column].set_title(region)
        for row in (0, 1):
            grid[row, column].set_xticks(counts)
            grid[row, column].set_xlabel("replicas")
    grid[0, 0].set_ylabel("Dice, mean over cases")
    grid[1, 0].set_ylabel("IoU, mean over cases")
    _legend(figure, grid[0, 0])
    return figure


def _score_panel(axes: Any, family: Family, region: str, score: str, styles: Styles) -> None:
    cells = [cell for cell in family.cells if cell.results]
    shift = _shifts(cells)
    for cell in cells:
        found = cell.dice(region) if score == "dice" else cell.iou(region)
        if found is None:
            continue
        colour, marker = styles[cell.way]
        x = cell.num_replicas + shift[cell.way]
        if cell.is_baseline:
            axes.axhspan(found.low, found.high, color=colour, alpha=0.12, linewidth=0, zorder=0)
        axes.plot(
            [x] * len(found.values), found.values, linestyle="none", marker=marker, markersize=5,
            markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.1,
        )  # fmt: skip
        first = cell.num_replicas == min(one.num_replicas for one in cells if one.way == cell.way)
        axes.plot(
            x, found.median, linestyle="none", marker=marker, markersize=7, color=colour,
            label=cell.way if first else None,
        )  # fmt: skip


def _case_boxes(family: Family, styles: Styles) -> Figure | None:
    regions = _regions(family)
    cells = [cell for cell in family.cells if cell.results]
    values = {region: [case_dice(cell, region) for cell in cells] for region in regions}
    if not any(len(one) for rows in values.values() for one in rows):
        return None
    figure, panels = _panels(1, len(regions), _height(len(cells)) + 0.3, sharey=True)
    for axes, region in zip(panels, regions, strict=True):
        rows = values[region]
        boxes = axes.boxplot(
            rows, positions=range(len(cells)), orientation="horizontal", widths=0.6,
            patch_artist=True, medianprops={"color": "#000000", "linewidth": 1.4},
            flierprops={"marker": ".", "markersize": 4, "markeredgecolor": "#555555"},
        )  # fmt: skip
        for box, cell in zip(boxes["boxes"], cells, strict=True):
            box.set(facecolor=styles[cell.way][0], alpha=0.5)
        axes.set(title=region, xlabel="Dice of a case")
    _name_rows(panels[0], cells)
    return figure


def case_dice(cell: Cell, region: str) -> np.ndarray:
    """Return the Dice of every case of every repeat, from the counts."""
    parts = [np.zeros(0)]
    for trial in cell.done:
        table = read_cases(trial.folder)
        counts = [table[name] for name in ("true_positive", "false_positive", "false_negative")]
        rows = np.array(counts, float).T.reshape(-1, 3)
        parts.append(scores.dice(rows[np.array(table["region"], dtype=object) == region]))
    return np.concatenate(parts)


FIGURES: tuple[tuple[str, str, str, Callable[[Family, Styles], Figure | None]], ...] = (
    (
        "scaling",
        "Speed-up and efficiency",
        "Median with its 95 % interval, cut where it leaves the figure; a dot for every repeat; "
        "dashed: ideal. A line joins points of one backend only.",
        _scaling,
    ),
    (
        "throughput",
        "Images per second",
        "Bar: median. Dots: every repeat.",
        _throughput,
    ),
    (
        "loss",
        "Training loss over steps and over time",
        "A line for every repeat, a running mean over a twentieth of the steps. Dotted: one "
        "replica, for comparison. Time is that of training alone and contains the first step.",
        _loss,
    ),
    (
        "scores",
        "Dice and IoU against replicas",
        "Hollow: every repeat. Filled: their median. Band: range of the baseline's repeats.",
        _score_figure,
    ),
    (
        "cases",
        "Dice of every case",
        "Cases of all repeats. Box: quartiles and median; whiskers: 1.5 times the quartile range.",
        _case_boxes,
    ),
    (
        "phases",
        "Where the time goes",
        "Wall clock of the phases of a run. The first step contains tracing and compilation.",
        _phases,
    ),
    (
        "memory",
        "Peak memory",
        "Bar: median. Dots: every repeat.",
        _memory,
    ),
)


def _regions(family: Family) -> list[str]:
    return list(dict.fromkeys(region for cell in family.cells for region in cell.regions))


def _some(counts: Sequence[int]) -> list[int]:
    """Return at most four of the numbers of replicas, the smallest and the largest included."""
    if len(counts) <= MAX_COUNTS:
        return list(counts)
    places = np.linspace(0, len(counts) - 1, MAX_COUNTS).round().astype(int)
    return [counts[at] for at in places]


def _panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def _height(num_cells: int) -> float:
    return 0.9 + 0.34 * num_cells


def _name_rows(axes: Any, cells: Sequence[Cell]) -> None:
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells])
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, min_n_ticks=3))


def _legend(figure: Figure, *panels: Any) -> None:
    """Put one legend for all panels above them."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = min(len(handles), 6)
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns)


def _svg(figure: Figure, name: str, title: str) -> str:
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=no_metadata)
    return inline(file.getvalue(), name, title)


def inline(svg: str, name: str, title: str) -> str:
    """Return an SVG file as an element of a page: no prolog, own ids, and a name to read aloud."""
    svg = svg[svg.index("<svg") :]
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)

    def own(found: re.Match[str]) -> str:
        return f"{found[1]}#{name}-{found[2]}" if found[2] in ids else found[0]

    svg = re.sub(r'(url\(|href=")#([^)"]+)', own, svg)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
