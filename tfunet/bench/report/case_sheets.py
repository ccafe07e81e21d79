"""Draws validation cases of each way of training as one picture. Needs matplotlib."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Summary
from tfunet.bench.records.shown_cases import ShownCase, ShownCases, ShownPlane, read_shown_cases
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report.plot_style import RC, WIDTH
from tfunet.bench.report.plots import MAX_FAMILIES
from tfunet.data.overlay_figure import colour_of, overlay
from tfunet.files.typed import RecordError

COLUMNS = ("image", "manual mask", "prediction", "errors")
DOTS_PER_INCH = 130
QUALITY = 80
# A sheet is some hundred kilobytes of the page.
MAX_SHEETS = 12
# Inches above a case, above a line of pictures, and below all.
HEADING, TITLE, LEGEND = 0.35, 0.2, 0.6
# Kinds of errors: label to name and colour (Okabe and Ito 2008).
DIFFERENCES = {
    1: ("predicted, not in the mask", "#D55E00"),
    2: ("in the mask, not predicted", "#0072B2"),
    3: ("of another class", "#F0E442"),
}


@dataclass(frozen=True, kw_only=True)
class CaseSheet:
    """A picture (WebP) of the worst, the median and the best case of a run."""

    name: str
    title: str
    caption: str
    webp: bytes = field(repr=False)

    @property
    def data_url(self) -> str:
        """The picture as a part of a page."""
        return f"data:image/webp;base64,{base64.b64encode(self.webp).decode()}"


def draw_sheets(summary: Summary) -> list[CaseSheet]:
    """Return a sheet for each way of the first families, if their runs have kept cases."""
    sheets: list[CaseSheet] = []
    for number, family in enumerate(summary.families[:MAX_FAMILIES], 1):
        for at, cell in enumerate(family.largest_cells, 1):
            kept = _typical(cell) if len(sheets) < MAX_SHEETS else None
            if kept is None:
                continue
            trial, shown = kept
            heading = f"{cell.label}: {family.title}" if family.title else cell.label
            sheets.append(
                CaseSheet(
                    name=f"cases-{number}-{at}",
                    title=heading,
                    caption=_caption(cell, trial, shown),
                    webp=_drawn(trial, shown),
                )
            )
    return sheets


def _typical(cell: Cell) -> tuple[TrialRecord, ShownCases] | None:
    """Return the repeat with the median Dice among those that kept cases."""
    kept: dict[str, tuple[float, TrialRecord, ShownCases]] = {}
    for trial in cell.done:
        try:
            shown = read_shown_cases(trial.folder)
        except RecordError:
            continue  # The report names the file among its doubts.
        if shown is not None and trial.result is not None:
            kept[trial.id] = (trial.result.mean_dice or 0.0, trial, shown)
    if not kept:
        return None
    middle = median_low(dice for dice, _, _ in kept.values())
    return next((trial, shown) for dice, trial, shown in kept.values() if dice == middle)


def _caption(cell: Cell, trial: TrialRecord, shown: ShownCases) -> str:
    which = (
        f"Repeat {trial.repeat} of {len(cell.trials)}, the one with the median Dice. "
        if len(cell.trials) > 1
        else ""
    )
    cases = "; ".join(f"{case.rank}: {case.case_id}" for case in shown.cases)
    return f"{which}Validation cases by their mean Dice, {cases}."


def _drawn(trial: TrialRecord, shown: ShownCases) -> bytes:
    scores = dice_by_case(trial.folder)
    with rc_context(RC):
        figure = draw_cases(shown, scores)
        file = io.BytesIO()
        figure.savefig(
            file, format="webp", dpi=DOTS_PER_INCH, pil_kwargs={"quality": QUALITY, "method": 6}
        )
    return file.getvalue()


def draw_cases(shown: ShownCases, scores: dict[str, dict[str, float]]) -> Figure:
    """Draw image, mask, prediction and errors of each case, a line for each plane."""
    heights = [[_height(plane) for plane in case.planes] for case in shown.cases]
    blocks = [sum(lines) + HEADING for lines in heights]
    figure = Figure(figsize=(WIDTH, sum(blocks) + LEGEND), layout="constrained")
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=blocks).flat
    for part, case, lines in zip(parts, shown.cases, heights, strict=True):
        part.suptitle(_heading(case, scores), x=0.01, ha="left", fontsize=9.5, weight="bold")
        grid = part.subplots(
            len(lines), len(COLUMNS), squeeze=False, gridspec_kw={"height_ratios": lines}
        )
        for row, (line, plane) in enumerate(zip(grid, case.planes, strict=True)):
            _draw_plane(line, plane)
            titles = (plane.title or "image", *COLUMNS[1:]) if row == 0 else (plane.title,)
            for axes, title in zip(line, titles, strict=False):
                axes.set_title(title, fontsize=8, weight="normal")
    handles = [
        Patch(color=colour_of(label), label=name) for label, name in shown.label_names.items()
    ]
    kinds = list(DIFFERENCES.values())[: 2 if len(shown.label_names) == 1 else 3]
    handles += [Patch(color=colour, label=name) for name, colour in kinds]
    figure.legend(handles=handles, loc="outside lower left", ncols=4)
    return figure


def _draw_plane(line: Sequence[Any], plane: ShownPlane) -> None:
    wrong = np.zeros((*plane.mask.shape, 4), np.float32)
    kinds = differences(plane.mask, plane.labels)
    for kind, (_, colour) in DIFFERENCES.items():
        wrong[kinds == kind] = to_rgba(colour, 0.85)
    layers = (None, overlay(plane.mask), overlay(plane.labels), wrong)
    for axes, layer in zip(line, layers, strict=True):
        axes.imshow(plane.image, cmap="gray", vmin=0, vmax=255)
        if layer is not None:
            axes.imshow(layer, interpolation="nearest")
        axes.set_axis_off()


def _height(plane: ShownPlane) -> float:
    """Return the height of a line in inches."""
    rows, columns = plane.image.shape
    return WIDTH / len(COLUMNS) * min(rows / columns, 1.6) + TITLE


def _heading(case: ShownCase, scores: dict[str, dict[str, float]]) -> str:
    by_region = scores.get(case.case_id, {})
    values = ", ".join(f"{region} {value:.3f}" for region, value in by_region.items())
    if len(by_region) > 1:
        values = f"{fmean(by_region.values()):.3f} ({values})"
    return f"{case.rank.capitalize()}: {case.case_id}{f', Dice {values}' if values else ''}"


def differences(mask: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the labels of `DIFFERENCES` where the two differ, and 0 where they agree."""
    return np.select([mask == predicted, mask == 0, predicted == 0], [0, 1, 2], 3).astype(np.uint8)
