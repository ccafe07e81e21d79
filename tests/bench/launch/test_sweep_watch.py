"""`tfunet sweep watch`: what a person sees of a sweep that runs, from its files alone."""

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT
from rich.console import Console
from synthetic_sweep import make_study, write_failed, write_sweep, write_trial

from tfunet import exit_codes
from tfunet.bench.launch.sweep_progress import read_progress, spark
from tfunet.bench.launch.sweep_watch import line, view, watch
from tfunet.cli import main
from tfunet.record import RunFolder

GRID = {"backend": ["single", "horovod"], "num_replicas": [1, 2]}
NOW = 2e9


@pytest.fixture
def under_way(tmp_path):
    """A sweep of nine trials: four are done, one failed, one runs, three wait."""
    trials = write_sweep(tmp_path, make_study(repeats=3, grid=GRID, skip=[]), write=lambda _: False)
    done, failed, runs = trials[:4], trials[4], trials[5]
    for trial in done:
        write_trial(tmp_path, trial, elapsed_seconds=100.0)
    write_failed(tmp_path, failed, "killed by SIGKILL\x1b[2J")
    write_trial(tmp_path, runs)
    folder = tmp_path / runs.id
    (folder / "result.json").unlink()
    (folder / "config.toml").write_text("")
    os.utime(folder / "config.toml", (NOW - 30, NOW - 30))
    (folder / "log.txt").write_text("first\nstep 3 of 9: loss 0.5\r\n\n")
    return tmp_path, runs


@contextlib.contextmanager
def running(root, trial):
    """Hold the locks that a sweep and its trial hold."""
    (root / "running.json").write_text(json.dumps({"trial": trial.id, "process": os.getpid()}))
    with RunFolder(root).locked():
        yield


def text_of(progress, folder, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(view(progress, folder))
    return console.file.getvalue()


def test_states_curves_and_the_time_left_are_shown(under_way):
    root, trial = under_way
    with running(root, trial):
        progress = read_progress(root, NOW)
    counts = {state: count for state, count in progress.counts.items() if count}
    num_waiting = progress.num_trials - 6
    assert counts == {"done": 4, "failed": 1, "running": 1, "waiting": num_waiting}
    # 100 s for each that waits, 70 s for the one that runs.
    assert progress.seconds_left == 100 * num_waiting + 70
    (now,) = progress.running
    assert (now.seconds, now.epochs[0], now.last_line) == (30, 3, "step 3 of 9: loss 0.5")
    assert len(now.dice) == 3
    shown = text_of(progress, root)
    assert f"{trial.id}  30 s  3 of 5" in shown
    assert "step 3 of 9: loss 0.5" in shown
    assert len(re.findall(r"\w+ x\d +[12] of 3 +\d+\.\d +0\.\d{3} +▁.█", shown)) >= 2
    # What a record holds cannot act on the terminal.
    assert "killed by SIGKILL" in shown
    assert "\x1b" not in shown
    assert f"; {trial.id}: epoch 3 of 5, loss 0.000, Dice 0." in line(progress)
    assert line(progress).endswith("min left")


def test_a_job_that_holds_only_its_own_folder_runs(under_way):
    root, trial = under_way
    with RunFolder(root / trial.id).locked():
        assert [trial_progress.name for trial_progress in read_progress(root).running] == [trial.id]
    stopped = read_progress(root)
    assert stopped.running == ()
    assert "No trial runs now. To go on: tfunet sweep resume" in text_of(stopped, root)


def test_without_a_terminal_a_line_tells_of_each_change_until_the_end(tmp_path):
    grid = {"backend": ["single"], "num_replicas": [1]}
    trials = write_sweep(tmp_path, make_study(repeats=2, grid=grid), write=lambda _: False)
    console = Console(file=io.StringIO())
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) % 2 == 0:
            write_trial(tmp_path, trials[len(slept) // 2 - 1])

    assert watch(tmp_path, console=console, sleep=sleep) == exit_codes.OK
    lines = [text.split(" ", 1)[1] for text in console.file.getvalue().splitlines()]
    assert [text.split(";")[0] for text in lines] == [
        "synthetic: 2 trials: 2 waiting",
        "synthetic: 2 trials: 1 done, 1 waiting",
        "synthetic: 2 trials: 2 done",
    ]
    assert len(slept) == 4


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, exit_codes.INTERRUPTED), (signal.SIGTERM, 143)]
)
def test_a_signal_gives_the_terminal_back(number, code, under_way):
    root, trial = under_way
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tfunet", "sweep", "watch", str(root)],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    deadline = time.monotonic() + 300
    while trial.id.encode() not in said and b"resume" not in said and time.monotonic() < deadline:
        said += os.read(ours, 4096)
    process.send_signal(number)
    with contextlib.suppress(OSError):  # The terminal is closed once the process has ended.
        while part := os.read(ours, 4096):
            said += part
    os.close(ours)
    assert process.wait(300) == code
    assert b"Traceback" not in said
    # The cursor was hidden, and is shown again.
    assert said.rindex(b"\x1b[?25h") > said.rindex(b"\x1b[?25l")
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_folder_without_a_sweep_is_named(tmp_path, capsys):
    assert main(["sweep", "watch", str(tmp_path / "none")]) == exit_codes.BAD_INPUT
    assert "There is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ((), ""),
        ((1.0,), "▁"),
        ((2.0, 2.0), "▁▁"),
        ((0.0, 0.5, 1.0), "▁▅█"),
        ((float("nan"), 0.0, 7.0), "▁█"),
        (tuple(range(48)), "▁▁▂▂▂▃▃▃▃▄▄▄▅▅▅▆▆▆▆▇▇▇██"),
    ],
)
def test_curves_of_bars(values, bars):
    assert spark(values) == bars


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_comes_while_an_object_is_deleted_ends_it_too(under_way):
    class Deleted:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    slept = []

    def sleep(seconds):
        assert not slept
        slept.append(seconds)
        Deleted()

    with pytest.raises(SystemExit) as ended:
        watch(under_way[0], console=Console(file=io.StringIO()), sleep=sleep)
    assert ended.value.code == exit_codes.TERMINATED
