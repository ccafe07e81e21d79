"""Draws all values of a setting that varied on one axis. Needs matplotlib."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tfunet.bench.analysis.configuration_scores import SPEED, main_score, values_by_repeat
from tfunet.bench.analysis.configurations import OF_SPEED, changing_together, rankings
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report import plot_style
from tfunet.bench.report.number_text import score_name
from tfunet.config.keys import describe, show_setting

CAPTION = "A mark for every repeat of every trial with this value, whatever else varied."
# Numbers spread at least so far stand on a logarithmic axis.
LOG_FROM = 10.0
# Values nearer than this share of the axis stand at equal distances instead.
NEAREST = 0.04
MOST_TICKS = 8
# Names of more letters together would run into each other.
MOST_LETTERS = 100
NAMES = "names"
# Settings that say how families are made, not what a study varies.
NOT_VARIED = ("scaling",)


@dataclass(frozen=True, kw_only=True)
class SettingFigure:
    """What varied (several settings if they changed together), and what is drawn against it."""

    keys: tuple[str, ...]
    metric: str
    region: str

    @property
    def title(self) -> str:
        """What is drawn against what."""
        return f"{score_name(self.metric, self.region)} against {' and '.join(self.keys)}"


def setting_figures(families: Sequence[Family]) -> list[SettingFigure]:
    """Return a figure for each setting of which two or more values have numbers.

    Scores on other masks, such as of other data, are not drawn on one axis.
    """
    families = [family for family in families if any(cell.results for cell in family.cells)]
    rows = [
        {key: value for key, value in family.settings.items() if key not in NOT_VARIED}
        for family in families
    ]
    cells = [cell for family in families for cell in family.cells if cell.results]
    found, has_several = rankings(families)
    other_masks = {key for ranking in found for key in ranking.shared}
    is_comparable = bool(found) or not has_several
    figures = []
    for keys in changing_together(rows):
        is_of_speed = all(key.partition(".")[0] in OF_SPEED for key in keys)
        if not is_of_speed and (not is_comparable or other_masks & set(keys)):
            continue
        metric, region = (SPEED, "") if is_of_speed else main_score(cells)
        figure = SettingFigure(keys=tuple(keys), metric=metric, region=region)
        if len({label for label, *_ in _points(figure, families)}) > 1:
            figures.append(figure)
    return figures


def draw_setting(
    figure: SettingFigure, families: Sequence[Family], styles: plot_style.Styles
) -> Figure:
    """Draw a mark for each repeat, in the colour of its way; of numbers a line joins medians."""
    points = _points(figure, families)
    drawn, (axes,) = plot_style.make_panels(1, 1, 3.4)
    values = {label: settings for label, settings, *_ in points}
    places, axis = _places(figure.keys, values)
    span = max(places.values()) - min(places.values())
    ways = list(dict.fromkeys(way for _, _, way, _, _ in points))
    for number, way in enumerate(ways):
        colour, marker = styles[way]
        shift = (number - (len(ways) - 1) / 2) * 0.02 * span
        own = [(label, trial, value) for label, _, its, trial, value in points if its == way]
        x = [places[label] + shift for label, _, _ in own]
        y = [value for _, _, value in own]
        trials = [trial for _, trial, _ in own]
        plot_style.repeat_dots(axes, x, y, colour, trials, face="none", marker=marker, size=5)
        by_place = {at: [y for its, y in zip(x, y, strict=True) if its == at] for at in sorted(x)}
        axes.plot(
            list(by_place),
            [np.median(several) for several in by_place.values()],
            color=colour,
            marker=marker,
            markersize=7,
            linestyle="none" if axis == NAMES else "-",
            label=way,
            zorder=5,
        )
    is_number = axis != NAMES
    order = sorted(places, key=lambda label: places[label])
    some = np.unique(np.linspace(0, len(order) - 1, min(len(order), MOST_TICKS)).round())
    ticks = [order[int(at)] for at in (some if is_number else range(len(order)))]
    names = [_shown(values[label]) for label in ticks]
    is_long = sum(map(len, names)) > MOST_LETTERS
    axes.set_xticks(
        [places[label] for label in ticks],
        names,
        rotation=20 if is_long else 0,
        ha="right" if is_long else "center",
    )
    axes.set_xlim(min(places.values()) - 0.1 * span, max(places.values()) + 0.1 * span)
    along = "" if axis in (NAMES, "numbers") else f" ({axis})"
    axes.set(
        xlabel=" and ".join(figure.keys) + along, ylabel=score_name(figure.metric, figure.region)
    )
    plot_style.legend_above(drawn, axes)
    return drawn


Point = tuple[str, Mapping[str, Any], str, TrialRecord, float]


def _points(figure: SettingFigure, families: Sequence[Family]) -> list[Point]:
    """Return (value as a text, value, way, trial, score) of every repeat, each trial once."""
    points = {}
    for family in families:
        settings = {key: family.settings.get(key) for key in figure.keys}
        for cell in family.cells:
            values = values_by_repeat(cell, figure.metric, figure.region)
            for trial in cell.done:
                if trial.repeat in values:
                    point = (describe(settings), settings, cell.way, trial, values[trial.repeat])
                    points[trial.id] = point
    return list(points.values())


def _places(
    keys: Sequence[str], values: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, float], str]:
    """Return where each value stands on the axis, and what this is an axis of."""
    numbers = {
        label: float(settings[keys[0]])
        for label, settings in values.items()
        if len(keys) == 1
        and isinstance(settings[keys[0]], int | float)
        and not isinstance(settings[keys[0]], bool)
    }
    if len(numbers) < len(values):
        return {label: float(at) for at, label in enumerate(values)}, NAMES
    low, high = min(numbers.values()), max(numbers.values())
    places, axis = numbers, "numbers"
    if low > 0 and high / low >= LOG_FROM:
        axis = "logarithmic"
        places = {label: float(np.log10(number)) for label, number in numbers.items()}
    order = sorted(places.values())
    span = order[-1] - order[0]
    if min(right - left for left, right in itertools.pairwise(order)) < NEAREST * span:
        ranked = sorted(numbers, key=lambda label: numbers[label])
        places = {label: float(at) for at, label in enumerate(ranked)}
        axis = "at equal distances"
    return places, axis


def _shown(settings: Mapping[str, Any]) -> str:
    return "\n".join(show_setting(key, value) for key, value in settings.items())
