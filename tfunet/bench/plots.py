"""Draws the figures of a report as SVG. Needs matplotlib; nothing is shown or written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from tfunet import scores
from tfunet.bench.collect import read_cases, read_steps
from tfunet.bench.comparison import PHASES, Cell, Family, Summary
from tfunet.bench.plot_style import (
    RC,
    Styles,
    bars_height,
    legend_above,
    make_panels,
    name_rows,
    replica_axis,
    shifts,
    styles_of,
    to_svg,
)

PHASE_COLOURS = ("#999999", "#E69F00", "#0072B2", "#009E73", "#CC79A7")
PHASE_HATCHES = ("", "//", "", "..", "xx")
# How far to the right of its median the dot of a repeat stands.
BESIDE = 2**0.035
MAX_COUNTS = 4
# A figure takes about half a second to draw, and nobody looks at hundreds.
MAX_FAMILIES = 8
MAX_POINTS = 300
GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure for the report: `svg` has no prolog, so that it can stand inside HTML."""

    name: str
    title: str
    caption: str
    svg: str


def draw_all(summary: Summary) -> list[Drawing]:
    """Return the figures for which the sweep has numbers, for the first families of cells."""
    drawings = []
    styles = styles_of(summary)
    for number, family in enumerate(summary.families[:MAX_FAMILIES], 1):
        suffix = f"-{number}" if len(summary.families) > 1 else ""
        for name, title, caption, draw in FIGURES:
            with rc_context({**RC, "svg.hashsalt": name + suffix}):
                figure = draw(family, styles)
                if figure is None:
                    continue
                heading = f"{title}: {family.title}" if family.title else title
                svg = to_svg(figure, name + suffix, heading)
            drawings.append(Drawing(name=name + suffix, title=heading, caption=caption, svg=svg))
    return drawings


def _scaling(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.speed_up is not None]
    if not any(cell.num_replicas > 1 for cell in cells):
        return None
    figure, (left, right) = make_panels(1, 2, 3.7)
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
        replica_axis(axes, counts, f"replicas ({family.scaling} scaling)")
    legend_above(figure, left)
    return figure


def _lines(
    axes: Any, cells: Sequence[Cell], styles: Styles, scale: Callable[[Cell], float]
) -> None:
    """Draw a line a way: medians with their intervals, and a dot for every repeat beside."""
    shift = shifts(cells)
    # The ideal shows too.
    tops = [1.0, *(cell.num_replicas * scale(cell) for cell in cells)]
    for way in dict.fromkeys(cell.way for cell in cells):
        colour, marker = styles[way]
        own = [cell for cell in cells if cell.way == way]
        x = np.array([cell.num_replicas * shift[way] for cell in own])
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
                [at * BESIDE] * len(values), values, linestyle="none", marker="o",
                markersize=3, markerfacecolor="white", markeredgecolor=colour,
                markeredgewidth=0.9, zorder=4,
            )  # fmt: skip
            tops += values
        tops += list(middle)
    # Intervals of two or three repeats are so wide that they would flatten everything else.
    axes.set_ylim(0.85 * min(tops), 1.12 * max(tops))


def _throughput(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.images_per_second is not None]
    if not cells:
        return None
    figure, (axes,) = make_panels(1, 1, bars_height(len(cells)))
    rates = [cell.images_per_second.values if cell.images_per_second else () for cell in cells]
    _bars(axes, cells, rates, styles, "{:.1f}")
    axes.set_xlabel("images per second, all replicas together (steady steps)")
    return figure


def _memory(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.resident_bytes is not None]
    if not cells:
        return None
    on_device = [cell for cell in cells if cell.device_bytes is not None]
    figure, panels = make_panels(1, 2 if on_device else 1, bars_height(len(cells)))
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
    name_rows(axes, cells)


def _phases(family: Family, styles: Styles) -> Figure | None:
    cells = [cell for cell in family.cells if cell.phases]
    if not cells:
        return None
    figure, (axes,) = make_panels(1, 1, bars_height(len(cells)) + 0.3)
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
    name_rows(axes, cells)
    legend_above(figure, axes)
    return figure


