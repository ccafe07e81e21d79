"""What a report says of a run that is compared with no other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.sweep_summary import Family, Summary
from tfunet.bench.records.run_tables import read_cases, read_history
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report.number_text import plain_text
from tfunet.bench.report.tables import family_heading
from tfunet.learning.dataset_scores import RegionScores, absent_line, region_scores, score_rows
from tfunet.process.terminal import counted

# Columns that say how runs compare.
OF_SEVERAL_RUNS = (
    *("repeats", "speed-up", "efficiency", "serial share", "device-hours a run", "device-hours"),
    "reached",
)
# So many cases, the worst ones, are printed.
MOST_PRINTED = 10
# Columns that name a row among others.
NAMES = ("backend", "replicas")


def shown_rows(summary: Summary, rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of a table; of a run alone without the columns that compare runs."""
    if summary.lone_run is None:
        return rows
    rows = [
        {name: text for name, text in row.items() if name not in OF_SEVERAL_RUNS} for row in rows
    ]
    return [row for row in rows if any(name not in NAMES for name in row)]


def heading(summary: Summary, family: Family) -> str:
    """Return the line above a family's table; "" where nothing is compared."""
    return "" if summary.lone_run is not None else family_heading(family)


def score_tables(summary: Summary) -> dict[str, Any]:
    """Return the scores of a run alone: `regions` and `cases`, rows of two tables, the case with
    the lowest Dice first; and `absent`, which means over cases say little.
    """
    if summary.lone_run is None:
        return {"regions": [], "absent": "", "cases": []}
    found = _regions(summary.lone_run.folder)
    return {
        "regions": score_rows(found),
        "absent": absent_line(found),
        "cases": _case_rows(dice_by_case(summary.lone_run.folder)),
    }


def score_blocks(summary: Summary) -> list[str]:
    """Return the scores of a run alone for a terminal."""
    tables = score_tables(summary)
    regions = [*plain_text(tables["regions"]), *filter(None, [tables["absent"]])]
    return ["\n".join(lines) for lines in (regions, _worst_cases(tables["cases"])) if lines]


def _case_rows(cases: Mapping[str, Mapping[str, float]]) -> list[dict[str, str]]:
    ranked = sorted(cases, key=lambda case: sum(cases[case].values()) / len(cases[case]))
    return [
        {"case": case, **{f"Dice {region}": f"{dice:.3f}" for region, dice in cases[case].items()}}
        for case in ranked
    ]


def _worst_cases(rows: list[dict[str, str]]) -> list[str]:
    """Return the worst cases as lines for a terminal, and where the others are."""
    lines = plain_text(rows[:MOST_PRINTED])
    if len(rows) > MOST_PRINTED:
        lines.append(
            f"These are the worst {MOST_PRINTED} of {len(rows)} validation cases. The report and "
            "cases.csv have all."
        )
    return lines


def lone_answer(run: TrialRecord) -> str:
    """Return the scores of a run in a sentence: those of its last evaluation if it is not done."""
    result = run.result
    if result is not None and result.scores:
        shown = ", ".join(
            f"{name} {value:.4g}"
            for name in result.scores
            if (value := result.value_of(name)) is not None
        )
        return f"{run.id} has {shown}, after {counted(result.steps or 0, 'step')}."
    dice, errors = _last_scores(run.folder) if result is None else (result.dice, result.mae)
    state = run.reason.removeprefix(f"{run.state}: ")
    state = f"{run.state}: {state}" if state else run.state
    if result is None and not dice and not errors:
        return f"{run.id} has no scores yet. Its state is {state}."
    values = [f"{value:.3f} ({region})" for region, value in dice.items()]
    values = values or [f"{value:.3g} ({target})" for target, value in errors.items()]
    measure = "mean Dice" if dice else "mean absolute error"
    cases = len(dice_by_case(run.folder))
    over = f" over {counted(cases, 'validation case')}" if cases else ""
    trained = f", after {counted(result.steps, 'step')}" if result and result.steps else ""
    end = "" if result is not None else f" in its last evaluation. Its state is {state}"
    return f"{run.id} has a {measure} of {', '.join(values)}{over}{trained}{end}."


def _last_scores(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return Dice by region and errors by target of a run's last evaluation, done or not."""
    dice = {region: its.dice for region, its in _regions(folder).items()}
    history = read_history(folder)
    errors = {
        name.removeprefix("mae_"): known[-1]
        for name, values in history.items()
        if name.startswith("mae_") and (known := [value for value in values if value is not None])
    }
    return dice, errors


def _regions(folder: Path) -> dict[str, RegionScores]:
    table = read_cases(folder)
    return region_scores(
        dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)
    )
