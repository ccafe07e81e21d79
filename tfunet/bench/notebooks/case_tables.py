"""Dice of single cases: the worst and the best of a sweep, and of a run. Pure but for reading."""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.confidence_intervals import spread
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.report.number_text import spread_text

# Cases at each end of a table.
SHOWN = 5
MODEL = "model.keras"


def case_rows(family: Family, shown: int = SHOWN) -> list[dict[str, str]]:
    """Return a row a case, the worst first: mean Dice over regions, a column for each cell.

    Of many cases only the `shown` worst and as many best ones.
    """
    columns = {
        cell.label: [dice_by_case(trial.folder) for trial in cell.done]
        for cell in family.cells
        if cell.done
    }
    values: dict[str, dict[str, list[float]]] = {}
    for label, runs in columns.items():
        for run in runs:
            for case, regions in run.items():
                means = values.setdefault(case, {}).setdefault(label, [])
                means.append(fmean(regions.values()))
    order = sorted(values, key=lambda case: _mean(values[case]))
    kept = order if len(order) <= 2 * shown else [*order[:shown], *order[-shown:]]
    return [
        {"case": case, "mean": f"{_mean(values[case]):.3f}"}
        | {
            label: spread_text(
                spread(label_dice) if (label_dice := values[case].get(label)) else None, 3
            )
            for label in columns
        }
        for case in kept
    ]


def worst_and_best(run: Path) -> list[str]:
    """Return the case of a run with the lowest mean Dice over regions, and the highest.

    Raises ValueError for a run without scores of cases.
    """
    mean_dice = {case: fmean(regions.values()) for case, regions in dice_by_case(run).items()}
    if not mean_dice:
        raise ValueError(
            f"{run} has no scores of cases (cases.csv): name the cases to show, as `cases`."
        )
    return list(
        dict.fromkeys(
            [min(mean_dice, key=mean_dice.__getitem__), max(mean_dice, key=mean_dice.__getitem__)]
        )
    )


def find_run(sweep: str | Path, run: str) -> Path:
    """Return the folder of a run that kept its network.

    Args:
        sweep: A sweep's folder.
        run: The run's name in it, or a pattern of it such as "single-1r-r1-*", or another path.

    Raises ValueError that says what to do where there is none.
    """
    place = Path(sweep)
    # An absolute path stays itself.
    paths = [Path(path) for path in sorted(glob.glob(str(place / run)))]
    runs = [path for path in paths if (path / "config.json").is_file()]
    if not runs:
        there = sorted(config.parent.name for config in place.glob("*/config.json"))
        raise ValueError(
            f"There is no run {run!r} in {str(sweep)!r}. Runs there: {', '.join(there) or 'none'}. "
            "Set `run` to one of them, or to the folder of another run."
        )
    with_model = [folder for folder in runs if (folder / MODEL).is_file()]
    if not with_model:
        raise ValueError(
            f"{runs[0]} has no {MODEL}, with which predictions are made; shared records are often "
            f"kept without it. Train it again (tfunet train --config {runs[0] / 'config.toml'} "
            "--out FOLDER, where its paths to data are right) and set `run` to that folder, or put "
            f"{MODEL} and data.json there."
        )
    return with_model[0]


def _mean(values: Mapping[str, Sequence[float]]) -> float:
    return fmean(value for means in values.values() for value in means)
