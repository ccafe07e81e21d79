import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_sweeps import FAKE, quiet
from paths import SUPPORT

from tfunet.bench.launch import one_trial
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.one_trial import train_command
from tfunet.bench.launch.sweep_folder import set_aside
from tfunet.bench.launch.time_left import TimeLeft, duration
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.study.machine_noise import measure_noise
from tfunet.bench.study.study_file import read_study, study_from_dict
from tfunet.record import RunFolder

TABLE = {"name": "fake", "repeats": 2, "grid": {"epochs": [1, 2]}}


class Harness:
    """Runs sweeps of fake trials; `behaviours` are taken up one a trial, then all end well."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        self.lines = []

    def run(self, *behaviours, table=TABLE, **options):
        left = list(behaviours)
        self.started = []
        self.lines = []

        def command(folder):
            self.started.append(folder.name)
            behaviour = left.pop(0) if left else "well"
            return [sys.executable, "-I", "-S", str(FAKE), behaviour, str(folder)]

        return run_sweep(
            study_from_dict(table),
            self.folder,
            command=command,
            num_cores=2,
            say=self.lines.append,
            **{"noise": quiet, **options},
        )

    def states(self):
        return {trial.id: trial.state for trial in read_sweep(self.folder).trials}

    def trial(self, name):
        return next(trial for trial in read_sweep(self.folder).trials if trial.id == name)


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path / "sweep")


def test_trials_run_once_in_the_order_of_the_plan(harness):
    assert harness.run() == 0
    assert "First a fixed computation is timed" in harness.lines[0]
    plan = json.loads((harness.folder / "plan.json").read_text())
    assert harness.started == [trial["id"] for trial in plan["trials"]]
    assert set(harness.states().values()) == {"done"}
    assert not (harness.folder / "running.json").exists()

    assert harness.run() == 0
    assert harness.started == []
    assert "0 of 4 trials to run" in harness.lines[0]
    assert "timed" not in harness.lines[0]


def test_a_line_a_trial_says_how_it_went_and_how_long_it_will_take(harness):
    harness.run("well", "worker died")
    assert "[1/4]" in harness.lines[1]
    assert harness.started[0] in harness.lines[1]
    assert "12.5 images/s  Dice 0.750" in harness.lines[1]
    assert "left)" in harness.lines[1]
    assert "failed: process 1 of 2 was killed by SIGKILL" in harness.lines[2]


@pytest.mark.parametrize(
    ("behaviour", "exit_code", "reason"),
    [
        ("usage", 2, "error: no such data set"),
        ("worker died", 3, "process 1 of 2 was killed by SIGKILL"),
        ("killed", 3, "killed by SIGKILL"),
        ("silent", 3, "ended without a result"),
        ("unlike single", 4, "correctness checks failed: scores"),
    ],
)
def test_a_failed_trial_is_a_row_and_the_others_run(harness, behaviour, exit_code, reason):
    assert harness.run("well", behaviour) == exit_code
    assert len(harness.started) == 4
    failed = harness.trial(harness.started[1])
    assert (failed.state, failed.reason) == ("failed", reason)
    assert sum(state == "done" for state in harness.states().values()) == 3


def test_a_failed_trial_runs_again_from_its_start_and_its_record_is_kept(harness):
    harness.run("killed", "killed")
    first, second = harness.started[:2]
    assert harness.run("well", "killed") == 3
    assert harness.started == [first, second]
    assert harness.trial(first).state == "done"
    assert harness.run() == 0
    assert harness.started == [second]
    earlier = harness.folder / "earlier"
    assert sorted(path.name for path in earlier.iterdir()) == sorted(
        [f"{first}-1", f"{second}-1", f"{second}-2"]
    )
    assert (earlier / f"{second}-2" / "failure.json").is_file()
    # Resuming from it would mix two runs' times.
    assert not list(harness.folder.rglob("checkpoint.npz"))


def test_failed_trials_can_be_left_alone(harness):
    harness.run("worker died")
    assert harness.run(states=("waiting", "interrupted")) == 3
    assert harness.started == []


def test_a_torn_record_of_a_failure_is_a_failure(harness):
    harness.run("worker died")
    torn = harness.started[0]
    (harness.folder / torn / "failure.json").write_text("{")
    assert harness.run(states=("waiting", "interrupted")) == 3
    assert harness.trial(torn).reason.startswith("failure.json cannot be used: Expecting")


def test_a_full_disk_ends_the_sweep(harness):
    assert harness.run("well", "disk full") == 5
    assert len(harness.started) == 2


def test_a_study_may_grow(harness):
    harness.run()
    names = set(harness.states())
    grown = {**TABLE, "repeats": 3, "grid": {"epochs": [1, 2], "xla": [False, True]}}
    assert harness.run(table=grown) == 0
    assert len(harness.started) == 8
    assert not set(harness.started) & names
    assert names < set(harness.states())
    assert set(harness.states().values()) == {"done"}


def test_a_study_that_lost_trials_which_were_run_is_refused(harness):
    harness.run()
    before = (harness.folder / "plan.json").read_text()
    with pytest.raises(ValueError, match=r"holds 2 trials that are not in study 'fake'.*another"):
        harness.run(table={**TABLE, "grid": {"epochs": [1]}})
    assert (harness.folder / "plan.json").read_text() == before
    assert len(harness.states()) == 4


def test_a_torn_plan_is_written_anew(harness):
    harness.run()
    (harness.folder / "plan.json").write_text("{")
    assert harness.run() == 0
    assert harness.started == []


def test_the_study_is_kept_with_its_comments(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("# why\n[grid]\nepochs = [1]\n")
    command = [sys.executable, "-I", "-S", str(FAKE), "well"]
    run_sweep(
        read_study(path),
        tmp_path / "out",
        command=lambda folder: [*command, str(folder)],
        say=lambda line: None,
        noise=quiet,
    )
    assert (tmp_path / "out" / "study.toml").read_text() == path.read_text()


def test_noise_is_measured_before_and_after_every_session(harness):
    harness.run("worker died")
    harness.run()
    harness.run()
    table = json.loads((harness.folder / "noise.json").read_text())
    assert [measurement["when"] for measurement in table["measurements"]] == ["before", "after"] * 2
    assert len(read_sweep(harness.folder).noise) == 4


def test_the_spread_of_the_machine_is_that_of_the_clock():
    # Two calls a round: rounds of 10, 11, ..., 19 ms.
    ticks = [value for start in range(10) for value in (start, start + 0.010 + start / 1000)]
    noise = measure_noise(rounds=10, clock=iter(ticks).__next__)
    assert noise["median_seconds"] == pytest.approx(0.0145)
    assert noise["spread"] == pytest.approx((0.0181 - 0.0109) / 0.0145, rel=1e-3)


def when_it_runs(folder, action):
    """Call `action(process id of the trial)` from a thread once a slow trial has started."""

    def wait():
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            for path in folder.glob("*/started"):
                if text := path.read_text():
                    action(int(text))
                    return
            time.sleep(0.02)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_dead(process):
    deadline = time.monotonic() + 60
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(process)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_ends_the_trial_and_the_sweep_and_is_no_failure(harness, number, exit_code):
    processes = []

    def interrupt(process):
        processes.append(process)
        os.kill(os.getpid(), number)

    thread = when_it_runs(harness.folder, interrupt)
    assert harness.run("well", "slow") == exit_code
    thread.join()
    wait_until_dead(processes[0])
    interrupted = harness.started[-1]
    assert len(harness.started) == 2
    assert harness.trial(interrupted).state == "interrupted"
    if number == signal.SIGINT:
        # It was given the time to end by itself.
        assert harness.trial(interrupted).reason == "Ctrl-C"
    assert not (harness.folder / "running.json").exists()

    assert harness.run() == 0
    assert harness.started[0] == interrupted
    assert len(harness.started) == 3


def test_a_trial_that_ignores_the_signal_is_killed(harness, monkeypatch):
    monkeypatch.setattr(one_trial, "GRACE_SECONDS", 0.3)
    thread = when_it_runs(harness.folder, lambda process: os.kill(os.getpid(), signal.SIGINT))
    assert harness.run("deaf") == 130
    thread.join()
    assert harness.trial(harness.started[0]).state == "interrupted"


def test_status_sees_the_trial_that_runs(harness):
    seen = []

    def look(process):
        seen.append(harness.states())
        os.kill(process, signal.SIGKILL)

    thread = when_it_runs(harness.folder, look)
    harness.run("slow")
    thread.join()
    assert seen[0][harness.started[0]] == "running"
    assert sorted(seen[0].values()) == ["running", "waiting", "waiting", "waiting"]


def test_two_sweeps_do_not_run_in_one_folder(harness):
    harness.run("worker died")
    with (
        RunFolder(harness.folder).locked(),
        pytest.raises(ValueError, match=f"in use by process {os.getpid()}"),
    ):
        harness.run()


def test_a_killed_sweep_takes_its_trial_with_it_and_can_be_resumed(harness):
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; "
        "import test_local_sweep; test_local_sweep.Harness(Path(sys.argv[1])).run('slow')"
    )
    folders = [str(harness.folder), str(Path(__file__).parent), str(SUPPORT)]
    sweep = subprocess.Popen([sys.executable, "-c", program, *folders])
    trials = []
    thread = when_it_runs(harness.folder, lambda process: (trials.append(process), sweep.kill()))
    sweep.wait(timeout=120)
    thread.join()
    wait_until_dead(trials[0])
    assert "running" not in harness.states().values()
    assert harness.run() == 0
    assert len(harness.started) == 4


def test_the_default_command_trains_the_trials_configuration():
    command = train_command(Path("logs/a/b"))
    assert command[:4] == [sys.executable, "-m", "tfunet", "train"]
    assert command[4:] == ["--config", "logs/a/b/config.toml", "--out", "logs/a/b"]


def test_remaining_time_is_estimated_by_cell(harness):
    harness.run()
    trials = read_sweep(harness.folder).trials
    one, other = (next(trial for trial in trials if trial.cell == cell) for cell in (0, 1))
    assert TimeLeft([one, one, other], {0: [10.0, 30.0, 20.0], 1: [5.0]}).seconds == 45.0
    # A cell that nobody has run yet takes as long as the others.
    assert TimeLeft([other], {0: [10.0, 30.0]}).seconds == 20.0
    assert TimeLeft([one], {}).seconds is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (99, "99 s"), (150, "2 min"), (9000, "2.5 h")]
)
def test_durations_are_said_as_people_say_them(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("has_result", [True, False])
def test_what_ended_well_keeps_its_model_when_it_is_set_aside(has_result, tmp_path):
    trial = tmp_path / "trial"
    trial.mkdir()
    (trial / "config.toml").touch()
    (trial / "model.keras").write_text("weights")
    if has_result:
        (trial / "result.json").write_text("{ torn")
    set_aside(trial, tmp_path)
    assert (tmp_path / "earlier/trial-1/model.keras").exists() == has_result
