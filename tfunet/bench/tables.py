"""The tables of a report, as rows of texts: the same ones in HTML, Markdown, CSV and a terminal."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from tfunet.bench.collect import TrialRecord
from tfunet.bench.comparison import Cell, Family, Summary, way_of
from tfunet.bench.settings import describe
from tfunet.bench.stats import Estimate, Spread
from tfunet.bench.text import columns

GIB = 2.0**30
NONE = "-"


def summary_rows(family: Family) -> list[dict[str, str]]:
    """Return a row a cell: medians over the repeats, with the lowest and the highest."""
    regions = list(dict.fromkeys(region for cell in family.cells for region in cell.regions))
    has_device = any(cell.device_bytes for cell in family.cells)
    rows = []
    for cell in family.cells:
        row = {
            "backend": cell.way,
            "replicas": str(cell.num_replicas),
            "repeats": _repeats(cell),
            "images/s": spread_text(cell.images_per_second, 1),
            "speed-up": _speed_up(cell),
            "efficiency": NONE if cell.efficiency is None else f"{cell.efficiency:.2f}",
        }
        row |= {f"Dice {region}": spread_text(cell.dice(region), 3) for region in regions}
        row["memory (GiB)"] = _gibibytes(cell.resident_bytes)
        if has_device:
            row["device memory (GiB)"] = _gibibytes(cell.device_bytes)
        rows.append(row)
    return rows


def spread_text(spread: Spread | None, digits: int) -> str:
    """Return "20.9 [18.6, 22.9]": the median, then the lowest and the highest."""
    if spread is None:
        return NONE
    median, low, high = (
        f"{value:.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    return median if len(spread.values) == 1 else f"{median} [{low}, {high}]"


def estimate_text(estimate: Estimate | None) -> str:
    """Return "1.89 (1.73 to 2.03)": the estimate, then its interval if there is one."""
    if estimate is None:
        return NONE
    if estimate.method == "none":
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def trial_row(trial: TrialRecord) -> dict[str, str]:
    """Return one trial, done or not, for people."""
    result = trial.result
    row = {
        "trial": trial.id,
        "backend": way_of(trial),
        "replicas": str(trial.config.num_replicas),
        "repeat": str(trial.repeat),
        "state": trial.state,
        "images/s": NONE,
        "Dice": NONE,
        "seconds": NONE,
        "reason": trial.reason,
    }
    if result is not None:
        row["images/s"] = f"{result.images_per_second:.1f}"
        row["Dice"] = _number(result.mean_dice, 3)
        row["seconds"] = _number(result.elapsed_seconds, 1)
    return row


def trial_facts(trial: TrialRecord) -> dict[str, Any]:
    """Return one trial for programs: every number unrounded, settings and reason."""
    result = trial.result
    facts: dict[str, Any] = {
        "trial": trial.id,
        "state": trial.state,
        "reason": trial.reason,
        "repeat": trial.repeat,
        "seed": trial.config.seed,
        "scaling": trial.scaling,
        **trial.settings,
        "replica_batch": trial.config.replica_batch,
        "global_batch": trial.config.global_batch,
    }
    if result is not None:
        numbers = dict(vars(result))
        for name in ("checks", "samples_hash", "weights_hash", "num_replicas"):
            numbers.pop(name)
        for score in ("dice", "iou"):
            numbers.update({f"{score}_{key}": one for key, one in numbers.pop(score).items()})
        for name in ("peak_resident_bytes", "peak_device_bytes"):
            numbers[name] = " ".join(map(str, numbers[name]))
        facts |= numbers
    return facts


def cell_facts(family: Family, cell: Cell) -> dict[str, Any]:
    """Return one cell for programs: unrounded."""
    facts: dict[str, Any] = {
        "scaling": family.scaling,
        **family.settings,
        "backend": cell.way,
        "num_replicas": cell.num_replicas,
        "replica_batch": cell.replica_batch,
        "global_batch": cell.global_batch,
        "repeats_done": len(cell.done),
        "repeats": len(cell.trials),
    }
    facts |= _spread_facts("images_per_second", cell.images_per_second)
    if cell.speed_up is not None:
        facts |= {
            "speed_up": cell.speed_up.value,
            "speed_up_low": cell.speed_up.low,
            "speed_up_high": cell.speed_up.high,
            "efficiency": cell.efficiency,
        }
    for region in cell.regions:
        facts |= _spread_facts(f"dice_{region}", cell.dice(region))
        facts |= _spread_facts(f"iou_{region}", cell.iou(region))
    facts |= _spread_facts("peak_resident_bytes", cell.resident_bytes)
    facts |= _spread_facts("peak_device_bytes", cell.device_bytes)
    return facts


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; a column for every key that any row has."""
    file = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def plain_text(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return rows as lines for a terminal, the header first."""
    return columns([list(rows[0]), *(list(row.values()) for row in rows)]) if rows else []


def markdown_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as a Markdown table."""
    if not rows:
        return ""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def family_heading(family: Family) -> str:
    """Return what a family's table is headed by: its settings, scaling and baseline."""
    settings = describe({key: one for key, one in family.settings.items() if key != "scaling"})
    fixed = "replica_batch" if family.scaling == "weak" else "global_batch"
    baseline = f"one replica of {family.baseline}" if family.baseline else "each its own replica"
    what = f"{family.scaling} scaling (fixed {fixed}); speed-up against {baseline}"
    return f"{settings}: {what}" if settings else what.capitalize()


def skipped_rows(summary: Summary) -> list[dict[str, str]]:
    """Return a row for each cell that the plan left out."""
    return [
        {"cell": describe(one.get("settings", {})), "reason": str(one.get("reason", ""))}
        for one in summary.sweep.skipped
    ]


def _repeats(cell: Cell) -> str:
    done, planned = len(cell.done), len(cell.trials)
    return str(done) if done == planned else f"{done} of {planned}"


def _speed_up(cell: Cell) -> str:
    return "1 (baseline)" if cell.is_baseline and cell.results else estimate_text(cell.speed_up)


def _gibibytes(spread: Spread | None) -> str:
    # The median alone: repeats differ in the third digit.
    return NONE if spread is None else f"{spread.median / GIB:.2f}"


def _spread_facts(name: str, spread: Spread | None) -> dict[str, float]:
    if spread is None:
        return {}
    return {name: spread.median, f"{name}_low": spread.low, f"{name}_high": spread.high}


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
