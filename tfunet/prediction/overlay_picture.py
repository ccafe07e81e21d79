"""Draws a prediction, and its errors, for a person to look at. Imports no TensorFlow."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from tfunet.data.lazy_image import LazyImage, cuts
from tfunet.data.shown_planes import ShownPlane, in_8_bits, planes_through
from tfunet.files.atomic import replacing

# Longer images are drawn with every second, third, ... pixel.
MOST_PIXELS = 2160
# Inches of a picture that are usual; of a larger image, each pixel is a dot.
WIDTH = 9.0
DOTS_PER_INCH = 180
# The same for a picture of the errors, which has four panels.
MOST_ERROR_PIXELS = 720
ERRORS_WIDTH = 16.0
NO_DRAWING = "No pictures are drawn: they need matplotlib, pip install 'tfunet[report]'."


def drawing() -> ModuleType | None:
    """Return the module that draws; None if matplotlib is not installed."""
    try:
        from tfunet.data import overlay_figure
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return None
    return overlay_figure


def write_overlay(
    path: Path,
    image: LazyImage,
    labels: Callable[[int, int], np.ndarray],
    names: Mapping[int, str],
    *,
    title: str,
) -> None:
    """Write a picture of an image with its labels in colours; a volume in three planes.

    Args:
        path: The picture, .png.
        image: Read in parts.
        labels: (first row, one past the last) to the labels of these rows.
        names: A name for each label.
        title: Title of the picture.
    """
    figures = drawing()
    if figures is None:
        return
    if len(image.shape) == 2:
        panels = [figures.Panel("", *_thinned(image, labels))]
    else:
        panels = [figures.Panel(*plane) for plane in _planes(image, labels)]
    longest = max(max(panel.mask.shape) for panel in panels)
    num_views = len(panels) * (2 if figures.is_label_map([panel.mask for panel in panels]) else 1)
    view = max(WIDTH / num_views, min(longest, MOST_PIXELS / len(panels)) / DOTS_PER_INCH)
    figure = figures.draw(
        panels, title=title, labels=names, in_pairs=False, view=view, in_colour=image.in_colour
    )
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=DOTS_PER_INCH)


def write_errors(
    path: Path,
    image: np.ndarray,
    mask: np.ndarray,
    labels: np.ndarray,
    names: Mapping[int, str],
    *,
    title: str,
) -> None:
    """Write a picture of an image, its mask, the predicted labels and where these two differ.

    Args:
        path: The picture, .png.
        image: What is shown of it, as `shown_channels` returns it.
        mask: Labels (*spatial).
        labels: The predicted ones, as the mask.
        names: A name for each label.
        title: Title of the picture.
    """
    from tfunet.data.error_figure import draw_cases

    planes = planes_through(mask, MOST_ERROR_PIXELS)
    pixels = in_8_bits([plane.of(image) for plane in planes])
    shown = [
        ShownPlane(
            title=plane.title(mask.shape),
            image=shades,
            mask=plane.of(mask),
            labels=plane.of(labels),
        )
        for plane, shades in zip(planes, pixels, strict=True)
    ]
    figure = draw_cases({title: shown}, names, width=ERRORS_WIDTH)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=DOTS_PER_INCH)


def write_confusion(path: Path, names: Sequence[str], counts: np.ndarray) -> None:
    """Write a picture, .png, of a confusion matrix with these classes."""
    from tfunet.data.confusion_figure import draw_confusion

    with replacing(path) as partial:
        draw_confusion(names, counts).savefig(partial, format="png", dpi=DOTS_PER_INCH)


def _thinned(
    image: LazyImage, labels: Callable[[int, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return every n-th pixel of an image and of its labels."""
    step = math.ceil(max(image.shape) / MOST_PIXELS)
    pixels, marks = [], []
    for first, last in cuts(image.shape, image.channels):
        rows = slice(-first % step, None, step)
        pixels.append(image.read((first, 0), (last, image.shape[1]))[rows, ::step])
        marks.append(labels(first, last)[rows, ::step])
    return np.concatenate(pixels), np.concatenate(marks)


def _planes(
    image: LazyImage, labels: Callable[[int, int], np.ndarray]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield a title, the pixels and the labels of a plane along each axis of a volume.

    The planes go through the middle of the labels, or of the volume if it has none.
    """
    parts = list(cuts(image.shape, image.channels))
    counts = [np.zeros(size) for size in image.shape]
    for first, last in parts:
        inside = labels(first, last) > 0
        counts[0][first:last] = inside.sum((1, 2))
        counts[1] += inside.sum((0, 2))
        counts[2] += inside.sum((0, 1))
    for axis, count in enumerate(counts):
        total = count.sum()
        at = round(float(count @ np.arange(len(count)) / total)) if total else len(count) // 2
        pixels, marks = [], []
        for first, last in [(at, at + 1)] if axis == 0 else parts:
            start, stop = [first, 0, 0], [last, *image.shape[1:]]
            places: list[slice | int] = [slice(None)] * 3
            places[axis] = 0
            if axis:
                start[axis], stop[axis] = at, at + 1
            pixels.append(image.read(start, stop)[tuple(places)])
            places[axis] = at if axis else 0
            marks.append(labels(first, last)[tuple(places)])
        title = f"axis {axis + 1}, plane {at + 1} of {len(count)}"
        joined = [np.concatenate(several) if axis else several[0] for several in (pixels, marks)]
        yield title, joined[0], joined[1]
