"""Draws a confusion matrix. Needs matplotlib, not TensorFlow."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tfunet.learning.confusion import accuracies

# With more classes, numbers would be too small to read.
MOST_WITH_NUMBERS = 20
# Inches of a class, at most and at least, of all classes, and of a letter of a name.
CELL, LEAST_CELL, SIDE, LETTER = 0.8, 0.2, 6.6, 0.075
LONGEST_NAME = 24
# One hue from white to dark: what is dark is much, for colour-blind readers too.
COLOURS = "Blues"
NO_VOXELS = "#d9d9d9"


def draw_confusion(names: Sequence[str], counts: np.ndarray) -> Figure:
    """Draw which share of the voxels of each true class (a row) was predicted as each class.

    Classes in no mask and in no prediction are left out. A true class without a voxel has no
    shares.

    Args:
        names: Names of all classes.
        counts: Voxels (true classes, predicted classes).
    """
    shown = np.flatnonzero(counts.sum(0) + counts.sum(1))
    names = [_shortened(names[at]) for at in shown]
    of_pixels, of_classes = accuracies(counts)
    counts = counts[np.ix_(shown, shown)].astype(float)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    num = len(names)
    side = num * min(CELL, max(LEAST_CELL, SIDE / max(num, 1)))
    margin = 0.6 + LETTER * max(map(len, names), default=0)
    figure = Figure(figsize=(side + margin + 1.0, side + margin), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=NO_VOXELS)
    places, edges = range(num), np.arange(num + 1) - 0.5
    cells = axes.pcolormesh(
        *(edges, edges, np.ma.masked_invalid(100 * shares)),
        cmap=colours,
        vmin=0,
        vmax=100,
        # As vectors, many cells would be as many shapes in the page.
        rasterized=num > MOST_WITH_NUMBERS,
    )
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_facecolor(NO_VOXELS)
    size = 9 if num <= 10 else 7
    axes.set_xticks(places, names, rotation=90 if num > 3 else 0, fontsize=size)
    axes.set_yticks(places, names, fontsize=size)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # A name may hold dollar signs.
    axes.set_title(f"accuracy: pixels {of_pixels:.3f}, mean of classes {of_classes:.3f}", size=9)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if num <= MOST_WITH_NUMBERS:
        for row, column in np.ndindex(shares.shape):
            share = shares[row, column]
            colour = "#ffffff" if share > 0.5 else "#000000"
            text = share_text(share, in_tenths=num <= 10)
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
    figure.colorbar(cells, ax=axes, label="% of the true class", shrink=0.8)
    return figure


def share_text(share: float, *, in_tenths: bool) -> str:
    """Return a share in percent; "" for nothing, "-" where there is none.

    A share is "100" only if it is all, and "<1" or "<0.1" where it is not nothing.
    """
    if np.isnan(share):
        return "-"
    if share == 0:
        return ""
    if share == 1:
        return "100"
    step = 0.1 if in_tenths else 1
    digits = 1 if in_tenths else 0
    percent = 100 * share
    if percent < step:
        return f"<{step:g}"
    return f"{min(percent, 100 - step):.{digits}f}"


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
