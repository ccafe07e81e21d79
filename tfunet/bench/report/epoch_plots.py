"""Draws loss and Dice over epochs. Needs matplotlib."""

import math
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.records.run_tables import number_or_nan, read_table
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report import plot_style
from tfunet.files.typed import whole

LOSSES = ("loss", "val_loss")


def epoch_curves(family: Family, styles: plot_style.Styles) -> Figure | None:
    """Draw losses and mean Dice over epochs, a line for every repeat with the most replicas."""
    cells = family.largest_cells
    regions = list(dict.fromkeys(region for cell in cells for region in cell.regions))
    curves = {
        cell.label: [_curves(trial, regions) for trial in cell.done if trial.result is not None]
        for cell in cells
    }
    if max((len(run["epoch"]) for runs in curves.values() for run in runs), default=0) < 2:
        return None
    figure, panels = plot_style.make_panels(1, 2 if regions else 1, 3.6)
    for at, cell in enumerate(cells):
        colour, marker = styles[cell.way]
        # Equal curves lie inside each other.
        width = 1.1 + 1.3 * (len(cells) - 1 - at)
        style = {"color": colour, "linewidth": width, "markersize": 2.5 + width}
        for number, run in enumerate(curves[cell.label]):
            label = cell.label if number == 0 else None
            panels[0].plot(run["epoch"], run["loss"], label=label, **style)
            panels[0].plot(*_known(run, "val_loss"), linestyle="--", **style)
            if regions:
                panels[1].plot(*_known(run, "dice"), marker=marker, **style)
    kinds = [("-", "training"), ("--", "validation")]
    panels[0].legend(
        [Line2D([], [], color="#555555", linestyle=line) for line, _ in kinds],
        [name for _, name in kinds],
        loc="upper right",
    )
    panels[0].set(title="Loss", ylabel="loss")
    if regions:
        panels[1].set(title="Dice of the validation cases", ylabel="mean over regions and cases")
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=max(1, min(len(labels), 4)))
    return figure


def _curves(trial: TrialRecord, regions: list[str]) -> dict[str, list[float]]:
    """Return epoch, losses and mean Dice of every epoch; NaN where nothing was evaluated."""
    dice = [f"dice_{region}" for region in regions]
    table = read_table(
        trial.folder / "epochs.csv",
        {"epoch": whole, **dict.fromkeys((*LOSSES, *dice), number_or_nan)},
    )
    rows = zip(*(table[name] for name in dice), strict=True) if dice else ()
    return {**table, "dice": [fmean(row) for row in rows]}


def _known(run: dict[str, list[float]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return epochs and values without those epochs in which there was no evaluation."""
    pairs = [
        (epoch, value)
        for epoch, value in zip(run["epoch"], run[name], strict=True)
        if not math.isnan(value)
    ]
    epochs, values = np.array(pairs, float).reshape(-1, 2).T
    return epochs, values
