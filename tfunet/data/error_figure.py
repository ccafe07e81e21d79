"""Draws cases with their mask, prediction and errors. Needs matplotlib, not TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tfunet.data.overlay_figure import add_legend, colour_of, overlay
from tfunet.data.shown_planes import ShownPlane

COLUMNS = ("image", "manual mask", "prediction", "errors")
# Inches above a case, above a line of pictures, and below all.
HEADING, TITLE, LEGEND = 0.35, 0.2, 0.6
# Kinds of errors: label to name and colour (Okabe and Ito 2008).
DIFFERENCES = {
    1: ("predicted, not in the mask", "#D55E00"),
    2: ("in the mask, not predicted", "#0072B2"),
    3: ("of another class", "#F0E442"),
}


def draw_cases(
    cases: Mapping[str, Sequence[ShownPlane]], label_names: Mapping[int, str], *, width: float
) -> Figure:
    """Draw image, mask, prediction and errors of each case, a line for each plane.

    Args:
        cases: Heading of each case to its planes.
        label_names: A name for each label.
        width: In inches.
    """
    heights = [[_height(plane, width) for plane in planes] for planes in cases.values()]
    blocks = [sum(lines) + HEADING for lines in heights]
    figure = Figure(figsize=(width, sum(blocks) + LEGEND), layout="constrained")
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=blocks).flat
    for part, (heading, planes), lines in zip(parts, cases.items(), heights, strict=True):
        # A heading may hold dollar signs, and is no formula.
        part.suptitle(heading, x=0.01, ha="left", fontsize=9.5, weight="bold", parse_math=False)
        grid = part.subplots(
            len(lines), len(COLUMNS), squeeze=False, gridspec_kw={"height_ratios": lines}
        )
        for row, (line, plane) in enumerate(zip(grid, planes, strict=True)):
            _draw_plane(line, plane)
            titles = (plane.title or "image", *COLUMNS[1:]) if row == 0 else (plane.title,)
            for axes, title in zip(line, titles, strict=False):
                axes.set_title(title, fontsize=8, weight="normal")
    handles = [Patch(color=colour_of(label), label=name) for label, name in label_names.items()]
    kinds = list(DIFFERENCES.values())[: 2 if len(label_names) == 1 else 3]
    handles += [Patch(color=colour, label=name) for name, colour in kinds]
    add_legend(figure, handles, loc="outside lower left", ncols=4)
    return figure


def errors(mask: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the colours (rows, columns, 4) of where a prediction differs from the mask."""
    colours = np.zeros((*mask.shape, 4), np.float32)
    kinds = differences(mask, predicted)
    for kind, (_, colour) in DIFFERENCES.items():
        colours[kinds == kind] = to_rgba(colour, 0.85)
    return colours


def differences(mask: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the labels of `DIFFERENCES` where the two differ, and 0 where they agree."""
    return np.select([mask == predicted, mask == 0, predicted == 0], [0, 1, 2], 3).astype(np.uint8)


def _draw_plane(line: Sequence[Any], plane: ShownPlane) -> None:
    layers = (
        None,
        overlay(plane.mask),
        overlay(plane.labels),
        errors(plane.mask, plane.labels),
    )
    for axes, layer in zip(line, layers, strict=True):
        axes.imshow(plane.image, cmap="gray", vmin=0, vmax=255)
        if layer is not None:
            axes.imshow(layer, interpolation="nearest")
        axes.set_axis_off()


def _height(plane: ShownPlane, width: float) -> float:
    """Return the height of a line in inches."""
    rows, columns = plane.mask.shape
    return width / len(COLUMNS) * min(rows / columns, 1.6) + TITLE
