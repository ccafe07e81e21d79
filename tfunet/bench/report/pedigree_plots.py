"""Draws the pedigree of models, and the best score over time. Needs matplotlib."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfunet.bench.analysis.populations import Curve, Population
from tfunet.bench.report import plot_style
from tfunet.bench.report.plots import DrawnFigure, drawn
from tfunet.population.pedigree import arrows, num_rounds, origins

# Nobody looks at more.
MAX_PEDIGREES = 8
COLOURS = ("#4d4d4d", "#0072B2", "#D55E00", "#009E73", *plot_style.OTHER_COLOURS)


def population_drawings(populations: Sequence[Population]) -> list[DrawnFigure]:
    """Return the figures of a sweep with tournaments."""
    drawings = []
    curves = [(population, population.curve()) for population in populations]
    if any(curve for _, curve in curves):
        drawings.append(
            drawn(
                "population-scores",
                "Best Dice over time and device-hours",
                "The best evaluation so far of all runs of a population, as if they ran at the "
                "same time. Time is that of steps and rounds, without waiting for others. "
                "Device-hours are hours times the devices of all trainers. One line a population.",
                lambda: _best_scores(curves),
            )
        )
    pedigrees = [population for population in populations if any(population.pedigree.values())]
    for number, population in enumerate(pedigrees[:MAX_PEDIGREES], 1):
        drawings.append(
            drawn(
                f"pedigree-{number}",
                f"Pedigree: {population.label}, population {population.number}",
                "A row for each trainer, a dot for its model after each round, with the score of "
                "its own model before. Colour: the trainer that began the model. Thick lines: a "
                "model that was taken over. The learning rate, and other hyperparameters with "
                "their names, stand below a dot where they changed. Hollow: others were missing "
                "or late.",
                functools.partial(_pedigree, population),
            )
        )
    return drawings


def _best_scores(curves: Sequence[tuple[Population, Curve]]) -> Figure:
    figure, panels = plot_style.make_panels(1, 2, 3.6, sharey=True)
    labels = list(dict.fromkeys(population.label for population, _ in curves))
    seen = set()
    for population, curve in curves:
        if not curve:
            continue
        style = {
            "color": COLOURS[labels.index(population.label) % len(COLOURS)],
            "label": None if population.label in seen else population.label,
            "where": "post",
            "linewidth": 1.4,
        }
        seen.add(population.label)
        seconds, dice = zip(*curve, strict=True)
        panels[0].step(seconds, dice, **style)
        hours = [second * population.num_devices / 3600 for second in seconds]
        panels[1].step(hours, dice, **style)
        for axes, x in ((panels[0], seconds), (panels[1], hours)):
            axes.plot(x[:1], dice[:1], marker=".", color=style["color"])
    panels[0].set(xlabel="seconds", ylabel="best mean Dice so far")
    panels[1].set(xlabel="device-hours")
    for axes in panels:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    plot_style.legend_above(figure, panels[0])
    return figure


def _pedigree(population: Population) -> Figure:
    pedigree = population.pedigree
    last, begun_by = num_rounds(pedigree), origins(pedigree)

    def colour(round: int, trainer: int) -> str:
        return COLOURS[begun_by[round, trainer] % len(COLOURS)]

    figure, (axes,) = plot_style.make_panels(1, 1, 1.0 + 0.55 * len(pedigree))
    for round, giver, trainer in arrows(pedigree):
        is_taken = giver != trainer
        axes.plot(
            [round - 1, round],
            [giver, trainer],
            color=colour(round, trainer),
            linewidth=2.2 if is_taken else 0.9,
            zorder=2 if is_taken else 1,
        )
    with_text = last <= 20
    for trainer, rows in sorted(pedigree.items()):
        _dot(axes, 0, trainer, colour(0, trainer), is_hollow=False)
        rate = population.trainers[0].config.learning_rate
        others: Mapping[str, float] = population.first_values
        for row in rows:
            is_hollow = "missing or late" in row.reason
            _dot(axes, row.round, trainer, colour(row.round, trainer), is_hollow=is_hollow)
            if with_text:
                score = "none" if math.isnan(row.own_score) else f"{row.own_score:.3f}"
                _text(axes, row.round, trainer, score, 6)
                # It is a float32 in the record.
                changed = [] if math.isclose(row.learning_rate, rate, rel_tol=1e-6) else [""]
                changed += [
                    name for name, value in row.hyperparameters.items() if value != others.get(name)
                ]
                for line, name in enumerate(changed):
                    value = row.hyperparameters.get(name, row.learning_rate)
                    text = f"{name.rpartition('.')[2]} {value:.2g}".strip()
                    _text(axes, row.round, trainer, text, -13 - 8 * line)
            rate, others = row.learning_rate, row.hyperparameters
    axes.set_yticks(sorted(pedigree), [f"trainer {trainer}" for trainer in sorted(pedigree)])
    axes.set_ylim(len(pedigree) - 0.4, -0.6)
    axes.grid(visible=False)
    axes.set_xlim(-0.3, last + 0.4)
    axes.set_xticks(sorted({*range(0, last + 1, max(1, last // 10)), last}))
    axes.set_xlabel("round")
    return figure


def _dot(axes: Any, round: int, trainer: int, colour: str, *, is_hollow: bool) -> None:
    face = "white" if is_hollow else colour
    axes.plot(
        [round], [trainer], marker="o", markersize=6, color=colour, markerfacecolor=face, zorder=3
    )


def _text(axes: Any, round: int, trainer: int, text: str, above: int) -> None:
    axes.annotate(
        text,
        (round, trainer),
        xytext=(0, above),
        textcoords="offset points",
        ha="center",
        fontsize=7.5,
    )
