"""Draws the deviation of speed-ups from the ideal, also beside the published campaign.

Needs matplotlib.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.records.published_campaign import CampaignRun
from tfunet.bench.report import plot_style
from tfunet.bench.report.plots import FigureKind, speed_up_lines

DEVIATION = "(speed-up / ideal - 1), %"


def deviation(family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw the deviation of a family's speed-ups from the ideal, in per cent; None without any."""
    if not _scaled(family):
        return None
    figure, (axes,) = plot_style.make_panels(1, 1, 3.5)
    _deviations(axes, family, styles)
    _replica_axis(axes, family)
    plot_style.legend_above(figure, axes)
    return figure


def beside_campaign(
    family: Family, runs: Sequence[CampaignRun], styles: plot_style.Styles, name: str
) -> Figure:
    """Draw deviation and IoU of a family of the sweep `name`, and on the right the campaign's."""
    # Each row shares its scale, so that it can be compared at a glance.
    figure, panels = plot_style.make_panels(2, 2, 6.2, sharey="row")
    top, right, bottom, bottom_right = panels
    _deviations(top, family, styles, beside=[_percent(run) for run in runs])
    _ious(bottom, family, styles)
    for axes, value in ((right, _percent), (bottom_right, lambda run: run.iou)):
        for way in dict.fromkeys(run.way for run in runs):
            points = {run.num_gpus: value(run) for run in runs if run.way == way}
            known = {count: point for count, point in points.items() if point is not None}
            colour, marker = plot_style.STYLES[way]
            axes.plot(known.keys(), known.values(), color=colour, marker=marker, label=way)
    right.axhline(0, color="#888888", linestyle="--", linewidth=1, zorder=1)
    top.set(title=f"Deviation from the ideal: {name}", ylabel=DEVIATION)
    right.set_title("Deviation of the published campaign")
    bottom.set(title=f"IoU: {name}", ylabel="IoU, mean over regions and cases")
    bottom_right.set_title("IoU of the published campaign")
    counts = sorted({run.num_gpus for run in runs})
    for axes in (right, bottom_right):
        plot_style.replica_axis(axes, counts, "GPUs")
    for axes in (top, bottom):
        _replica_axis(axes, family)
    plot_style.legend_above(figure, *panels)
    return figure


def campaign_figure(runs: Sequence[CampaignRun], name: str) -> FigureKind:
    """Return the figure `beside_campaign` as `tfunet.bench.report.plots.draw_all` takes it."""

    def draw(family: Family, styles: plot_style.Styles) -> Figure:
        return beside_campaign(family, runs, styles, name)

    return (
        "campaign",
        "Beside the published campaign",
        "Left, this sweep: ratios with their 95 % interval, medians of IoU, a dot for every "
        "repeat. Right, the campaign: one run for each number of GPUs, so no intervals; its IoU "
        "is that of the last epoch, on images of which 94 % were in the training set.",
        draw,
    )


def _percent(run: CampaignRun) -> float:
    return 100 * (run.efficiency - 1)


def _scaled(family: Family) -> list[Cell]:
    cells = [cell for cell in family.cells if cell.speed_up is not None]
    return cells if any(cell.num_replicas > 1 for cell in cells) else []


def _deviations(
    axes: Any, family: Family, styles: plot_style.Styles, beside: Sequence[float] = ()
) -> None:
    """Draw a line for each way, on a scale that also holds the values `beside`."""
    axes.axhline(0, color="#888888", linestyle="--", linewidth=1, zorder=1)
    axes.set_ylabel(DEVIATION)
    shown = speed_up_lines(
        axes,
        _scaled(family),
        styles,
        lambda speed_up, cell: 100 * (speed_up / cell.num_replicas - 1),
        with_links=False,
    )
    shown += [0.0, *beside]
    margin = 0.15 * (max(shown) - min(shown)) or 1.0
    axes.set_ylim(min(shown) - margin, max(shown) + margin)


def _ious(axes: Any, family: Family, styles: plot_style.Styles) -> None:
    """Draw the mean IoU over regions: the median of the repeats, and a dot for each of them."""
    cells = [cell for cell in family.cells if cell.results]
    shift = plot_style.shifts(cells)
    for cell in cells:
        values = [fmean(result.iou.values()) for result in cell.results if result.iou]
        if values:
            colour, marker = styles[cell.way]
            x = cell.num_replicas * shift[cell.way]
            axes.plot(x, np.median(values), color=colour, marker=marker, markersize=7)
            plot_style.repeat_dots(axes, [x * plot_style.BESIDE] * len(values), values, colour)


def _replica_axis(axes: Any, family: Family) -> None:
    counts = sorted({cell.num_replicas for cell in family.cells if cell.results})
    plot_style.replica_axis(axes, counts, f"replicas ({family.scaling} scaling)")


DEVIATION_FIGURE: FigureKind = (
    "deviation",
    "Deviation from the ideal speed-up",
    "0 is ideal: n replicas are n times as fast. With its 95 % interval, cut at the edge of the "
    "figure, and a dot for every repeat.",
    deviation,
)
