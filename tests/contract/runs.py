"""Starts real runs for the contract, as a user would, and reads what they recorded."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from small_run import SMALL_RUN

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BASE = {
    **SMALL_RUN,
    "metrics": ["sparse_categorical_accuracy", "hd95", "nsd@1px", "arand", "cldice"],
    "loss_options": {"class_weights": "balanced"},
    "deterministic": True,
}
SECONDS = 500
KILL_STEP = 7
# The records that each test began, apart from those of fixtures.
_begun: dict[str, list[Path]] = {}


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    folder: Path
    exit_code: int
    output: str

    @property
    def result(self):
        return json.loads((self.folder / "result.json").read_text())

    @property
    def failure(self):
        return json.loads((self.folder / "failure.json").read_text())

    def rows(self, name):
        with (self.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def weights(self):
        with np.load(self.folder / "checkpoint.npz") as file:
            names = sorted(name for name in file.files if name.startswith("variable_"))
            return [file[name] for name in names]


def train(folder, environment=None, launcher=(), **settings):
    """Run `tfunet train` to its end and return the Run; kills its whole group when it hangs.

    Args:
        launcher: What starts it: mpirun with its options.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # kill_often.py starts runs outside of a test.
    test, phase = os.environ.get("PYTEST_CURRENT_TEST", "none ").rsplit(" ", 1)
    if phase == "(call)" and not folder.exists():
        _begun.setdefault(test, []).append(folder)
    config = folder.parent / f"{folder.name}.toml"
    config.write_text(to_toml({**BASE, **settings}))
    cache = folder.parent / "cache"
    command = [sys.executable, "-m", "tfunet", "train", "--config", str(config), "--out"]
    process = subprocess.Popen(
        [*launcher, *command, str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "TFUNET_CACHE": str(cache),
            "CUDA_VISIBLE_DEVICES": "",
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"The run hangs:\n{output}") from None
    return Run(folder, process.returncode, output)


def forget_runs():
    """Remove the records that this test began when it ran before: it failed, and runs again."""
    for folder in _begun.pop(os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0], []):
        shutil.rmtree(folder, ignore_errors=True)


def audited(folder, **settings):
    """Run to the end; note its writes (`writes_of`), with a temporary folder (`temporary_of`)."""
    for left in (folder, temporary_of(folder)):  # by a fixture that failed and is made again
        shutil.rmtree(left, ignore_errors=True)
    temporary_of(folder).mkdir(parents=True)
    variables = {
        "PYTHONPATH": f"{HERE / 'audit'}",
        "TFUNET_TEST_AUDIT": str(writes_of(folder)),
        "TFUNET_TEST_AUDITED": str(folder),
        "TMPDIR": str(temporary_of(folder)),
    }
    run = train(folder, variables, **settings)
    assert run.exit_code == 0, run.output
    return run


def writes_of(folder):
    return folder.with_name(f"{folder.name}-audit.txt")


def temporary_of(folder):
    return folder.with_name(f"temporary-of-{folder.name}")


def to_toml(settings):
    """Return a mapping as TOML; JSON's scalars and lists are TOML's."""
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, table in settings.items():
        if isinstance(table, dict):
            lines += [f"[{key}]", *(f"{name} = {_value(item)}" for name, item in table.items())]
    return "\n".join(lines) + "\n"


def _value(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return json.dumps(value)


def kill_at(step):
    """The callback is part of the configuration; without the variable it does nothing."""
    return {"callbacks": [{"name": f"{HERE / 'kill.py'}:KillAt", "step": step}]}
