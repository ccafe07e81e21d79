"""Draws images and volumes with their masks side by side. Needs matplotlib, not TensorFlow."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import hsv_to_rgb, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tfunet.data.shown_planes import brightness, scaled, shown_channels

# The 15 colours for colour-blind readers of Krzywinski (https://mk.bcgsc.ca/colorblind), ordered so
# that the first ones are unlike each other, and the first three unlike the colours of errors.
COLOURS = (
    *("#00DCB5", "#9400E6", "#FF71FD", "#FFDC3D", "#F60239", "#003C86", "#008607", "#EF0096"),
    *("#68023F", "#7CFFFA", "#008169", "#009FFA", "#00E307", "#6A0213", "#FFCFE2"),
)
NO_DATA = "#808080"
SUFFIXES = (".png", ".svg", ".pdf")
WIDTH = 9.3  # inches
MOST_VIEW = 3.0  # inches
# Inches of an entry of the legend without its words, and of a letter.
ENTRY, LETTER = 0.6, 0.075
INSIDE_ALPHA = 0.25
DENSE_ALPHA = 0.1
# From this share of labelled pixels on a mask is dense.
DENSE_SHARE = 0.6
# In a map of labels so many or more cover so much of the pixels; outlines would hide thin ones.
MAP_SHARE = 0.8
MAP_LABELS = 4
# An outline is this share of a picture wide, and at least a pixel.
OUTLINE_SHARE = 250
# Outlines that cover more of the regions are made thinner, and then translucent.
MOST_OUTLINE = 0.65
THIN_ALPHA = 0.5


class Panel(NamedTuple):
    """One sample: `image` (*spatial, channels) and `mask` (*spatial) under a title."""

    title: str
    image: np.ndarray
    mask: np.ndarray


def draw(
    panels: Sequence[Panel],
    *,
    title: str,
    labels: Mapping[int, str],
    in_pairs: bool,
    view: float | None = None,
    in_colour: bool = False,
    ignored: int | None = None,
) -> Figure:
    """Return a figure with all panels: the first channel in grey, labels in colours.

    Where labels cover nearly everything, they are beside their image.

    A volume is shown in three orthogonal slices through the middle of its foreground. Panels of
    an image share the brightness of the first, so that a change of it can be seen.

    Args:
        panels: The first panel, or with `in_pairs` the first of every two, is the original.
        in_pairs: Keep each two panels beside each other.
        view: Width of a view in inches; by default as many fit into a line as there may be.
        in_colour: Show the first three channels of a plane as red, green and blue.
        ignored: The label of pixels without data.
    """
    num_views, most = (1, 7) if panels[0].mask.ndim == 2 else (3, 3)
    is_map = is_label_map([panel.mask for panel in panels], ignored)
    if is_map:
        views = [mask for panel in panels for _, mask in slices(panel, in_colour=in_colour)]
        labels = labels_in(views, labels)
        num_views, most = 2 * num_views, 3 if num_views == 1 else 1
    most = max(most - most % 2, 2) if in_pairs else most
    num_rows = -(-len(panels) // most)
    per_row = -(-len(panels) // num_rows)
    per_row += per_row % 2 if in_pairs else 0
    view = view or min(WIDTH / (per_row * num_views), MOST_VIEW)
    # Rows over columns of the tallest view: a view is as long as `view`, whichever side is longer.
    sides = [mask.shape for _, mask in slices(panels[0], in_colour=in_colour)]
    ratio = max(rows / columns for rows, columns in sides)
    height, view = view * min(1.0, ratio), view / max(1.0, ratio)
    longest = max(map(len, labels.values()), default=0)
    # A legend needs room, beside a single small picture too.
    width = max(view * num_views * per_row, ENTRY + LETTER * longest)
    entries = max(1, min(len(labels), 6, int(width / (ENTRY + LETTER * longest))))
    legend = 0.2 * -(-len(labels) // entries)
    size = (width, (height + 0.2) * num_rows + 0.4 + legend)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    # Names may hold dollar signs: no title is taken for a formula.
    figure.suptitle(title, fontsize=9, parse_math=False)
    blocks = np.ravel(figure.subfigures(num_rows, per_row, squeeze=False))
    for number, (panel, block) in enumerate(zip(panels, blocks, strict=False)):
        original = panels[number - number % 2] if in_pairs else panels[0]
        pixels = shown_channels(original.image, in_colour=in_colour)
        span = brightness([pixels], in_colour=in_colour)
        views = block.subplots(1, num_views, squeeze=False)[0]
        block.suptitle(panel.title, fontsize=8, parse_math=False)
        _draw_panel(views, panel, span, in_colour=in_colour, ignored=ignored, is_map=is_map)
    colours = {label: NO_DATA if label == ignored else colour_of(label) for label in labels}
    handles = [Patch(color=colours[label], label=name) for label, name in labels.items()]
    add_legend(figure, handles, loc="outside lower center", ncols=entries, fontsize=8)
    return figure


def _draw_panel(
    views: Iterable[Any],
    panel: Panel,
    span: tuple[float, float],
    *,
    in_colour: bool,
    ignored: int | None,
    is_map: bool,
) -> None:
    """Draw the views of a sample, with black and white at the ends of a span."""
    views = iter(views)
    for pixels, mask in slices(panel, in_colour=in_colour):
        axes = next(views)
        draw_pixels(axes, pixels, *span, interpolation="nearest")
        axes.set_axis_off()
        axes = next(views) if is_map else axes
        axes.imshow(overlay(mask, ignored=ignored, filled=is_map), interpolation="nearest")
        axes.set_axis_off()


def add_legend(figure: Figure, handles: Sequence[Patch], **options: Any) -> None:
    """Add a legend with the names of classes as they are, which may hold dollar signs."""
    for text in figure.legend(handles=handles, **options).get_texts():
        text.set_parse_math(False)


def draw_pixels(axes: Any, pixels: np.ndarray, low: float, high: float, **options: Any) -> None:
    """Draw grey values or colours (rows, columns, 3), with black and white at these values."""
    # Matplotlib has no range for colours.
    shown = scaled(pixels, low, high) if pixels.ndim == 3 else pixels
    axes.imshow(shown, cmap="gray", vmin=low, vmax=high, **options)


def slices(panel: Panel, *, in_colour: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (image, mask) of each view: the image itself, or three slices of a volume."""
    if panel.mask.ndim == 2:
        return [(shown_channels(panel.image, in_colour=in_colour), panel.mask)]
    grey = panel.image[..., 0]
    inside = np.argwhere(panel.mask > 0)
    middle = inside.mean(axis=0).round() if len(inside) else (np.asarray(grey.shape) - 1) // 2
    return [
        (grey.take(int(at), axis), panel.mask.take(int(at), axis)) for axis, at in enumerate(middle)
    ]


