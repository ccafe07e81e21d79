"""A sweep of 200 trials, some of which fail, that is interrupted three times."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from paths import SUPPORT

from tfunet import exit_codes
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.sweep_status import status
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import plan_trials

STUDY = {"name": "many", "repeats": 5, "grid": {"epochs": list(range(1, 41))}}
FAILURES = {
    "refused": "error: no such data set",
    "worker died": "process 1 of 2 was killed by SIGKILL",
    "killed": "killed by SIGKILL",
    "silent": "ended without a result",
    "unlike one device": "correctness checks failed: scores",
}
# The trials, counted from 0, that fail; and those that hang when they are first started.
FAILING = dict(zip(range(9, 200, 20), 2 * list(FAILURES), strict=True))
HANGING = {50: signal.SIGINT, 100: signal.SIGTERM, 150: signal.SIGKILL}


def starts(folder):
    """How often each trial was started, by itself."""
    path = folder / "starts.txt"
    return Counter(path.read_text().split() if path.exists() else ())


def session(folder):
    """Do what `tfunet sweep run` does, with a program that ends at once for each trial."""
    study = study_from_dict(STUDY)
    number_of = {trial.id: number for number, trial in enumerate(plan_trials(study).trials)}

    def command(trial):
        number = number_of[trial.name]
        hangs = number in HANGING and not starts(folder)[trial.name]
        way = "hangs" if hangs else FAILING.get(number, "well")
        return ["/bin/sh", str(SUPPORT / "tiny_trial.sh"), way, str(trial)]

    quiet = {"median_seconds": 0.01, "spread": 0.02}
    return run_sweep(study, folder, command=command, noise=lambda: quiet)


@pytest.fixture
def sweep(tmp_path):
    """Start a session in a process of its own, that can be killed."""
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; "
        "import test_many_trials; sys.exit(test_many_trials.session(Path(sys.argv[1])))"
    )
    running = []

    def start():
        folders = [str(tmp_path), str(Path(__file__).parent), str(SUPPORT)]
        command = [sys.executable, "-c", program, *folders]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield tmp_path, start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_nothing_runs_twice_nothing_is_lost_and_failures_are_rows(sweep):
    folder, start = sweep
    names = [trial.id for trial in plan_trials(study_from_dict(STUDY)).trials]
    assert len(names) == 200
    for number, how in HANGING.items():
        process = start()
        deadline = time.monotonic() + 300
        while not starts(folder)[names[number]]:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(how)
        process.communicate(timeout=200)
        assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(how, -how)
        assert status(folder)["counts"]["running"] == 0
    process = start()
    output, _ = process.communicate(timeout=400)
    # The first failure is a refusal; of what was done, nothing was left to do.
    assert process.returncode == exit_codes.BAD_INPUT
    failed_before = sum(number < max(HANGING) for number in FAILING)
    assert f"{200 - max(HANGING) + failed_before} of 200 trials to run" in output

    rows = {trial["trial"]: trial for trial in status(folder)["trials"]}
    assert list(rows) == names
    started = starts(folder)
    for number, name in enumerate(names):
        way = FAILING.get(number)
        assert rows[name]["state"] == ("failed" if way else "done"), name
        assert rows[name]["reason"] == (FAILURES[way] if way else ""), name
        # What failed runs again in every session that comes after it, what ended well never.
        sessions = 1 + sum(number < at for at in HANGING)
        assert started[name] == (sessions if way else 1 + (number in HANGING)), name
    # The record of every attempt but the last is kept.
    assert len(list((folder / "earlier").iterdir())) == started.total() - 200
