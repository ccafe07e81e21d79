"""The plan of a study as plan.json has it, and as a table for a terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

from tfunet.backend import num_processes
from tfunet.bench.study.study_file import Study
from tfunet.bench.study.trial_plan import Skipped, StudyPlan
from tfunet.config.keys import describe, show
from tfunet.process.terminal import columns, counted

PLAN_VERSION = 1


def plan_json(planned: StudyPlan) -> dict[str, Any]:
    """Return the plan for plan.json; `base` with a trial's `changes` is its configuration."""
    base = planned.trials[0].config.values()
    samples = planned.study.samples
    return {
        "schema_version": PLAN_VERSION,
        "study": planned.study.name,
        "repeats": planned.study.repeats,
        "seed": planned.study.seed,
        "base": base,
        "trials": [
            {
                "id": trial.id,
                "cell": trial.cell,
                "repeat": trial.repeat,
                "scaling": trial.scaling,
                "settings": dict(trial.settings),
                "changes": {
                    key: value
                    for key, value in vars(trial.config).items()
                    if value != base.get(key, {})
                },
            }
            for trial in planned.trials
        ],
        "skipped": [
            {"settings": dict(cell.settings), "reason": cell.reason} for cell in planned.skipped
        ],
        "notes": list(planned.notes),
        **({"samples": list(samples.columns)} if samples is not None else {}),
    }


def plan_table(planned: StudyPlan) -> str:
    """Return a line for each trial in the order in which they run, then skipped cells and notes."""
    study = planned.study
    keys = [key for key in planned.trials[0].settings if key not in ("backend", "num_replicas")]
    rows = [["#", "trial", "backend", "replicas", "processes", *keys, "seed"]]
    for number, trial in enumerate(planned.trials, 1):
        config = trial.config
        shape = [config.backend, config.num_replicas, num_processes(config)]
        values = [show(trial.settings[key]) for key in keys]
        rows.append([str(value) for value in (number, trial.id, *shape, *values, config.seed)])
    cells = len({trial.cell for trial in planned.trials})
    lines = [
        f"Study {study.name}: {counted(len(planned.trials), 'trial')} "
        f"({counted(cells, 'cell')}, {counted(study.repeats, 'repeat')}; "
        f"order from seed {study.seed}).",
        "",
        *columns(rows),
    ]
    return "\n".join([*lines, *_skipped_lines(planned.skipped), *planned.notes])


def search_json(study: Study) -> dict[str, Any]:
    """Return what a study searches, for JSON: its trials are known only as they run."""
    space = {key: entry.table() for key, entry in study.space.items()}
    return {"study": study.name, "search": {**vars(study.search), "space": space}}


def search_text(study: Study) -> str:
    """Return the same as text."""
    search = search_json(study)["search"]
    space = search.pop("space")
    lines = [f"Study {study.name}: a search of {search.pop('trials')} trials.", ""]
    rows = [[key, str(value)] for key, value in search.items()]
    rows += [["searched", ""], *([key, _entry_text(entry)] for key, entry in space.items())]
    return "\n".join([*lines, *columns(rows)])


def _entry_text(entry: Any) -> str:
    if isinstance(entry, list):
        return ", ".join(map(show, entry))
    words = [name for name in ("log",) if entry.get(name)]
    words += [f"{name} {entry[name]}" for name in ("step",) if name in entry]
    return ", ".join([f"{entry['low']} to {entry['high']}", *words])


def _skipped_lines(skipped: Sequence[Skipped], most: int = 5) -> Iterator[str]:
    if skipped:
        yield ""
        yield f"Skipped: {counted(len(skipped), 'cell')}."
    for reason in dict.fromkeys(cell.reason for cell in skipped):
        cells = [describe(cell.settings) for cell in skipped if cell.reason == reason]
        yield f"  {reason}:"
        yield from (f"    {cell}" for cell in cells[:most])
        if len(cells) > most:
            yield f"    and {len(cells) - most} more"
