"""What is done to a sweep that has its folder: resume, retry, cancel; here or under SLURM."""

import contextlib
import json
import os
import signal
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tfunet.bench.launch.local_sweep import NOT_DONE, run_sweep
from tfunet.bench.launch.slurm_queue import SCRIPTS, cancel, queued_trials
from tfunet.bench.launch.slurm_submit import submit_sweep
from tfunet.bench.records.sweep_record import read_plan, read_sweep
from tfunet.bench.study.study_file import Study, read_study
from tfunet.record import RunFolder


def resume_sweep(folder: str | Path, states: Collection[str] = NOT_DONE) -> int | None:
    """Run the trials in one of `states`, where the sweep was run before: here or under SLURM.

    They run in the folder in which the sweep was started, by which the paths in its study are
    meant. Returns an exit code, or None where they were submitted and are yet to end.
    """
    root = Path(folder).resolve()
    with contextlib.chdir(_working_folder(root)):
        study = _study_of(root)
        if is_under_slurm(root):
            submit_sweep(study, root, states=states)
            return None
        return run_sweep(study, root, states=states)


def cancel_sweep(folder: str | Path, trials: Collection[str] = ()) -> list[str]:
    """End the sweep, or these trials of it; return the names of those that ran or were queued.

    A sweep that runs on this machine can only be ended as a whole: each of its trials takes the
    place of the one before.
    """
    root = Path(folder)
    sweep = read_sweep(root)
    known = [trial.id for trial in sweep.trials]
    for name in trials:
        if name not in known:
            raise ValueError(f"The sweep in {root} has no trial {name!r}. See: tfunet sweep status")
    chosen = {
        name: entry for name, entry in queued_trials(root).items() if not trials or name in trials
    }
    cancel([entry.job for entry in chosen.values()])
    running = [trial.id for trial in sweep.trials if trial.state == "running"]
    if running and trials:
        raise ValueError(
            f"The sweep runs on this machine, where it can only be cancelled as a whole: tfunet "
            f"sweep cancel {root}"
        )
    if running:
        os.kill(_process_of(root), signal.SIGTERM)
    return [*chosen, *running]


def is_under_slurm(folder: str | Path) -> bool:
    """Whether the sweep has job scripts."""
    return any((Path(folder) / SCRIPTS).glob("*.sh"))


def _working_folder(root: Path) -> Path:
    # Not in the plans of earlier versions.
    folder = Path(read_plan(root).get("working_folder", "."))
    if not folder.is_dir():
        raise ValueError(
            f"The sweep was started in {folder}, which is not there, and the paths in its study "
            "are relative to that. Go where they lead to the data, and run the study from there, "
            f"with --out {root}"
        )
    return folder


def _study_of(root: Path) -> Study:
    # A study file without a name has that of the file, which is another one here.
    return replace(read_study(root / "study.toml"), name=str(read_plan(root)["study"]))


def _process_of(root: Path) -> int:
    """Return the process of the sweep that runs here; ValueError if it runs elsewhere."""
    holder = (root / ".lock").read_text(encoding="utf-8")
    running = json.loads((root / "running.json").read_text(encoding="utf-8"))
    if not holder.endswith(f" on {os.uname().nodename}") or not RunFolder(root).is_locked():
        raise ValueError(f"The sweep is run by {holder}: cancel it there.")
    return int(running["process"])
