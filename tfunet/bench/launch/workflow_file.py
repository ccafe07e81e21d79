"""Writes a sweep as one workflow file that Maestro and Merlin run: `tfunet sweep export`."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tfunet.bench.launch.slurm_queue import check_none_queued
from tfunet.bench.launch.sweep_folder import adopted, write_plan
from tfunet.bench.records.sweep_record import FINISHED, read_sweep
from tfunet.bench.study.study_file import Study
from tfunet.bench.study.trial_plan import StudyPlan, plan_trials
from tfunet.files.atomic import write_atomic
from tfunet.machine.environment import code_hash
from tfunet.record import RunFolder

NAME = "workflow.yaml"
# Folder of what engines and steps leave behind, inside that of the sweep.
WORKSPACE = "workflow"
# The engines copy the file without its quotes, and a shell reads the commands.
PLAIN = re.compile(r"[A-Za-z0-9_./+@%=,-]+")
# Engine to the words that run a file to its end on this machine.
ENGINES = {"maestro": ("run", "-y", "-fg", "-s", "1"), "merlin": ("run", "--local")}
INSTALL = "make engines, then add .venv/engines/bin to PATH"
TEMPLATE = """\
# {trials} trials of study {study}, by `tfunet sweep export`. Maestro and Merlin both run it.
description:
  name: {study}
  description: {trials} trials of a study of tfunet

env:
  variables:
    OUTPUT_PATH: {root}/{workspace}
    TFUNET_STEP: {python} -m tfunet.bench.workflow_step --code {code}

study:
  - name: prepare
    description: refuses a folder or a code that has changed
    run:
      cmd: $(TFUNET_STEP) prepare {root}
  - name: trial
    description: runs one trial, unless it is done
    run:
      cmd: $(TFUNET_STEP) --attempts {attempts} --trials {trials} trial {root} $(TRIAL)
      depends: [prepare]
  - name: collect
    description: fails unless all results are there
    run:
      cmd: $(TFUNET_STEP) collect {root}
      depends: [trial_*]
  - name: report
    description: writes the report
    run:
      cmd: $(TFUNET_STEP) report {root}
      # Both: Merlin without a broker leaves out the second step of a chain.
      depends: [trial_*, collect]

global.parameters:
  TRIAL:
    label: TRIAL.%%
    values:
{values}

# Only for Merlin. Each worker runs one trial at a time, and takes the next when it is done.
merlin:
  resources:
    task_server: celery
    workers:
      trials:
        args: --concurrency 1 --prefetch-multiplier 1 -O fair
        steps: [all]
"""


def export_sweep(
    study: Study, folder: str | Path, attempts: int = 2, *, refuses: bool = False
) -> Path:
    """Write the plan of a study into its folder, and a workflow file beside it; return its path.

    Raises ValueError for what the engines cannot do. With `refuses`, also if `tfunet train` would
    refuse trials that are not done.
    """
    if attempts < 1:
        raise ValueError(f"--attempts must be at least 1, got {attempts}.")
    if any(key.startswith("tournament") for key in (*study.base, *study.varied)):
        raise ValueError(
            "A tournament is no workflow: its trainers run together, and meet. Use tfunet sweep "
            "run."
        )
    root = Path(folder).resolve()
    _check_plain("folder of the sweep", root)
    _check_plain("Python", Path(sys.executable))
    planned = plan_trials(study)
    _check_plain("name of the study", Path(study.name))
    check_none_queued(root)
    RunFolder(root).create()
    with RunFolder(root).locked():
        planned = adopted(planned, root)
        if refuses:
            from tfunet.bench.study.refusals import refusals, refuse

            refuse(refusals(planned, _not_done(planned, root)))
        write_plan(planned, root)
        path = root / NAME
        write_atomic(path, workflow_text(planned, root, code_hash(), attempts))
    return path


def _not_done(planned: StudyPlan, root: Path) -> set[str]:
    names = {trial.id for trial in planned.trials}
    if not (root / "plan.json").is_file():
        return names
    try:
        trials = read_sweep(root).trials
    except ValueError:  # It is torn, or of another version: the export writes it anew.
        return names
    return names - {trial.id for trial in trials if trial.state in FINISHED}


def workflow_text(planned: StudyPlan, root: Path, code: str, attempts: int) -> str:
    """Return the workflow of a plan whose trials lie in `root`."""
    names = [trial.id for trial in planned.trials]
    return TEMPLATE.format(
        study=planned.study.name,
        trials=len(names),
        root=root,
        workspace=WORKSPACE,
        python=sys.executable,
        code=code,
        attempts=attempts,
        values="\n".join(f"      - {json.dumps(name)}" for name in names),
    )


def engine_command(engine: str, path: Path) -> list[str]:
    """Return the command with which an engine runs a workflow file; ValueError without it."""
    program = shutil.which(engine)
    if program is None:
        raise ValueError(
            f"{engine} is not installed, or not on PATH. To install it: {INSTALL}. Without an "
            "engine: tfunet sweep run."
        )
    return [program, *ENGINES[engine], str(path)]


def run_engine(command: Sequence[str]) -> int:
    """Run an engine to its end, and return its exit code, which says little about the trials."""
    return subprocess.run(command, check=False).returncode


def _check_plain(what: str, path: Path) -> None:
    if not PLAIN.fullmatch(str(path)):
        raise ValueError(
            f"The {what} is {str(path)!r}. The engines copy a workflow file without its quotes, so "
            "it may have letters, digits and _ . / + @ % = , - only. Choose another with --out, or "
            "name."
        )
