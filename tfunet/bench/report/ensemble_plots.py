"""Figures of an ensemble. Needs matplotlib."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tfunet.bench.analysis.ensemble import Ensemble, ScoredTrial, is_number
from tfunet.bench.report import plot_style
from tfunet.config.keys import show

COLOUR = "#0072B2"
MOST_DOTS = 1000
MOST_NAMES = 12  # More values of a setting without numbers have no names.


def against_settings(ensemble: Ensemble, most: int) -> Figure:
    """Return the scores against each setting, in at most so many panels."""
    columns = ensemble.columns[:most]
    shown = _spread(ensemble.scored, MOST_DOTS)
    scores = [point.score for point in shown]
    trials = [point.trial for point in shown]
    rows = math.ceil(len(columns) / 3)
    figure, panels = plot_style.make_panels(rows, 3, 2.6 * rows, sharey=True)
    for axes in panels[len(columns) :]:
        axes.set_visible(False)
    for axes, column in zip(panels, columns, strict=False):
        places, names, is_log = _places([point.values[column] for point in shown])
        plot_style.repeat_dots(axes, places, scores, COLOUR, trials)
        plot_style.repeat_dots(axes, places[:1], scores[:1], COLOUR, face=COLOUR, size=5)
        if names:
            axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        elif is_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(column)
    for axes in panels[::3]:
        axes.set_ylabel(ensemble.objective)
    return figure


def parallel_coordinates(ensemble: Ensemble, most: int) -> Figure:
    """Return a line through the settings and the score of each trial."""
    shown = _spread(ensemble.scored, most)
    figure, (axes,) = plot_style.make_panels(1, 1, 4.2)
    names = [*ensemble.columns, ensemble.objective]
    lines: list[list[float]] = [[] for _ in shown]
    for at, name in enumerate(names):
        values = [point.values[name] if at < len(names) - 1 else point.score for point in shown]
        heights, ticks = _heights(values)
        for line, height in zip(lines, heights, strict=True):
            line.append(height)
        axes.axvline(at, color="#888888", linewidth=0.8)
        for height, text in ticks:
            axes.annotate(
                text, (at, height), xytext=(3, 2), textcoords="offset points", fontsize=7.5
            )
    shades = colormaps["cividis"]
    # The best last, so that they lie above the others.
    for rank in reversed(range(len(shown))):
        share = rank / max(1, len(shown) - 1)
        axes.plot(
            range(len(names)), lines[rank], color=shades(share), alpha=0.35 + 0.6 * (1 - share)
        )
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(names) - 0.6)
    axes.grid(visible=False)
    return figure


def importance_bars(importance: dict[str, float]) -> Figure:
    """Return a bar for each setting, the most important one on top."""
    figure, (axes,) = plot_style.make_panels(1, 1, plot_style.bars_height(len(importance)))
    axes.barh(range(len(importance)), list(importance.values()), color=COLOUR)
    axes.set_yticks(range(len(importance)), list(importance))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of the importance")
    return figure


def _spread(scored: Sequence[ScoredTrial], most: int) -> Sequence[ScoredTrial]:
    """Return the better half of `most`, and others evenly over the rest."""
    if len(scored) <= most:
        return scored
    first = most // 2
    step = (len(scored) - first) / (most - first)
    return [*scored[:first], *(scored[first + int(at * step)] for at in range(most - first))]


def _places(values: Sequence[Any]) -> tuple[list[float], list[str], bool]:
    """Return where values lie on an axis; the names there, if they are no numbers; if it is log."""
    if all(is_number(value) for value in values):
        return [float(value) for value in values], [], _is_log(values)
    names = sorted({show(value) for value in values})
    places = [float(names.index(show(value))) for value in values]
    return places, names if len(names) <= MOST_NAMES else [], False


def _is_log(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > 50


def _heights(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return heights from 0 to 1, and marks with their texts."""
    places, names, is_log = _places(values)
    scaled = [math.log(place) for place in places] if is_log else places
    low, high = min(scaled), max(scaled)
    heights = [(place - low) / (high - low) if high > low else 0.5 for place in scaled]
    if names:
        return heights, [
            (at / max(1, len(names) - 1) if len(names) > 1 else 0.5, name)
            for at, name in enumerate(names)
        ]
    ends = [(0.0, min(places)), (1.0, max(places))] if high > low else [(0.5, places[0])]
    return heights, [(height, f"{place:.3g}") for height, place in ends]
