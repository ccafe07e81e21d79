"""What a report says of a run that is compared with no other."""

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.sweep_summary import Family, Summary
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report.number_text import plain_text
from tfunet.bench.report.tables import family_heading
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


def case_rows(summary: Summary) -> list[dict[str, str]]:
    """Return a row for each case of a run alone, that of the lowest Dice first."""
    cases = dice_by_case(summary.lone_run.folder) if summary.lone_run is not None else {}
    ranked = sorted(cases, key=lambda case: sum(cases[case].values()) / len(cases[case]))
    return [
        {"case": case, **{f"Dice {region}": f"{dice:.3f}" for region, dice in cases[case].items()}}
        for case in ranked
    ]


def worst_cases(rows: list[dict[str, str]]) -> list[str]:
    """Return the first rows of `case_rows` as lines for a terminal, and where the others are."""
    lines = plain_text(rows[:MOST_PRINTED])
    if len(rows) > MOST_PRINTED:
        lines.append(
            f"These are the worst {MOST_PRINTED} of {len(rows)} validation cases. The report and "
            "cases.csv have all."
        )
    return lines


def lone_answer(run: TrialRecord) -> str:
    """Return the scores of a run in a sentence."""
    result = run.result
    if result is None:
        return f"{run.id} has no scores yet: {run.reason or run.state}."
    dice = [f"{value:.3f} ({region})" for region, value in result.dice.items()]
    errors = [f"{value:.3g} ({target})" for target, value in result.mae.items()]
    measure = "mean Dice" if dice else "mean absolute error"
    cases = len(dice_by_case(run.folder))
    over = f" over {counted(cases, 'validation case')}" if cases else ""
    trained = f", after {counted(result.steps, 'step')}" if result.steps else ""
    return f"{run.id} has a {measure} of {', '.join(dice or errors)}{over}{trained}."
