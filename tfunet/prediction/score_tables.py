"""The tables of `tfunet evaluate`: scores of regions, with their spread over cases."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tfunet.config.case_metrics import possible_range
from tfunet.files.table import csv_line
from tfunet.learning.confusion import accuracies
from tfunet.learning.dataset_scores import RegionScores, mean_of, region_scores, score_text
from tfunet.learning.student_t import CaseSpread, case_spread
from tfunet.process.terminal import columns

# The scores that each case has, whatever the metrics are, and their titles.
ALWAYS = {"dice": "Dice", "iou": "IoU"}
# With more groups, their means are in the file only.
MOST_GROUPS = 20

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


def group_facts(rows: Rows, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return `region_facts` of each group of cases as rows; none where rows name no group."""
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if "group" in row:
            by_group.setdefault(row["group"], []).append(row)
    return [
        {"group": group, "region": region, **facts}
        for group in sorted(by_group)
        for region, facts in region_facts(by_group[group], metrics).items()
    ]


def group_rows(rows: Rows, metrics: Sequence[str]) -> list[dict[str, str]]:
    """Return a row of texts for each group and region; none unless a few groups have several
    cases.
    """
    cases = {row["case"] for row in rows}
    groups = {row["group"] for row in rows if "group" in row}
    if not 1 < len(groups) <= MOST_GROUPS or len(groups) == len(cases):
        return []
    means = {**{title: name for name, title in ALWAYS.items()}, **{name: name for name in metrics}}
    return [
        {
            **{name: str(facts[name]) for name in ("group", "region", "cases", "present")},
            **{title: score_text(facts[name]) for title, name in means.items()},
        }
        for facts in group_facts(rows, metrics)
    ]


def table_csv(rows: Sequence[Mapping[str, Any]], header: Sequence[str] | None = None) -> str:
    """Return rows as CSV; empty where a value is not defined."""
    names = list(rows[0]) if header is None else list(header)
    lines = (["" if _is_nan(row[name]) else row[name] for name in names] for row in rows)
    return "".join(map(csv_line, [names, *lines]))


def table_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return rows of texts as lines for a terminal, header first."""
    return columns([list(rows[0]), *(list(row.values()) for row in rows)])


def json_text(rows: Rows, metrics: Sequence[str], confusion: np.ndarray) -> str:
    """Return the rows of cases, regions and groups, and the scores of the data set as JSON."""
    found = region_scores(rows)
    groups = [_without_nan(row) for row in group_facts(rows, metrics)]
    facts = region_facts(rows, metrics)
    of_pixels, of_classes = accuracies(confusion)
    means = {
        "mean_dice": mean_of(found, "dice"),
        "miou": mean_of(found, "dataset_iou"),
        "pixel_accuracy": of_pixels,
        "mean_class_accuracy": of_classes,
    }
    table = {
        "scores": [_without_nan(row) for row in rows],
        "regions": {region: _without_nan(its) for region, its in facts.items()},
        **({"groups": groups} if groups else {}),
        **_without_nan(means),
    }
    return json.dumps(table, indent=1)


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for JSON: None where a value is not defined."""
    return {name: None if _is_nan(value) else value for name, value in row.items()}


def _is_nan(value: Any) -> bool:
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
