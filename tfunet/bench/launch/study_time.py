"""How long the trials of a study take, from the records of the same trials."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfunet.bench.launch.time_left import TimeLeft, duration
from tfunet.bench.records.sweep_record import FINISHED, TrialRecord, read_sweep
from tfunet.bench.study.trial_plan import StudyPlan
from tfunet.config.tournament import read_tournament


def time_json(planned: StudyPlan, folder: Path) -> dict[str, Any]:
    """Return the seconds of all trials, and of those that are not done; None if not known.

    Each cell takes as long as its trials in `folder`, and one without any as long as the others.
    """
    records = _records(folder)
    seconds: dict[int, list[float]] = {}
    for trial in planned.trials:
        record = records.get(trial.id)
        if record is None or record.result is None or not record.result.elapsed_seconds:
            continue
        # The trainers of a population train at the same time, or take turns.
        tournament = read_tournament(trial.config.tournament)
        together = 1 if tournament is None else tournament.trainers
        seconds.setdefault(trial.cell, []).append(record.result.elapsed_seconds / together)
    ended = {name for name, record in records.items() if record.state in FINISHED}
    waiting = [trial for trial in planned.trials if trial.id not in ended]
    return {
        "seconds": TimeLeft(planned.trials, seconds).seconds,
        "seconds_left": TimeLeft(waiting, seconds).seconds,
        "from_trials": sum(map(len, seconds.values())),
    }


def time_text(planned: StudyPlan, folder: Path) -> str:
    """Return the same in words, or how to find out."""
    time = time_json(planned, folder)
    if time["seconds"] is None:
        return (
            f"Time: not known, since no trial of this study has ended in {folder}. `tfunet sweep "
            "run` says it after the first trial; it can be stopped, and goes on."
        )
    known = time["from_trials"]
    return (
        f"Time: about {duration(time['seconds'])} for all trials one after the other, of which "
        f"{duration(time['seconds_left'])} are left (from {known} of them in {folder})."
    )


def _records(folder: Path) -> Mapping[str, TrialRecord]:
    if not (folder / "plan.json").is_file():
        return {}
    return {trial.id: trial for trial in read_sweep(folder).trials}
