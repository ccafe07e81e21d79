"""The tables of `tfunet evaluate`: scores of regions, with their spread over cases."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tfunet.config.case_metrics import possible_range
from tfunet.files.table import csv_line
from tfunet.learning.dataset_scores import RegionScores, region_scores, score_text
from tfunet.learning.student_t import CaseSpread, case_spread

# The scores that each case has, whatever the metrics are, and their titles.
ALWAYS = {"dice": "Dice", "iou": "IoU"}

Rows = Sequence[Mapping[str, Any]]


def region_facts(rows: Rows, metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return for each region its scores, and the spread over cases of each; see docs/predict.md."""
    return {
        region: _facts(its, _spreads(rows, region, metrics))
        for region, its in region_scores(rows).items()
    }


def spread_rows(rows: Rows, metrics: Sequence[str]) -> list[dict[str, str]]:
    """Return a row of texts for each region and score: Dice, if there are two cases, and metrics.

    IoU, which says the same as Dice, is left to the file.
    """
    table = []
    for region, its in region_scores(rows).items():
        shown = [*(["dice"] if its.cases > 1 else []), *metrics]
        spreads = _spreads(rows, region, metrics)
        for name in shown:
            its_spread = spreads[name]
            table.append(
                {
                    "region": region,
                    "score": ALWAYS.get(name, name),
                    "cases": str(its_spread.cases),
                    "mean": score_text(its_spread.mean),
                    "sd": score_text(its_spread.sd),
                    "median": score_text(its_spread.median),
                    "95 % interval of the mean": _interval_text(its_spread),
                }
            )
    return table


def table_csv(rows: Sequence[Mapping[str, Any]], header: Sequence[str] | None = None) -> str:
    """Return rows as CSV; empty where a value is not defined."""
    names = list(rows[0]) if header is None else list(header)
    lines = (["" if is_nan(row[name]) else row[name] for name in names] for row in rows)
    return "".join(map(csv_line, [names, *lines]))


def without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for JSON: None where a value is not defined."""
    return {name: None if is_nan(value) else value for name, value in row.items()}


def is_nan(value: Any) -> bool:
    """Whether a value is a number that is not defined."""
    return isinstance(value, float) and math.isnan(value)


def _spreads(rows: Rows, region: str, metrics: Iterable[str]) -> dict[str, CaseSpread]:
    its = [row for row in rows if row["region"] == region]
    return {
        name: case_spread([row[name] for row in its], *possible_range(name))
        for name in (*ALWAYS, *metrics)
    }


def _facts(its: RegionScores, spreads: Mapping[str, CaseSpread]) -> dict[str, Any]:
    facts = asdict(its)
    for name, spread in spreads.items():
        # All cases have these, and their means are there.
        facts |= {} if name in ALWAYS else {f"{name}_cases": spread.cases, name: spread.mean}
        values = asdict(spread)
        facts |= {f"{name}_{key}": values[key] for key in ("sd", "median", "low", "high")}
    return facts


def _interval_text(spread: CaseSpread) -> str:
    return "-" if math.isnan(spread.low) else f"{spread.low:.3f} to {spread.high:.3f}"
