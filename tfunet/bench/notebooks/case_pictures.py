"""Pictures of a case: image, manual mask, prediction and differences. Needs matplotlib."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tfunet.bench.report.plot_style import WIDTH, make_panels
from tfunet.bench.report.plots import DrawnFigure, drawn
from tfunet.data.check import raw_case
from tfunet.data.description_file import described
from tfunet.data.error_figure import BY_LABEL, FEW_LABELS, errors, grey, legend_handles
from tfunet.data.image_files import read_mask
from tfunet.data.overlay_figure import add_legend, draw_pixels, is_label_map, overlay
from tfunet.data.shown_planes import brightness, shown_channels
from tfunet.data.source import DataSource, open_source
from tfunet.learning import scores
from tfunet.prediction.code_images import write_image
from tfunet.record import RunFolder


@dataclass(frozen=True, kw_only=True)
class PredictedCase:
    """A case from its files, and the arguments of `tfunet predict` for it.

    Args:
        files: Paths of the files of the image, joined by commas.
        pixel_size: Pixel size of the image if the run resamples, else None.
        ignored: Label of pixels that do not count.
        in_colour: Whether the first three channels are shown as red, green and blue.
    """

    case_id: str
    files: str
    pixel_size: tuple[float, ...] | None
    image: np.ndarray
    mask: np.ndarray
    regions: Mapping[str, tuple[int, ...]]
    labels: Mapping[int, str]
    ignored: int | None = None
    in_colour: bool = False


def open_data(run: Path, root: str | None) -> DataSource:
    """Open the data set of a run, with its folder `root`, or None for data made in code.

    Raises ValueError if the data is not there.
    """
    config = RunFolder(run).read_config()
    if config is None:
        raise ValueError(f"{run} is not the folder of a run: it has no config.json.")
    data, options = described(config.data, config.data_options)
    if root is not None and "root" not in options:
        raise ValueError(
            f"The data set {config.data!r} of the run in {run} reads no folder: set `root` to None."
        )
    try:
        options = options if root is None else {**options, "root": root}
        return open_source(data, options, skip_bad=config.skips_bad)
    except ValueError as error:
        raise ValueError(
            f"The data of the run in {run} cannot be opened: {error} Set `root` to the folder of "
            "the data."
        ) from error


def read_case(source: DataSource, case_id: str, scratch: Path) -> PredictedCase:
    """Return a case of a data set; write an image that was made in code into `scratch`."""
    if case_id not in source.case_ids:
        raise ValueError(
            f"{source.name} has no case {case_id!r}. Known: {', '.join(source.case_ids)}."
        )
    raw = raw_case(source, source.case_ids.index(case_id))
    files = [str(source.root / file) for file in raw.image_files]
    if not files:
        name = re.sub(r"[^\w.-]", "_", case_id)
        files = [str(write_image(raw.image, scratch, name))]
    return PredictedCase(
        case_id=case_id,
        files=",".join(files),
        pixel_size=None if raw.target is None else raw.spacing,
        image=raw.image,
        mask=raw.mask,
        regions=source.regions,
        labels=source.label_names(),
        ignored=source.ignored,
        in_colour=source.in_colour,
    )


def picture(case: PredictedCase, prediction: Path) -> DrawnFigure:
    """Draw a case, or a slice of a volume, beside the labels in the file `prediction`."""
    predicted = read_mask(prediction).astype(np.uint8)
    if predicted.shape != case.mask.shape:
        raise ValueError(
            f"{prediction} has the shape {predicted.shape}, but the mask of {case.case_id} has "
            f"{case.mask.shape}: it belongs to another image."
        )
    if case.ignored is not None:
        gaps = case.mask == case.ignored
        case, predicted = replace(case, mask=np.where(gaps, 0, case.mask)), predicted * ~gaps
    dice = ", ".join(f"{name} {value:.3f}" for name, value in dice_of(case, predicted).items())
    name = "case-" + re.sub(r"\W+", "-", case.case_id)
    return drawn(
        name,
        f"{case.case_id}: Dice {dice}",
        "Dice of this prediction at the pixels of the image; the records of the run have it at the "
        "resolution of the evaluation.",
        partial(draw_case, case, predicted),
    )


def dice_of(case: PredictedCase, predicted: np.ndarray) -> dict[str, float]:
    """Return the Dice of every region."""
    dice = {}
    for region, labels in case.regions.items():
        inside, truth = np.isin(predicted, labels), np.isin(case.mask, labels)
        parts = [inside & truth, inside & ~truth, ~inside & truth]
        dice[region] = float(scores.dice(np.array([[pixels.sum() for pixels in parts]], float))[0])
    return dice


def draw_case(case: PredictedCase, predicted: np.ndarray) -> Figure:
    """Draw image, manual mask, prediction, and where the last two differ."""
    pixels, mask, where = shown_channels(case.image, in_colour=case.in_colour), case.mask, ""
    if mask.ndim == 3:
        fullest = int((mask > 0).sum((1, 2)).argmax())
        pixels, mask, predicted = pixels[fullest], mask[fullest], predicted[fullest]
        where = f", slice {fullest + 1} of {len(case.mask)}"
    rows, columns = mask.shape
    height = min(2 * 0.48 * WIDTH * rows / columns, 1.6 * WIDTH) + 1.0
    figure, panels = make_panels(2, 2, height, sharex=True, sharey=True)
    # The SVG holds images as pixels: enough of them to look closely.
    figure.set_dpi(150)
    low, high = brightness([pixels], in_colour=case.in_colour)
    filled, by_label = is_label_map([mask]), len(case.labels) > FEW_LABELS
    differ = BY_LABEL if by_label else "where they differ"
    titles = (f"image{where}", "manual mask", "prediction", differ)
    layers = (
        None,
        overlay(mask, filled=filled),
        overlay(predicted, filled=filled),
        errors(mask, predicted, by_label=by_label),
    )
    for axes, title, layer in zip(panels, titles, layers, strict=True):
        draw_pixels(axes, grey(pixels) if axes is panels[-1] and by_label else pixels, low, high)
        if layer is not None:
            axes.imshow(layer, interpolation="nearest")
        axes.set_title(title)
        axes.set_axis_off()
    add_legend(
        figure, legend_handles(case.labels, filled=filled), loc="outside lower left", ncols=5
    )
    return figure
