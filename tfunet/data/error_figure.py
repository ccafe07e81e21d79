"""Draws cases with their mask, prediction and errors. Needs matplotlib, not TensorFlow."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tfunet.data.overlay_figure import add_legend, colour_of, is_label_map, labels_in, overlay
from tfunet.data.shown_planes import ShownPlane

COLUMNS = ("image", "manual mask", "prediction", "errors")
# Inches above a case and for a further line of its heading, above a line of pictures, and for a
# line of the legend.
HEADING, HEADING_LINE, TITLE, LEGEND = 0.35, 0.17, 0.2, 0.2
# Letters of a heading in an inch.
LETTERS = 11.5
# Kinds of errors: label to name and colour (Okabe and Ito 2008).
DIFFERENCES = {
    1: ("predicted, not in the mask", "#D55E00"),
    2: ("in the mask, not predicted", "#0072B2"),
    3: ("of another class", "#F0E442"),
}
# With more labels than this, wrong pixels have the colour of the predicted label: nearly all would
# be of another class.
FEW_LABELS = 3
BY_LABEL = "errors, as predicted"
MISSED = ("in the mask, not predicted", "#FFFFFF")
NO_LABEL = ("no class", "#000000")


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
    wrapped = {heading: _wrapped(heading, width) for heading in cases}
    blocks = [
        sum(lines) + HEADING + HEADING_LINE * heading.count("\n")
        for lines, heading in zip(heights, wrapped.values(), strict=True)
    ]
    is_map = is_label_map([plane.mask for planes in cases.values() for plane in planes])
    by_label = len(label_names) > FEW_LABELS
    shown = label_names
    if is_map:
        several = [plane for planes in cases.values() for plane in planes]
        shown = labels_in([*(p.mask for p in several), *(p.labels for p in several)], label_names)
    handles = legend_handles(shown, filled=is_map, by_label=by_label)
    entries = 4
    legend = LEGEND * (1 + -(-len(handles) // entries))
    figure = Figure(figsize=(width, sum(blocks) + legend), layout="constrained")
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=blocks).flat
    for part, (heading, planes), lines in zip(parts, cases.items(), heights, strict=True):
        # A heading may hold dollar signs, and is no formula.
        part.suptitle(
            wrapped[heading], x=0.01, ha="left", fontsize=9.5, weight="bold", parse_math=False
        )
        grid = part.subplots(
            len(lines), len(COLUMNS), squeeze=False, gridspec_kw={"height_ratios": lines}
        )
        for row, (line, plane) in enumerate(zip(grid, planes, strict=True)):
            _draw_plane(line, plane, filled=is_map, by_label=by_label)
            columns = (*COLUMNS[1:-1], BY_LABEL if by_label else COLUMNS[-1])
            titles = (plane.title or "image", *columns) if row == 0 else (plane.title,)
            for axes, title in zip(line, titles, strict=False):
                axes.set_title(title, fontsize=8, weight="normal")
    add_legend(figure, handles, loc="outside lower left", ncols=entries)
    return figure


def legend_handles(
    label_names: Mapping[int, str], *, filled: bool = False, by_label: bool | None = None
) -> list[Patch]:
    """Return the entries of a legend for labels and kinds of errors.

    Errors have the colours of labels if there are many, or as `by_label` says.
    """
    by_label = len(label_names) > FEW_LABELS if by_label is None else by_label
    handles = [Patch(color=colour_of(label), label=name) for label, name in label_names.items()]
    if filled:
        name, colour = NO_LABEL
        handles.append(Patch(color=colour, label=name))
    if by_label:
        name, colour = MISSED
        return [*handles, Patch(facecolor=colour, edgecolor="#888888", label=f"errors: {name}")]
    kinds = list(DIFFERENCES.values())[: 2 if len(label_names) == 1 else 3]
    return [*handles, *(Patch(color=colour, label=name) for name, colour in kinds)]


def errors(mask: np.ndarray, predicted: np.ndarray, *, by_label: bool = False) -> np.ndarray:
    """Return the colours (rows, columns, 4) of where a prediction differs from the mask.

    They are those of `DIFFERENCES`, or `by_label` those of the predicted labels and `MISSED`.
    """
    colours = np.zeros((*mask.shape, 4), np.float32)
    kinds = differences(mask, predicted)
    if by_label:
        wrong = kinds > 0
        for label in np.unique(predicted[wrong]).tolist():
            colour = colour_of(label) if label else MISSED[1]
            colours[wrong & (predicted == label)] = to_rgba(colour)
        return colours
    for kind, (_, colour) in DIFFERENCES.items():
        colours[kinds == kind] = to_rgba(colour, 0.85)
    return colours


def differences(mask: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the labels of `DIFFERENCES` where the two differ, and 0 where they agree."""
    return np.select([mask == predicted, mask == 0, predicted == 0], [0, 1, 2], 3).astype(np.uint8)


def grey(image: np.ndarray) -> np.ndarray:
    """Return an image in colours (rows, columns, 3) in grey, beside which colours stand out."""
    return image @ np.array([0.299, 0.587, 0.114]) if image.ndim == 3 else image


def _draw_plane(line: Sequence[Any], plane: ShownPlane, *, filled: bool, by_label: bool) -> None:
    layers = (
        None,
        overlay(plane.mask, filled=filled),
        overlay(plane.labels, filled=filled),
        errors(plane.mask, plane.labels, by_label=by_label),
    )
    for at, (axes, layer) in enumerate(zip(line, layers, strict=True)):
        image = grey(plane.image) if at == len(layers) - 1 and by_label else plane.image
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        if layer is not None:
            axes.imshow(layer, interpolation="nearest")
        axes.set_axis_off()


def _wrapped(heading: str, width: float) -> str:
    """Return a heading in lines that fit into a figure `width` inches wide."""
    return "\n".join(textwrap.wrap(heading, int(LETTERS * width), break_on_hyphens=False))


def _height(plane: ShownPlane, width: float) -> float:
    """Return the height of a line in inches."""
    rows, columns = plane.mask.shape
    return width / len(COLUMNS) * min(rows / columns, 1.6) + TITLE