def is_label_map(masks: Sequence[np.ndarray], ignored: int | None = None) -> bool:
    """Return whether many labels cover nearly all pixels, so that they are drawn filled."""
    labels = {label for mask in masks for label in np.unique(mask).tolist()} - {0, ignored}
    share = np.mean([(mask > 0).mean() for mask in masks])
    return len(labels) >= MAP_LABELS and bool(share >= MAP_SHARE)


def labels_in(masks: Iterable[np.ndarray], labels: Mapping[int, str]) -> dict[int, str]:
    """Return the names of the labels that are in masks: of many classes few are in a picture."""
    present = {label for mask in masks for label in np.unique(mask).tolist()}
    return {label: name for label, name in labels.items() if label in present}


def overlay(mask: np.ndarray, *, ignored: int | None = None, filled: bool = False) -> np.ndarray:
    """Return the colours (rows, columns, 4) of a slice of labels: outlines, and a tint inside.

    Where most pixels have a label, the tint is weaker and the outlines tell labels apart. Outlines
    are thinner, and translucent, where they would cover most of the regions. With `filled`, labels
    hide the image, and pixels without one are black.
    """
    is_inside = mask > 0
    colours = np.zeros((*mask.shape, 4), np.float32)
    for label in np.unique(mask[is_inside]).tolist():
        colours[mask == label, :3] = to_rgb(NO_DATA if label == ignored else colour_of(label))
    if filled:
        colours[..., 3] = 1
        return colours
    width = max(1, round(max(mask.shape) / OUTLINE_SHARE))
    is_outline = _outlines(mask, width)
    # Regions a few pixels wide would be all outline, which hides the image below.
    most = MOST_OUTLINE * is_inside.sum()
    while width > 1 and (is_outline & is_inside).sum() > most:
        width -= 1
        is_outline = _outlines(mask, width)
    tint = DENSE_ALPHA if is_inside.mean() > DENSE_SHARE else INSIDE_ALPHA
    edge = 1 if (is_outline & is_inside).sum() <= most else THIN_ALPHA
    colours[..., 3] = np.where(is_inside, np.where(is_outline, edge, tint), 0)
    return colours


def _outlines(mask: np.ndarray, width: int) -> np.ndarray:
    """Return the pixels that are at most `width` pixels from one of another label."""
    is_outline = np.zeros(mask.shape, bool)
    for axis in (0, 1):
        for distance in range(1, min(width, mask.shape[axis] - 1) + 1):
            differs = np.take(mask, range(distance, mask.shape[axis]), axis) != np.take(
                mask, range(mask.shape[axis] - distance), axis
            )
            for side in (slice(distance, None), slice(None, -distance)):
                places = [slice(None), slice(None)]
                places[axis] = side
                is_outline[tuple(places)] |= differs
    return is_outline


def colour_of(label: int) -> str:
    """Return the colour of a label from 1; those after the fifteenth are spread over the hues."""
    if label <= len(COLOURS):
        return COLOURS[label - 1]
    # Steps of the golden ratio keep new hues away from those before; three shades of them.
    number = label - len(COLOURS)
    saturation, value = ((0.55, 1.0), (0.9, 0.65), (0.3, 0.8))[number % 3]
    return to_hex(hsv_to_rgb((number * 0.61803 % 1, saturation, value)))
