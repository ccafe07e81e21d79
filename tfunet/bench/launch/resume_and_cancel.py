"""Resumes, retries and cancels a sweep that has its folder, here or under SLURM."""

import contextlib
import os
import signal
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from tfunet.bench.launch.local_sweep import NOT_DONE, run_sweep
from tfunet.bench.launch.slurm_queue import SCRIPTS, cancel, queued_trials
from tfunet.bench.launch.slurm_submit import submit_sweep
from tfunet.bench.launch.sweep_folder import signed_text
from tfunet.bench.records.sweep_record import read_plan, read_sweep
from tfunet.bench.study.study_file import Study, programs_of, read_study
from tfunet.config.trust import check_signed
from tfunet.files.typed import read_json, read_record
from tfunet.record import SIGNATURE, RunFolder


@dataclass(frozen=True)
class Running:
    """What running.json holds."""

    trial: str
    # A signal to process 0 or -1 would reach others, too.
    process: Annotated[int, msgspec.Meta(ge=2, le=2**31)]


def resume_sweep(
    folder: str | Path, states: Collection[str] = NOT_DONE, *, refuses: bool = False
) -> int | None:
    """Run the trials in one of `states` where the sweep was run before: here or under SLURM.

    The working folder is that of the first start, which the paths in the study are relative to.
    With `refuses`, ValueError says before the first trial if `tfunet train` would refuse trials.
    Returns an exit code, or None after a submission to SLURM.
    """
    root = Path(folder).resolve()
    working_folder = _working_folder(root)
    is_here = working_folder == Path.cwd()
    with contextlib.chdir(working_folder):
        study = _study_of(root, working_folder, is_here=is_here)
        if is_under_slurm(root):
            submit_sweep(study, root, states=states, refuses=refuses)
            return None
        return run_sweep(study, root, states=states, refuses=refuses)


def cancel_sweep(folder: str | Path, trials: Collection[str] = ()) -> list[str]:
    """End all trials of a sweep, or the named ones; return those that were running or queued.

    On this machine only the whole sweep can be ended: the next trial would start at once.
    """
    root = Path(folder)
    sweep = read_sweep(root)
    known = [trial.id for trial in sweep.trials]
    for name in trials:
        if name not in known:
            raise ValueError(
                f"The sweep in {root} has no trial {name!r}. List them: tfunet sweep status"
            )
    queued = queued_trials(root)
    chosen = {name: entry for name, entry in queued.items() if not trials or name in trials}
    cancel([entry.job for entry in chosen.values()])
    # Trials in SLURM's jobs run elsewhere.
    running = [
        trial.id for trial in sweep.trials if trial.state == "running" and trial.id not in queued
    ]
    if running and trials:
        raise ValueError(
            "The sweep runs on this machine, where single trials cannot be cancelled. To cancel "
            f"all of it: tfunet sweep cancel {root}"
        )
    if running:
        os.kill(_process_of(root), signal.SIGTERM)
    return [*chosen, *running]


def is_under_slurm(folder: str | Path) -> bool:
    """Whether the sweep has job scripts."""
    return any((Path(folder) / SCRIPTS).glob("*.sh"))


def _working_folder(root: Path) -> Path:
    # Plans of earlier versions do not have it.
    folder = Path.cwd() / read_plan(root).get("working_folder", ".")
    if not folder.is_dir():
        raise ValueError(
            f"The sweep was started in {folder}, which does not exist here, and the paths in its "
            "study are relative to that folder. Run the study from a folder where its paths lead "
            f"to the data, with --out {root}"
        )
    return folder


def _study_of(root: Path, working_folder: Path, *, is_here: bool) -> Study:
    """Return the study; ValueError for what runs only if this user made it."""
    # A study without a name is named for its file, which has another name here.
    path = root / "study.toml"
    study = read_study(path)
    # Modules of another folder that bear the names of Python's would run.
    elsewhere = [] if is_here else [f"cd {working_folder}"]
    check_signed(
        path,
        signed_text(read_record(path) or "", working_folder),
        programs_of(study),
        read_record(root / SIGNATURE),
        [*study.slurm.commands, *elsewhere],
    )
    return replace(study, name=str(read_plan(root).get("study", root.name)))


def _process_of(root: Path) -> int:
    """Return the process of the sweep that runs here; ValueError if it runs elsewhere."""
    holder = read_record(root / ".lock") or ""
    running = read_json(root / "running.json", Running)
    if running is None and not RunFolder(root).is_locked():
        raise ValueError(
            "The running trials were started by a search or a workflow engine. End that (Ctrl-C, "
            "scancel, maestro cancel, merlin stop-workers): its trials end with it."
        )
    if not holder.endswith(f" on {os.uname().nodename}") or not RunFolder(root).is_locked():
        raise ValueError(f"The sweep is run by {holder}. Cancel it there.")
    if running is None:
        raise ValueError(f"{root / 'running.json'} is gone: no trial runs. Try again.")
    return running.process
