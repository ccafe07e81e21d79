"""Draws the plans of large-model support, and their cost. Needs matplotlib."""

import itertools
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tfunet.bench.analysis.swapping import BudgetComparison, device_bytes, resident_bytes
from tfunet.bench.report import plot_style
from tfunet.config.amount import MIB

KEPT = "#4d4d4d"
# Title and caption of each figure.
CAPTIONS = {
    "memory": (
        "Memory over the step",
        "Plans of the first run of each backend. Times of ops are measured before each plan is "
        "made, so the same step can have different lengths.",
    ),
    "predicted": (
        "Predicted and measured",
        "Time: ratio of speeds with its 95 % interval, cut at the edge of the figure, and a dot "
        "for every repeat. Memory: medians.",
    ),
}
PREDICTED = {"color": "#000000", "marker": "|", "markersize": 13, "markeredgewidth": 2}


def memory_curves(comparisons: Sequence[BudgetComparison], styles: plot_style.Styles) -> Figure:
    """Draw memory over a step, planned and all kept: a panel for each batch and budget, by way."""

    def key(comparison: BudgetComparison) -> tuple[int, str]:
        return comparison.replica_batch, comparison.budget

    groups = [
        (at, list(group)) for at, group in itertools.groupby(sorted(comparisons, key=key), key)
    ]
    figure, panels = plot_style.make_panels(len(groups), 1, 0.6 + 2.7 * len(groups), sharex=True)
    for axes, ((batch, budget), group) in zip(panels, groups, strict=True):
        # The first of each way, by number of replicas.
        ways = {comparison.way: comparison for comparison in reversed(group)}
        for at, (way, comparison) in enumerate(ways.items()):
            plan, (colour, marker) = comparison.plans[0], styles[way]
            # Equal curves lie inside each other.
            width = 1.1 + 0.9 * (len(ways) - 1 - at)
            if at == 0:
                kept = plan.unlimited_curve, plan.unlimited_step_seconds
                _curve(axes, *kept, color=KEPT, linestyle="--", label="everything kept")
                axes.axhline(
                    plan.budget_bytes / MIB, color="#000000", linestyle=":", label="a step may use"
                )
            places = (0.02 + 0.1 * at / len(ways), 0.1)
            _curve(
                axes,
                plan.curve,
                plan.step_seconds,
                color=colour,
                linewidth=width,
                marker=marker,
                markevery=places,
                markersize=6,
                label=f"planned, {way}",
            )
        axes.set_title(f"batch {batch} a replica, {budget}")
        axes.set(ylabel="memory of a step (MiB)", xlim=(0, 100))
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("share of the step, by predicted time (%)")
    plot_style.legend_above(figure, *panels)
    return figure


def _curve(axes: Any, curve: Sequence[Sequence[float]], seconds: float, **line: Any) -> None:
    if not seconds:  # A plan that changes nothing is made without measured times.
        curve = [(at, point[1]) for at, point in enumerate(curve)]
        seconds = max(1, len(curve) - 1)
    times = [100 * point[0] / seconds for point in curve]
    axes.plot(times, [point[1] / MIB for point in curve], drawstyle="steps-post", **line)


def predicted_and_measured(
    comparisons: Sequence[BudgetComparison], styles: plot_style.Styles
) -> Figure:
    """Draw time and memory with a budget relative to those without, predicted and measured."""
    figure, (left, right) = plot_style.make_panels(
        1, 2, plot_style.bars_height(len(comparisons)) + 0.5, sharey=True
    )
    left.axvline(1, color="#888888", linestyle="--", linewidth=1, zorder=1)
    right.axvline(0, color="#888888", linestyle="--", linewidth=1, zorder=1)
    for at, comparison in enumerate(comparisons):
        _time(left, at, comparison, styles)
        _memory(right, at, comparison, styles)
    # Intervals of a few repeats can be so wide that they would flatten everything else.
    extent = [1.0]
    for comparison in comparisons:
        extent += [*comparison.predicted_ratio.values, *comparison.ratio_repeats]
    room = 0.15 * (max(extent) - min(extent)) or 0.1
    left.set_xlim(min(extent) - room, max(extent) + room)
    left.set(xlabel="times as fast as without", title="Time")
    right.set(xlabel="peak memory less that without (MiB)", title="Memory")
    left.set_yticks(range(len(comparisons)), [comparison.label for comparison in comparisons])
    left.set_ylim(len(comparisons) - 0.4, -0.6)
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
    plot_style.legend_above(figure, left, right)
    return figure


def _time(axes: Any, at: int, comparison: BudgetComparison, styles: plot_style.Styles) -> None:
    axes.plot(comparison.predicted_ratio.median, at, linestyle="none", zorder=4, **PREDICTED)
    if (ratio := comparison.ratio) is None:
        return
    colour, marker = styles[comparison.way]
    ends = np.nan_to_num([[ratio.value - ratio.low], [ratio.high - ratio.value]])
    axes.errorbar([ratio.value], [at], xerr=ends, color=colour, marker=marker, capsize=3, zorder=3)
    plot_style.repeat_dots(
        axes, comparison.ratio_repeats, [at + 0.22] * len(comparison.ratio_repeats), colour
    )


def _memory(axes: Any, at: int, comparison: BudgetComparison, styles: plot_style.Styles) -> None:
    colour, marker = styles[comparison.way]
    label = "predicted (of memory: the device's)" if at == 0 else None
    saved = comparison.saved_bytes.median / MIB
    axes.plot(-saved, at, linestyle="none", label=label, zorder=4, **PREDICTED)
    for bytes_of, face, name in (
        (resident_bytes, colour, "measured, host memory of the processes"),
        (device_bytes, "white", "measured, device memory"),
    ):
        upper, lower = bytes_of(comparison.upper), bytes_of(comparison.lower)
        if upper and lower:
            axes.plot(
                (median(upper) - median(lower)) / MIB,
                at,
                linestyle="none",
                marker=marker,
                color=colour,
                markerfacecolor=face,
                label=name,
            )
