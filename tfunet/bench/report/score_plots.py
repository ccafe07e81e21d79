"""Draws loss, Dice and IoU. Needs matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.case_metric_means import by_case
from tfunet.bench.analysis.confidence_intervals import Spread
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.records.run_tables import read_confusion, read_steps
from tfunet.bench.report import plot_style
from tfunet.data.confusion_figure import draw_confusion

MAX_COUNTS = 4
MAX_POINTS = 300
# With fewer regions, panels are larger.
FEW_REGIONS = 4


def loss_curves(family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw the training loss over steps and over time, a column for each number of replicas."""
    curves = {(cell.way, cell.num_replicas): _curves(cell) for cell in family.cells if cell.results}
    counts = _some(
        sorted({count for (_, count), cell_curves in curves.items() if cell_curves and count > 1})
    )
    counts = counts or [1]
    if not any(curves.values()):
        return None
    figure, panels = plot_style.make_panels(2, len(counts), 5.6, sharey=True)
    grid = np.array(panels, dtype=object).reshape(2, len(counts))
    for column, count in enumerate(counts):
        # Every column also has the curves of one replica, the baseline.
        shown = [key for key, cell_curves in curves.items() if cell_curves and key[1] in (1, count)]
        for at, (way, replicas) in enumerate(shown):
            is_reference = replicas < count
            # Curves should be equal over steps: different widths keep them all visible.
            widths = (1.1 if is_reference else 1.1 + 1.5 * (len(shown) - 1 - at), 1.1)
            label = f"{way} x1" if is_reference else way
            for row, width in enumerate(widths):
                _curve(
                    grid[row, column],
                    curves[way, replicas],
                    row,
                    color=styles[way][0],
                    linewidth=width,
                    label=label,
                    linestyle=":" if is_reference else "-",
                )
            if is_reference:
                grid[0, column].plot([], [], label=plot_style.REFERENCE)
        grid[0, column].set_title(f"{count} replica{'s' if count > 1 else ''}")
        grid[0, column].set_xlabel("optimizer steps")
        grid[1, column].set_xlabel("seconds of training")
    for row in (0, 1):
        grid[row, 0].set_ylabel("training loss")
    plot_style.legend_above(figure, *grid[1])
    return figure


Curve = tuple[np.ndarray, np.ndarray, np.ndarray]


def _curves(cell: Cell) -> list[Curve]:
    """Return (step, seconds since the start of training, smoothed loss) of every repeat."""
    curves = []
    for trial in cell.done:
        table = read_steps(trial.folder)
        if table["step"]:
            curves.append(smooth(table["step"], np.cumsum(table["seconds"]), table["loss"]))
    return curves


def smooth(step: ArrayLike, seconds: ArrayLike, loss: Sequence[float]) -> Curve:
    """Return a running mean of the loss over a twentieth of the steps, in at most 300 points."""
    width = max(1, len(loss) // 20)
    # A loss that is not finite has no sum, and ends its curve.
    losses = np.asarray(loss, float)
    losses = np.where(np.isfinite(losses), losses, np.nan)
    sums = np.cumsum(np.insert(losses, 0, 0.0))
    last = np.arange(1, len(loss) + 1)
    first = np.maximum(0, last - width)
    mean = (sums[last] - sums[first]) / (last - first)
    keep = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), MAX_POINTS)).astype(int))
    return np.asarray(step)[keep], np.asarray(seconds)[keep], mean[keep]


def _curve(axes: Any, curves: Sequence[Curve], column: int, label: str, **line: Any) -> None:
    for number, curve in enumerate(curves):
        axes.plot(curve[column], curve[2], label=label if number == 0 else None, **line)


