"""Draws validation cases of each way of training as one picture. Needs matplotlib."""

import base64
import io
from dataclasses import dataclass, field
from statistics import fmean, median_low

from matplotlib import rc_context

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Summary
from tfunet.bench.records.shown_cases import ShownCase, ShownCases, read_shown_cases
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report.plot_style import RC, WIDTH
from tfunet.bench.report.plots import MAX_FAMILIES
from tfunet.data.error_figure import draw_cases
from tfunet.files.typed import RecordError

DOTS_PER_INCH = 130
QUALITY = 80
# A sheet is some hundred kilobytes of the page.
MAX_SHEETS = 12


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
    fold = f" (fold {trial.config.fold})" if cell.num_folds > 1 else ""
    which = (
        f"Repeat {trial.repeat} of {len(cell.trials)}{fold}, the one with the median Dice. "
        if len(cell.trials) > 1
        else ""
    )
    cases = "; ".join(f"{case.rank}: {case.case_id}" for case in shown.cases)
    return f"{which}Validation cases by their mean Dice, {cases}."


def _drawn(trial: TrialRecord, shown: ShownCases) -> bytes:
    scores = dice_by_case(trial.folder)
    with rc_context(RC):
        cases = {_heading(case, scores): case.planes for case in shown.cases}
        figure = draw_cases(cases, shown.label_names, width=WIDTH)
        file = io.BytesIO()
        figure.savefig(
            file, format="webp", dpi=DOTS_PER_INCH, pil_kwargs={"quality": QUALITY, "method": 6}
        )
    return file.getvalue()


def _heading(case: ShownCase, scores: dict[str, dict[str, float]]) -> str:
    by_region = scores.get(case.case_id, {})
    values = ", ".join(f"{region} {value:.3f}" for region, value in by_region.items())
    if len(by_region) > 1:
        values = f"{fmean(by_region.values()):.3f} ({values})"
    return f"{case.rank.capitalize()}: {case.case_id}{f', Dice {values}' if values else ''}"
