"""The style of figures: colours, markers, panels, axes and SVG. Needs matplotlib."""

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Summary
from tfunet.bench.records.sweep_record import TrialRecord

# Okabe and Ito 2008: colour-blind people can tell these colours apart. Yellow is left out, because
# it is too pale on white. Common ways have the same colour and marker in every report.
STYLES = {
    "single": ("#4d4d4d", "o"),
    "mirrored": ("#0072B2", "s"),
    "multiworker": ("#009E73", "^"),
    "horovod": ("#D55E00", "D"),
}
OTHER_COLOURS = ("#CC79A7", "#56B4E9", "#E69F00", "#000000")
OTHER_MARKERS = ("v", "P", "X", "*", "<", "p", ">")
# Factor by which dots of repeats are shifted to the right of their estimate.
BESIDE = 2**0.035
# A box is drawn for so many values or more.
FEWEST_OF_BOX = 10
# Labels of what a caption explains; legends leave them out.
BAND, BOX, FEW, INTERVAL, LINE, REFERENCE = "_band", "_box", "_few", "_interval", "_line", "_one"
# Share of an axis beyond its values.
MARGIN = 0.05
# Panels beside each other, and inches of a letter of their titles.
MOST_COLUMNS = 4
TITLE_LETTER = 0.1
WIDTH = 9.0  # Inches: the size on a page of 900 pixels.
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
    # A name may hold dollar signs.
    "text.parse_math": False,
    # Text stays text: it can be searched, copied and read aloud.
    "svg.fonttype": "none",
}

Styles = dict[str, tuple[str, str]]
# Sentences; one in a pair is said only of a figure that has what is labelled with the second word.
Caption = str | tuple[str | tuple[str, str], ...]


def styles_of(summary: Summary) -> Styles:
    """Return colour and marker of every way of training; up to 32 ways differ."""
    ways = list(dict.fromkeys(way for family in summary.families for way in family.ways))
    others = [way for way in ways if way not in STYLES]
    extra = {
        way: (OTHER_COLOURS[at % len(OTHER_COLOURS)], OTHER_MARKERS[at % len(OTHER_MARKERS)])
        for at, way in enumerate(others)
    }
    return {**STYLES, **extra}


def shifts(cells: Sequence[Cell]) -> dict[str, float]:
    """Return a factor near 1 for each way, to shift its points so that equal values are visible."""
    ways = list(dict.fromkeys(cell.way for cell in cells))
    middle = (len(ways) - 1) / 2
    return {way: 2 ** ((at - middle) * 0.09) for at, way in enumerate(ways)}


def replica_axis(axes: Any, counts: Sequence[int], label: str) -> None:
    """Show numbers of replicas on a logarithmic axis, with a tick for each."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] * 0.78, counts[-1] * 1.28)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel(label)


def make_panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Any]]:
    """Return a figure as wide as the page, `height` inches high, and its axes row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def make_grid(
    titles: Sequence[str],
    row_height: float,
    *,
    most: int = MOST_COLUMNS,
    together: int = 1,
    **options: Any,
) -> tuple[Figure, list[list[Any]]]:
    """Return a figure with a panel under each title, and the axes of each row.

    A row has at most `most` panels, and fewer where titles are long. `together` panels that follow
    one another stand in one row, where it has room for them.
    """
    longest = max(map(len, titles))
    columns = max(1, min(len(titles), most, int(WIDTH / (TITLE_LETTER * longest + 0.5))))
    columns -= columns % together if columns > together else 0
    rows = -(-len(titles) // columns)
    figure, panels = make_panels(rows, columns, row_height * rows, **options)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title)
    for axes in panels[len(titles) :]:
        axes.remove()
    del panels[len(titles) :]
    return figure, [panels[first : first + columns] for first in range(0, len(panels), columns)]


def repeat_dots(
    axes: Any,
    x: Sequence[float],
    y: Sequence[float],
    colour: str,
    trials: Sequence[TrialRecord] = (),
    *,
    face: str = "white",
    marker: str = "o",
    size: float = 3.0,
) -> None:
    """Draw a small hollow mark for each repeat; with `trials`, it links to the trial's row."""
    style = {"facecolors": face, "edgecolors": colour, "linewidths": 0.9, "zorder": 4}
    marks = axes.scatter(x, y, s=size**2, marker=marker, **style)
    if trials:
        marks.set_urls([f"#trial-{trial.id}" for trial in trials])


def draw_boxes(axes: Any, rows: Sequence[Any], colours: Sequence[str]) -> None:
    """Draw a box for the values of each row; without a colour, it keeps the default.

    Few values are drawn as dots, with a line at their median: their quartiles say nothing.
    """
    few = [at for at, row in enumerate(rows) if 0 < len(row) < FEWEST_OF_BOX]
    for at in few:
        colour = colours[at] if at < len(colours) else "#555555"
        axes.plot(rows[at], [at] * len(rows[at]), "o", color=colour, alpha=0.7, markersize=5)
        median = float(np.median(rows[at]))
        axes.plot([median] * 2, [at - 0.3, at + 0.3], color="#000000", linewidth=1.4, label=FEW)
    boxes = axes.boxplot(
        [[] if at in few else row for at, row in enumerate(rows)],
        positions=range(len(rows)),
        orientation="horizontal",
        widths=0.6,
        patch_artist=True,
        medianprops={"color": "#000000", "linewidth": 1.4},
        flierprops={"marker": ".", "markersize": 4, "markeredgecolor": "#555555"},
    )
    for box, colour in zip(boxes["boxes"], colours, strict=False):
        box.set(facecolor=colour, alpha=0.5)
    for at, row in enumerate(rows):
        if len(row) >= FEWEST_OF_BOX:
            boxes["boxes"][at].set_label(BOX)
    values = [value for row in rows for value in row]
    if values and min(values) == max(values):
        # Matplotlib would choose an axis around the value, with a negative Dice on it.
        low, high = min(0.0, *values), max(1.0, *values)
        axes.set_xlim(low - MARGIN * (high - low), high + MARGIN * (high - low))


def bars_height(num_cells: int) -> float:
    """Return the height in inches of a figure with a bar for each cell."""
    return 0.9 + 0.34 * num_cells


def name_rows(axes: Any, cells: Sequence[Cell], num_ticks: int = 7) -> None:
    """Label a row for each cell, the first one on top."""
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells])
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=num_ticks, min_n_ticks=3))


def legend_above(figure: Figure, *panels: Any) -> None:
    """Put a common legend above the panels."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    # The longest name must fit into every column.
    columns = max(1, min(len(handles), 110 // (max(map(len, handles)) + 7)))
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns)


def said_of(figure: Figure, caption: Caption) -> str:
    """Return the sentences of a caption on what the figure has."""
    parts = [caption] if isinstance(caption, str) else caption
    labels = {artist.get_label() for artist in figure.findobj()}
    return " ".join(
        part if isinstance(part, str) else part[0]
        for part in parts
        if isinstance(part, str) or part[1] in labels
    )


def to_svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an SVG element; `name` makes its ids unique in a page."""
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=no_metadata)
    return inline(file.getvalue(), name, title)


def inline(svg: str, name: str, title: str) -> str:
    """Return an SVG file as an element of a page: no prolog, unique ids, a name for readers."""
    svg = svg[svg.index("<svg") :]
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)

    def renamed(match: re.Match[str]) -> str:
        return f"{match[1]}#{name}-{match[2]}" if match[2] in ids else match[0]

    svg = re.sub(r'(url\(|href=")#([^)"]+)', renamed, svg)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
