"""Runs a study under SLURM: writes job scripts, submits them, waits for their trials."""

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tfunet import exit_codes
from tfunet.bench.launch.local_sweep import NOT_DONE, say_now
from tfunet.bench.launch.one_trial import first_exit_code
from tfunet.bench.launch.population_trials import expect, goes_on
from tfunet.bench.launch.slurm_job_script import ArrayJob, job_script, jobs_of
from tfunet.bench.launch.slurm_queue import SCRIPTS, NoAnswerError, queued_trials, submit
from tfunet.bench.launch.sweep_folder import adopted, set_aside, write_plan
from tfunet.bench.launch.sweep_status import current, overlay
from tfunet.bench.records.sweep_record import FINISHED, read_sweep
from tfunet.bench.study.study_file import Study
from tfunet.bench.study.trial_plan import StudyPlan, plan_trials
from tfunet.config.tournament import read_tournament
from tfunet.files.atomic import write_atomic
from tfunet.machine.environment import code_hash
from tfunet.process.launcher_variables import check_alone
from tfunet.process.terminal import counted
from tfunet.record import RunFolder

POLL_SECONDS = 5.0
# A shared disk may take this long to show what a job wrote last.
LATE_SECONDS = 10.0


def submit_sweep(
    study: Study,
    folder: str | Path,
    *,
    states: Collection[str] = NOT_DONE,
    refuses: bool = False,
    say: Callable[[str], None] = say_now,
) -> list[str]:
    """Submit the trials of `study` that are in one of `states`, and return SLURM's job numbers.

    Trials that are queued or run already are not submitted again. Raises ValueError, before
    anything is submitted, if a trial that was run is no longer in the study, and if SLURM refuses a
    script or does not answer. With `refuses`, also if `tfunet train` would refuse trials.
    """
    check_alone(os.environ, "submit the whole sweep")
    planned = _planned(study)
    root = Path(folder)
    RunFolder(root).create()
    with RunFolder(root).locked():
        planned = adopted(planned, root)
        queued = queued_trials(root)
        if gone := queued.keys() - {trial.id for trial in planned.trials}:
            raise ValueError(
                f"{root} has {counted(len(gone), 'trial')} in SLURM's queue that are not in the "
                f"study: {', '.join(sorted(gone)[:3])}. Cancel it (tfunet sweep cancel), or choose "
                "another folder with --out."
            )
        write_plan(planned, root)
        sweep = overlay(read_sweep(root), queued)
        due = [trial for trial in sweep.trials if trial.state in states and not trial.job]
        todo = [(trial.id, trial.config) for trial in due]
        if refuses:
            from tfunet.bench.study.refusals import refusals, refuse

            refuse(refusals(planned, [name for name, _ in todo]))
        say(f"{sweep.name}: {len(todo)} of {len(sweep.trials)} trials to submit in {root}.")
        for trial in due:
            tournament = read_tournament(trial.config.tournament)
            # Jobs that begin earlier must not judge by the old failure.
            if trial.state == "failed" and not goes_on(trial):
                set_aside(trial.folder, root)
            if tournament is not None:
                expect(trial, tournament)
        numbers = []
        for path, text, job in _scripts(study, root, jobs_of(todo, study.slurm)):
            RunFolder(path.parent).create_inside()
            write_atomic(path, text)
            number = submit(path)
            numbers.append(number)
            say(f"job {number}: {len(job.trials)} x {job.shape.name}, {path}")
        return numbers


def _planned(study: Study) -> StudyPlan:
    planned = plan_trials(study, math.inf)
    most = study.slurm.max_running
    for trial in planned.trials:
        tournament = read_tournament(trial.config.tournament)
        if tournament is None or tournament.selection == "none" or most is None:
            continue
        if most < tournament.trainers:
            raise ValueError(
                f"max_running={most} in [slurm] lets fewer trials run at the same time than the "
                f"{tournament.trainers} trainers of a tournament, which wait for each other. Give "
                f"{tournament.trainers} or more, or leave it out."
            )
    return planned


def dry_run(study: Study, folder: str | Path) -> str:
    """Return the job scripts that `submit_sweep` would submit, each below its path."""
    root = Path(folder)
    planned = adopted(_planned(study), root)
    done = set()
    if (root / "plan.json").is_file():
        done = {trial.id for trial in read_sweep(root).trials if trial.state in FINISHED}
    todo = [(trial.id, trial.config) for trial in planned.trials if trial.id not in done]
    scripts = _scripts(study, root, jobs_of(todo, study.slurm))
    return "\n".join(f"==> {path} <==\n{text}" for path, text, _ in scripts)


def wait_for(
    folder: str | Path,
    *,
    say: Callable[[str], None] = say_now,
    poll_seconds: float = POLL_SECONDS,
    late_seconds: float = LATE_SECONDS,
) -> int:
    """Wait until no trial of the sweep runs or is queued, and report each change of state.

    Returns 0 if all trials are done, else the exit code of the first failed one, or 3 if some never
    ended.
    """
    seen = {trial.id: trial.state for trial in read_sweep(folder).trials}
    quiet_since: float | None = None
    while True:
        try:
            sweep = current(folder)
        except NoAnswerError as error:
            # slurmctld restarts now and then; its jobs go on.
            say(f"{error} Asking again.")
            time.sleep(poll_seconds)
            continue
        for trial in sweep.trials:
            if seen.get(trial.id) != trial.state:
                seen[trial.id] = trial.state
                say(f"{trial.id}: {trial.state}{f' ({trial.reason})' if trial.reason else ''}")
        if any(trial.state == "running" or trial.job for trial in sweep.trials):
            quiet_since = None
        elif quiet_since is None:
            quiet_since = time.monotonic()
        missing = [trial for trial in sweep.trials if trial.state not in FINISHED]
        if not missing:
            return exit_codes.OK
        if quiet_since is not None and time.monotonic() - quiet_since >= late_seconds:
            return first_exit_code(missing)
        time.sleep(poll_seconds)


def _scripts(
    study: Study, root: Path, jobs: Iterable[ArrayJob]
) -> list[tuple[Path, str, ArrayJob]]:
    """Return path, text and job of each script; queued jobs keep scripts of lower numbers."""
    folder = root.resolve() / SCRIPTS
    numbers = (path.name.partition("-")[0] for path in folder.glob("*-*.sh"))
    first = 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
    scripts = []
    for number, job in enumerate(jobs, first):
        path = folder / f"{number:03d}-{job.shape.name}.sh"
        text = job_script(
            job,
            study.slurm,
            study=study.name,
            path=path,
            folder=root.resolve(),
            code=code_hash(),
            python=sys.executable,
            cwd=Path.cwd(),
        )
        scripts.append((path, text, job))
    return scripts
