"""Tables of the worst and best cases of a sweep, and the runs whose networks are at hand."""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.confidence_intervals import spread
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.report.number_text import spread_text
from tfunet.record import MODEL, RunFolder

# Number of worst and of best cases in a table.
SHOWN = 5


def case_rows(family: Family, shown: int = SHOWN) -> list[dict[str, str]]:
    """Return a row for each case, the worst first: mean Dice over regions in each cell.

    If there are many cases, only the `shown` worst and the `shown` best ones are returned.
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
    """Return the cases of a run with the lowest and the highest mean Dice over regions.

    Raises ValueError for a run without scores of cases.
    """
    mean_dice = {case: fmean(regions.values()) for case, regions in dice_by_case(run).items()}
    if not mean_dice:
        raise ValueError(
            f"{run} has no scores of cases (cases.csv): set `cases` to the names of those to show."
        )
    return list(
        dict.fromkeys(
            [min(mean_dice, key=mean_dice.__getitem__), max(mean_dice, key=mean_dice.__getitem__)]
        )
    )


def find_run(sweep: str | Path, run: str) -> Path:
    """Return the folder of a run that kept its network; raise ValueError if there is none.

    `run` is the name of a run in `sweep`, a pattern such as "single-1r-r1-*", or another path.
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
    with_model = [folder for folder in runs if RunFolder(folder).model_path()]
    if not with_model:
        raise ValueError(
            f"{runs[0]} has no {MODEL}, which makes the predictions; shared records are often kept "
            f"without it. Put {MODEL} and data.json there, or train the run again and set `run` to "
            f"its new folder: tfunet train --config {runs[0] / 'config.toml'} --out FOLDER"
        )
    return with_model[0]


def _mean(values: Mapping[str, Sequence[float]]) -> float:
    return fmean(value for means in values.values() for value in means)
