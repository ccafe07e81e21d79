"""Signals to the supervisor end every process of its run."""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from supervised import (
    BUSY,
    MOST_SECONDS,
    PRELUDE,
    STUBBORN,
    all_ready,
    ended,
    marked,
    ready,
    run,
    supervisor,
    until,
)

from tfunet.bench.launch import supervisor as supervisor_module
from tfunet.bench.launch.child_process import SAME_SECONDS, signals_noted
from tfunet.bench.launch.processes_to_start import plan_processes
from tfunet.bench.launch.supervisor import RunOutcome
from tfunet.config.run import RunConfig
from tfunet.process.stop_request import TRIAL_VARIABLE
from tfunet.record import RunFolder


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
)
def test_signal_to_the_supervisor_ends_everything(mark, number, code):
    process = ready(BUSY)
    errors = ended(process, number)
    assert process.returncode == code
    reason = f"interrupted by {number.name}"
    first, second = errors.splitlines()
    assert first == f"tfunet: {reason}"
    assert second == (
        "tfunet: This run has no checkpoint yet. The same command starts it again from the "
        "first step."
    )
    failure = RunFolder(Path("run")).read_failure()
    assert failure == {"reason": reason, "exit_code": code, "process": None}
    assert marked(mark) == []


def test_killed_supervisor_leaves_no_process(mark):
    process = ready(STUBBORN)
    # The supervisor, its guard, two processes and a child of each.
    assert len(marked(mark)) == 6
    ended(process, signal.SIGKILL)
    until(lambda: marked(mark) == [])


def test_signal_while_starting_ends_everything(mark):
    process = supervisor(BUSY)
    # The first thing that the supervisor does once it takes signals; nothing is started yet.
    until(Path("run/.lock").exists)
    ended(process, signal.SIGINT)
    assert process.returncode == 130
    assert marked(mark) == []


def test_a_signal_that_is_passed_on_is_no_second_one():
    with signals_noted() as noted:
        for pause in (0, 0, 2 * SAME_SECONDS):
            time.sleep(pause)
            os.kill(os.getpid(), signal.SIGINT)
    assert noted == [signal.SIGINT] * 2


def test_second_ctrl_c_does_not_wait(mark):
    process = ready(STUBBORN, grace_seconds=600)
    process.send_signal(signal.SIGINT)
    until(lambda: Path("told-0").exists() and Path("told-1").exists())
    assert process.poll() is None
    time.sleep(2 * SAME_SECONDS)
    ended(process, signal.SIGINT)
    assert process.returncode == 130
    assert marked(mark) == []