def scores_by_replicas(family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw Dice and IoU of every region, or scores of arrays, with a mark for every repeat."""
    regions = _regions(family)
    cells = [cell for cell in family.cells if cell.results]
    of_arrays = dict.fromkeys(name for cell in cells for name in cell.scores)
    if not regions and not of_arrays:
        return None
    counts = sorted({cell.num_replicas for cell in cells})
    if len(cells) < 2:
        return None
    panels_of = [(score, region) for region in regions for score in ("Dice", "IoU")]
    panels_of += [(name, "") for name in of_arrays]
    titles = [", ".join(filter(None, panel)) for panel in panels_of]
    most = 2 if len(regions) < FEW_REGIONS else 4
    figure, rows = plot_style.make_grid(titles, 2.9, most=most, together=2)
    panels = [axes for row in rows for axes in row]
    shift = plot_style.shifts(cells)
    # One number of replicas is no axis: ways stand beside each other.
    places = {
        cell.label: cell.num_replicas * shift[cell.way] if len(counts) > 1 else float(at)
        for at, cell in enumerate(cells)
    }
    for axes, (score, region) in zip(panels, panels_of, strict=True):
        _score_panel(axes, cells, places, region, score, styles)
        if len(counts) > 1:
            plot_style.replica_axis(axes, counts, "replicas")
        else:
            axes.set_xticks(list(places.values()), list(places), rotation=20, ha="right")
            axes.set_xlim(-0.5, len(cells) - 0.5)
    for row in rows:
        row[0].set_ylabel("mean over cases" if regions else "over all samples")
    plot_style.legend_above(figure, panels[0])
    return figure


def _score_panel(
    axes: Any,
    cells: Sequence[Cell],
    places: Mapping[str, float],
    region: str,
    score: str,
    styles: plot_style.Styles,
) -> None:
    for cell in cells:
        spread = _spread_of(cell, region, score)
        if spread is None:
            continue
        colour, marker = styles[cell.way]
        x = places[cell.label]
        if cell.is_baseline and spread.low < spread.high:
            axes.axhspan(
                spread.low,
                spread.high,
                color=colour,
                alpha=0.2,
                linewidth=0,
                zorder=0,
                label=plot_style.BAND,
            )
        trials = cell.done if len(spread.values) == len(cell.done) else ()
        plot_style.repeat_dots(
            axes,
            [x] * len(spread.values),
            spread.values,
            colour,
            trials,
            face="none",
            marker=marker,
            size=5,
        )
        first = cell.num_replicas == min(
            other_cell.num_replicas for other_cell in cells if other_cell.way == cell.way
        )
        axes.plot(
            x,
            spread.median,
            linestyle="none",
            marker=marker,
            markersize=7,
            color=colour,
            label=cell.way if first else None,
        )


def _spread_of(cell: Cell, region: str, score: str) -> Spread | None:
    if score in cell.scores:
        return cell.score(score)
    return cell.dice(region) if score == "Dice" else cell.iou(region)


def case_boxes(family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw the spread of Dice over cases, a panel for each region."""
    return _boxes(family, styles, case_dice, "Dice of a case")


def metric_boxes(metric: str, family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw the spread of a metric of whole cases, a panel for each region."""

    def values(cell: Cell, region: str) -> np.ndarray:
        runs = [by_case(trial.folder, metric, region) for trial in cell.done]
        return np.array([value for run in runs for value in run.values()])

    return _boxes(family, styles, values, f"{metric} of a case")


def _boxes(
    family: Family,
    styles: plot_style.Styles,
    values_of: Callable[[Cell, str], np.ndarray],
    label: str,
) -> Figure | None:
    regions = _regions(family)
    cells = [cell for cell in family.cells if cell.results]
    values = {region: [values_of(cell, region) for cell in cells] for region in regions}
    if not any(len(row) for rows in values.values() for row in rows):
        return None
    row_height = plot_style.bars_height(len(cells)) + 0.3
    figure, rows = plot_style.make_grid(regions, row_height, sharey=True)
    panels = [axes for row in rows for axes in row]
    for axes, region in zip(panels, regions, strict=True):
        plot_style.draw_boxes(axes, values[region], [styles[cell.way][0] for cell in cells])
        axes.set_xlabel(label)
        plot_style.name_rows(axes, cells, 7 if len(rows[0]) < 3 else 4)
        axes.ticklabel_format(axis="x", scilimits=(-2, 4))  # 0.00014 of four panels would overlap.
    return figure


def confusion_matrix(family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw the confusion matrix of a run."""
    runs = [trial for cell in family.cells for trial in cell.done]
    found = read_confusion(runs[0].folder) if runs else None
    return None if found is None else draw_confusion(found[0], np.array(found[1]))


def case_dice(cell: Cell, region: str) -> np.ndarray:
    """Return the Dice of every case of every repeat."""
    runs = [dice_by_case(trial.folder) for trial in cell.done]
    return np.array([case[region] for run in runs for case in run.values() if region in case])


def _regions(family: Family) -> list[str]:
    return list(dict.fromkeys(region for cell in family.cells for region in cell.regions))


def _some(counts: Sequence[int]) -> list[int]:
    """Return at most four of the numbers of replicas, including the smallest and the largest."""
    if len(counts) <= MAX_COUNTS:
        return list(counts)
    places = np.linspace(0, len(counts) - 1, MAX_COUNTS).round().astype(int)
    return [counts[at] for at in places]
