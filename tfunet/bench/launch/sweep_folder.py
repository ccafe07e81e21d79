"""The folder of a sweep: its plan, and earlier attempts of its trials."""

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tfunet.bench.records.plan_lines import LINES
from tfunet.bench.records.sweep_record import planned_trials, read_plan
from tfunet.bench.study.plan_text import plan_json
from tfunet.bench.study.study_file import Study, programs_of
from tfunet.bench.study.toml_writer import study_toml
from tfunet.bench.study.trial_plan import StudyPlan
from tfunet.config.run import RunConfig
from tfunet.files.atomic import write_atomic, writing
from tfunet.record import EARLIER, MODEL, WEIGHTS, RunFolder, sign

# Large files of a failed attempt; no new attempt may go on from them.
LARGE = ("checkpoint.npz", MODEL, WEIGHTS)
POLL_SECONDS = 0.2


def set_aside(folder: Path, root: Path) -> None:
    """Move an earlier attempt to earlier/<trial>-<number>, without its large files."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    number = 1
    while (target := root / EARLIER / f"{folder.name}-{number}").exists():
        number += 1
    with writing(target):
        RunFolder(target.parent).create_inside()
        shutil.move(folder, target)
        # A user's own files stay: only those of a run are deleted, and never through a link. A run
        # with a result has ended well, also if its result cannot be read.
        is_run = any((target / name).is_file() for name in ("config.json", "config.toml"))
        has_result = os.path.lexists(target / "result.json")
        if is_run and not has_result and not target.is_symlink():
            for name in LARGE:
                (target / name).unlink(missing_ok=True)


@contextlib.contextmanager
def locked_soon(folder: RunFolder, most_seconds: float = math.inf) -> Iterator[None]:
    """Lock a folder as soon as others have given back its lock; ValueError after `most_seconds`."""
    deadline = time.monotonic() + most_seconds
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(folder.locked())
                break
            except ValueError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
        yield


def adopted(planned: StudyPlan, root: Path) -> StudyPlan:
    """Return the plan with the names that the trials already have in the folder.

    Raises ValueError if the folder holds trials that are not in the plan.
    """
    names = _names(root)
    trials = []
    for trial in planned.trials:
        name = names.pop(_fingerprint(trial.config), trial.id)
        trials.append(replace(trial, id=name))
    gone = [name for name in names.values() if _was_run(root / name)]
    if gone:
        raise ValueError(
            f"{root} holds {len(gone)} trials that are not in study {planned.study.name!r}, or "
            f"cannot run here: {', '.join(gone[:3])}{', ...' if len(gone) > 3 else ''}. "
            "Choose another folder. You may add settings and repeats in the same one."
        )
    return replace(planned, trials=tuple(trials))


def write_plan(planned: StudyPlan, root: Path) -> None:
    """Write study.toml and plan.json, with the folder that its paths are relative to."""
    study = planned.study
    write_study(study, root)
    table = {**plan_json(planned), "working_folder": str(Path.cwd())}
    write_atomic(root / "plan.json", json.dumps(table, indent=1))
    with writing(root / LINES):
        (root / LINES).unlink(missing_ok=True)  # Written by a search.


def write_study(study: Study, root: Path) -> None:
    """Write study.toml, and that this user runs it in this working folder."""
    text = study.text or study_toml(study)
    write_atomic(root / "study.toml", text)
    sign(root, signed_text(text, Path.cwd()), programs_of(study))


def signed_text(text: str, working_folder: Path) -> str:
    """Return what the signature of a sweep is of.

    Python looks for modules in the folder that trials run in, so that is part of it.
    """
    return f"{text}\0{working_folder}"


def _names(root: Path) -> dict[str, str]:
    try:
        trials = planned_trials(root, read_plan(root))
    except ValueError:
        # There is none yet, or it is torn: the study gives the same names again.
        return {}
    return {_fingerprint(trial.config): trial.id for trial in trials if trial.is_readable}


def _was_run(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _fingerprint(config: RunConfig) -> str:
    return json.dumps(vars(config), sort_keys=True)
