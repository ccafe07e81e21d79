"""Draws loss and the main score over epochs. Needs matplotlib."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.records.run_tables import number_or_nan, read_table
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report import plot_style
from tfunet.files.typed import whole

LOSSES = ("loss", "val_loss")


def epoch_curves(family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw losses and the main score over epochs, a line a repeat with the most replicas."""
    cells = family.largest_cells
    names, title = _score_columns(cells)
    curves = {
        cell.label: [_curves(trial, names) for trial in cell.done if trial.result is not None]
        for cell in cells
    }
    if max((len(run["epoch"]) for runs in curves.values() for run in runs), default=0) < 2:
        return None
    figure, panels = plot_style.make_panels(1, 2 if names else 1, 3.6)
    for at, cell in enumerate(cells):
        colour, marker = styles[cell.way]
        # Equal curves lie inside each other.
        width = 1.1 + 1.3 * (len(cells) - 1 - at)
        style = {"color": colour, "linewidth": width, "markersize": 2.5 + width}
        for number, run in enumerate(curves[cell.label]):
            label = cell.label if number == 0 else None
            panels[0].plot(run["epoch"], run["loss"], label=label, **style)
            panels[0].plot(*_known(run, "val_loss"), linestyle="--", **style)
            if names:
                panels[1].plot(*_known(run, "score"), marker=marker, **style)
    kinds = [("-", "training"), ("--", "validation")]
    panels[0].legend(
        [Line2D([], [], color="#555555", linestyle=line) for line, _ in kinds],
        [name for _, name in kinds],
        loc="upper right",
    )
    panels[0].set(title="Loss", ylabel="loss")
    if names:
        panels[1].set(title=title[0], ylabel=title[1])
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=max(1, min(len(labels), 4)))
    return figure


def _score_columns(cells: Sequence[Cell]) -> tuple[list[str], tuple[str, str]]:
    """Return the columns of epochs.csv whose mean is drawn, none if it is the loss, and its title
    with the words of its axis.
    """
    for name in cells[0].scores if cells else ():
        return [] if name in LOSSES else [name], (f"{name} of the validation samples", name)
    regions = dict.fromkeys(region for cell in cells for region in cell.regions)
    words = "Dice of the validation cases", "mean over regions and cases"
    return [f"dice_{region}" for region in regions], words


def _curves(trial: TrialRecord, names: list[str]) -> dict[str, list[float]]:
    """Return epoch, losses and score of every epoch; NaN where nothing was evaluated."""
    table = read_table(
        trial.folder / "epochs.csv",
        {"epoch": whole, **dict.fromkeys((*LOSSES, *names), number_or_nan)},
    )
    rows = zip(*(table[name] for name in names), strict=True) if names else ()
    return {**table, "score": [fmean(row) for row in rows]}


def _known(run: dict[str, list[float]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return epochs and values without those epochs in which there was no evaluation."""
    pairs = [
        (epoch, value)
        for epoch, value in zip(run["epoch"], run[name], strict=True)
        if not math.isnan(value)
    ]
    epochs, values = np.array(pairs, float).reshape(-1, 2).T
    return epochs, values