# Trains: each step waits for the other process, as for its gradients.
TRAINING = """
from functools import partial
from tfunet.process.stop_request import stop_request
chief = index == 0
stops_after = partial(stop_request(os.environ).stops_after, is_chief=chief, is_alone=False)
def say(name, text=""):
    with open(f"new-{index}", "w") as file:
        file.write(text)
    os.rename(f"new-{index}", name)
step = 0
while True:
    step += 1
    say(f"step-{index}-{step}")
    while not os.path.exists(f"step-{1 - index}-{step}"):
        time.sleep(0.001)
    while step > 5 and os.path.exists("long"):
        time.sleep(0.01)
    time.sleep(0.01 * (step > 5))
    stops = stops_after(step)
    if step == 5:
        say(f"ready-{index}")
    if stops:
        if chief:
            say("run/checkpoint.npz", str(step))
        say(f"ended-{index}", str(step))
        sys.exit(75 if chief else 0)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_that_trains_is_saved_before_it_ends(mark, number, code):
    process = ready(TRAINING)
    errors = ended(process, number)
    assert process.returncode == code, errors
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    first, reason, last = errors.splitlines()
    assert first.startswith(
        f"tfunet: {name}: the run is saved after this step, and ends. It now does: "
    )
    assert reason == f"tfunet: interrupted by {number.name}"
    (step,) = {Path(f"ended-{index}").read_text() for index in (0, 1)}
    assert Path("run/checkpoint.npz").read_text() == step
    assert last == (
        f"tfunet: Saved after step {step}. To go on from there: the same command with --out run"
    )
    assert RunFolder(Path("run")).read_failure()["exit_code"] == code
    assert marked(mark) == []


def test_second_ctrl_c_does_not_wait_for_a_long_step(mark):
    Path("long").touch()
    process = ready(TRAINING, grace_seconds=600)
    process.send_signal(signal.SIGINT)
    line = process.stderr.readline()
    assert "A second Ctrl-C ends it at once, without the steps since its last checkpoint." in line
    assert process.poll() is None
    time.sleep(2 * SAME_SECONDS)
    errors = ended(process, signal.SIGINT)
    assert process.returncode == 130, errors
    assert "This run has no checkpoint yet" in errors
    assert marked(mark) == []


def test_trial_of_a_sweep_is_not_saved(mark, monkeypatch):
    monkeypatch.setenv(TRIAL_VARIABLE, "1")
    process = ready(TRAINING)
    errors = ended(process, signal.SIGINT)
    assert process.returncode == 130
    assert "saved" not in errors
    assert not Path("run/checkpoint.npz").exists()


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), 9)", 3), ("sys.exit(0)", 0)]
)
def test_what_happens_instead_of_saving_is_said(mark, end, code):
    # A disk that is full, a process that dies, and a run that was at its end.
    program = TRAINING.replace("        if chief:\n", f"        {end}\n        if chief:\n")
    process = ready(program)
    errors = ended(process, signal.SIGINT)
    said = {5: "ended with exit code 5", 3: "was killed by SIGKILL", 0: "The run was at its end"}
    assert said[code] in errors
    # If the run is complete, the signal ends what the caller does next.
    assert process.returncode == (code or -signal.SIGINT)


def test_a_step_that_takes_long_is_waited_for_and_named(mark, monkeypatch):
    monkeypatch.setattr(supervisor_module, "WAIT_SECONDS", 0.01)
    noted = []
    beat = 'os.write(int(os.environ["TFUNET_PULSE"]), b\'[9, 6, "step 6"]\\n\')\n'
    program = TRAINING.replace(
        "while step > 5", f"if step == 6 and chief: {beat}    while step > 5"
    )
    config = RunConfig(backend="horovod", num_replicas=2)
    folder = RunFolder(Path("run"))
    folder.create()
    folder.begin(config)
    Path("long").touch()
    run = supervisor_module.Supervisor(
        folder,
        noted,
        verbose=False,
        grace_seconds=2,
        hang_seconds=0,
        after_signal="saved after {}".format,
    )
    said = []

    def say(line):
        said.append(line)
        if line.startswith("tfunet: Waiting to save for ") and "does: step 6." in line:
            Path("long").unlink(missing_ok=True)

    monkeypatch.setattr(run.screen, "say", say)
    interrupter = threading.Thread(target=lambda: (until(all_ready), noted.append(signal.SIGTERM)))
    interrupter.start()
    command = [sys.executable, "-c", PRELUDE + program]
    outcome = run.run(plan_processes(config, [0, 1]), command)
    interrupter.join()
    assert outcome == RunOutcome(143, "interrupted by SIGTERM")
    assert re.fullmatch(r"tfunet: saved after \d+", said[-1])


def test_ctrl_c_of_a_terminal_reaches_only_the_supervisor(mark):
    process = ready(BUSY)
    # A terminal signals the process group in its foreground.
    others = [found for found in marked(mark) if found.pid != process.pid]
    assert os.getpgid(process.pid) not in {os.getpgid(other.pid) for other in others}
    ended(process, signal.SIGTERM)


def test_handlers_are_put_back(mark):
    before = [
        signal.getsignal(signal_number)
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]
    run("pass")
    after = [
        signal.getsignal(signal_number)
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]
    assert before == after


def test_launch_works_in_a_thread(mark):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(run("pass")))
    thread.start()
    thread.join(MOST_SECONDS)
    assert outcomes == [RunOutcome(0)]