def _loss(family: Family, styles: Styles) -> Figure | None:
    curves = {(cell.way, cell.num_replicas): _curves(cell) for cell in family.cells if cell.results}
    counts = _some(sorted({count for (_, count), found in curves.items() if found and count > 1}))
    counts = counts or [1]
    if not any(curves.values()):
        return None
    figure, panels = make_panels(2, len(counts), 5.6, sharey=True)
    grid = np.array(panels, dtype=object).reshape(2, len(counts))
    for column, count in enumerate(counts):
        # One replica is in every column, as what the others are measured by.
        shown = [key for key, found in curves.items() if found and key[1] in (1, count)]
        for at, (way, replicas) in enumerate(shown):
            is_reference = replicas < count
            # Curves that are equal over steps, as they should be, lie inside each other.
            widths = (1.1 if is_reference else 1.1 + 1.5 * (len(shown) - 1 - at), 1.1)
            label = f"{way} x1" if is_reference else way
            for row, width in enumerate(widths):
                _curve(
                    grid[row, column], curves[way, replicas], row,
                    color=styles[way][0], linewidth=width, label=label,
                    linestyle=":" if is_reference else "-",
                )  # fmt: skip
        grid[0, column].set_title(f"{count} replica{'s' if count > 1 else ''}")
        grid[0, column].set_xlabel("optimizer steps")
        grid[1, column].set_xlabel("seconds of training")
    for row in (0, 1):
        grid[row, 0].set_ylabel("training loss")
    legend_above(figure, *grid[1])
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


def smooth(step: ArrayLike, seconds: ArrayLike, loss: Sequence[float]) -> Curve:
    """Return a running mean of the loss over a twentieth of the steps, at most 300 points."""
    width = max(1, len(loss) // 20)
    sums = np.cumsum(np.insert(np.asarray(loss, float), 0, 0.0))
    last = np.arange(1, len(loss) + 1)
    first = np.maximum(0, last - width)
    mean = (sums[last] - sums[first]) / (last - first)
    keep = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), MAX_POINTS)).astype(int))
    return np.asarray(step)[keep], np.asarray(seconds)[keep], mean[keep]


def _curve(axes: Any, found: Sequence[Curve], column: int, label: str, **line: Any) -> None:
    for number, curve in enumerate(found):
        axes.plot(curve[column], curve[2], label=label if number == 0 else None, **line)


def _score_figure(family: Family, styles: Styles) -> Figure | None:
    regions = _regions(family)
    if not regions:
        return None
    # One region: its scores side by side. Several: a column for each.
    rows, columns = (1, 2) if len(regions) == 1 else (2, len(regions))
    figure, panels = make_panels(rows, columns, 0.6 + 2.6 * rows)
    counts = sorted({cell.num_replicas for cell in family.cells if cell.results})
    places = [(score, region) for score in ("Dice", "IoU") for region in regions]
    for axes, (score, region) in zip(panels, places, strict=True):
        _score_panel(axes, family, region, score, styles)
        axes.set(title=f"{score}, {region}", ylabel="mean over cases")
        replica_axis(axes, counts, "replicas")
    legend_above(figure, panels[0])
    return figure


def _score_panel(axes: Any, family: Family, region: str, score: str, styles: Styles) -> None:
    cells = [cell for cell in family.cells if cell.results]
    shift = shifts(cells)
    for cell in cells:
        found = cell.dice(region) if score == "Dice" else cell.iou(region)
        if found is None:
            continue
        colour, marker = styles[cell.way]
        x = cell.num_replicas * shift[cell.way]
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
    figure, panels = make_panels(1, len(regions), bars_height(len(cells)) + 0.3, sharey=True)
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
    name_rows(panels[0], cells)
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
        "replica, for comparison. Over steps, equal curves lie inside each other. Time is that of "
        "training alone and contains the first step.",
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
