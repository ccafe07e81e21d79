"""The supervisor, with small programs instead of the worker: nothing of a run outlives it."""

import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from supervised import (
    BUSY,
    MOST_SECONDS,
    STUBBORN,
    all_ready,
    ended,
    marked,
    ready,
    run,
    until,
)

from tfunet.bench.launch import supervisor as supervisor_module
from tfunet.bench.launch.blame import blame
from tfunet.bench.launch.launch_run import launch
from tfunet.bench.launch.supervisor import RunOutcome
from tfunet.config.run import RunConfig
from tfunet.files.atomic import WriteError
from tfunet.record import RunFolder


def test_run_is_over_when_all_have_ended_well(mark):
    assert run("time.sleep(0.2 * index)") == RunOutcome(0)
    assert RunFolder(Path("run")).read_failure() is None
    assert sorted(path.name for path in Path("run").iterdir()) == [
        "config.json",
        "log-0.txt",
        "log-1.txt",
    ]


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("sys.exit(2)", 2, "ended with exit code 2, see log-1.txt"),
        ("sys.exit(4)", 4, "ended with exit code 4, see log-1.txt"),
        ("sys.exit(5)", 5, "ended with exit code 5, see log-1.txt"),
        # Not one of the codes by which a worker says what is wrong.
        ("sys.exit(77)", 3, "ended with exit code 77, see log-1.txt"),
        ("sys.exit(130)", 3, "ended with exit code 130, see log-1.txt"),
        ("raise OSError('no')", 3, "ended with exit code 1, see log-1.txt: OSError: no"),
        ("os.kill(os.getpid(), 9)", 3, "was killed by SIGKILL, see log-1.txt"),
        ("os.abort()", 3, "was killed by SIGABRT, see log-1.txt"),
        ("os.kill(os.getpid(), 40)", 3, "was killed by signal 40, see log-1.txt"),
    ],
)
def test_one_failing_process_ends_the_run_and_is_named(mark, end, code, how):
    begin = time.monotonic()
    outcome = run(f"if index == 1:\n    {end}\n" + BUSY)
    assert time.monotonic() - begin < MOST_SECONDS
    # With SIGABRT ends one whose peer is gone; it is not lost itself.
    is_lost = how.startswith("was killed") and "SIGABRT" not in how
    assert outcome == RunOutcome(code, f"process 1 of 2 {how}", 1, is_lost=is_lost)
    failure = RunFolder(Path("run")).read_failure()
    assert failure == {"reason": outcome.reason, "exit_code": code, "process": 1}


def test_process_killed_from_outside_ends_the_run(mark):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(run(BUSY)))
    thread.start()
    until(all_ready)
    victim = next(process for process in marked(mark) if '"process_index": 1' in place_of(process))
    victim.kill()
    thread.join(MOST_SECONDS)
    reason = "process 1 of 2 was killed by SIGKILL, see log-1.txt"
    assert outcomes == [RunOutcome(3, reason, 1, is_lost=True)]


def place_of(process: psutil.Process) -> str:
    is_worker = "-c" in process.cmdline()
    return process.environ().get("TFUNET_LAUNCH", "") if is_worker else ""


def test_process_that_fails_because_another_died_is_not_blamed(mark, monkeypatch):
    # Long enough for any machine; it ends when both have.
    monkeypatch.setattr(supervisor_module, "SETTLE_SECONDS", MOST_SECONDS)
    # As a collective: the chief reads from process 1, and raises when that is gone.
    outcome = run(
        """
host, port = place["addresses"][0].split(":")
if index == 0:
    with socket.create_server((host, int(port))) as server:
        peer, _ = server.accept()
        if not peer.recv(1):
            sys.exit(1)
while True:
    try:
        peer = socket.create_connection((host, int(port)))
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    )
    assert outcome.process == 1
    assert outcome.reason.startswith("process 1 of 2 was killed by SIGKILL")


@pytest.mark.parametrize(
    ("failures", "culprit"),
    [
        ([(0, 1)], 0),
        ([(1, 1), (0, 1)], 1),
        ([(0, 1), (1, -9)], 1),  # Seen in one look: a killed process is a cause.
        ([(0, -6), (1, -9)], 1),  # TensorFlow aborts when a peer is gone.
        ([(0, -6), (1, 2)], 1),  # Process 1 found a bad file, process 0 lost its peer.
        ([(0, 1), (1, -6)], 1),  # A failed check in native code, and its peer's exception.
        ([(0, 2), (1, 2)], 0),
        ([(2, -11), (1, -9), (0, -9)], 2),
    ],
)
def test_blame_falls_on_the_cause(failures, culprit):
    assert blame(failures)[0] == culprit


def test_process_killed_just_after_another_failed_is_blamed(mark, monkeypatch):
    monkeypatch.setattr(supervisor_module, "SETTLE_SECONDS", MOST_SECONDS)
    # One of two that fail together is seen first by chance.
    outcome = run(
        """
if index == 1:
    with open("new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("new", "pid")
    sys.exit(1)
while not os.path.exists("pid"):
    time.sleep(0.01)
while os.path.exists("/proc/" + open("pid").read()):
    time.sleep(0.001)
os.kill(os.getpid(), 9)
"""
    )
    assert outcome.reason.startswith("process 0 of 2 was killed by SIGKILL")


def test_process_that_is_ended_may_clean_up(mark):
    program = """
def clean_up(*_):
    open("cleaned", "w").close()
    sys.exit(1)
if index == 0:
    signal.signal(signal.SIGTERM, clean_up)
    open("listening", "w").close()
    time.sleep(600)
while not os.path.exists("listening"):
    time.sleep(0.01)
sys.exit(2)
"""
    assert run(program, grace_seconds=MOST_SECONDS).process == 1
    assert Path("cleaned").exists()


def test_process_that_ignores_sigterm_is_killed(mark):
    begin = time.monotonic()
    outcome = run(
        """
if index == 1:
    while not os.path.exists("ready-0"):
        time.sleep(0.01)
    sys.exit(2)
"""
        + STUBBORN,
        grace_seconds=0.5,
    )
    assert 0.5 < time.monotonic() - begin < MOST_SECONDS
    assert outcome.exit_code == 2


def test_stopped_process_is_ended_too(mark):
    outcome = run(
        "if index == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(0.5)\nsys.exit(2)",
        grace_seconds=0.5,
    )
    assert outcome.process == 1


def test_children_of_a_process_that_ended_well_are_ended(mark):
    assert run("subprocess.Popen(['sleep', '600'])") == RunOutcome(0)


def test_half_written_file_of_a_killed_process_is_removed(mark):
    program = """
from pathlib import Path
from tfunet.files.atomic import replacing
with replacing(Path("run/checkpoint.npz")) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), 9)
"""
    assert run(program, num_replicas=1).exit_code == 3
    names = sorted(path.name for path in Path("run").iterdir())
    assert names == ["config.json", "failure.json", "log-0.txt"]


def test_success_clears_an_earlier_failure(mark):
    assert run("sys.exit(2)").exit_code == 2
    assert RunFolder(Path("run")).read_failure()["exit_code"] == 2
    assert run("pass").exit_code == 0
    assert RunFolder(Path("run")).read_failure() is None


def test_command_that_does_not_exist_is_named(mark):
    config = RunConfig()
    outcome = launch(config, Path("run"), command=["/no/such/program"])
    assert outcome.exit_code == 3
    assert outcome.reason == (
        "process 0 of 1 ended with exit code 1, see log-0.txt: "
        "Cannot start '/no/such/program': No such file or directory."
    )


def test_second_supervisor_in_a_folder_is_refused(mark):
    process = ready(BUSY)
    with pytest.raises(ValueError, match=f"in use by process {process.pid} "):
        run("pass")
    ended(process, signal.SIGTERM)
    assert process.returncode == 143
    assert run("pass") == RunOutcome(0)


def test_finished_run_is_not_run_again(mark):
    folder = RunFolder(Path("run"))
    folder.create()
    folder.write_result({"loss": 1.0})
    with pytest.raises(ValueError, match="run holds a finished run"):
        run("open('started', 'w')")
    assert not Path("started").exists()


def test_folder_of_another_run_is_refused(mark):
    run("pass", num_replicas=1)
    with pytest.raises(ValueError, match="holds a run with other settings: num_replicas=2"):
        run("open('started', 'w')")
    assert not Path("started").exists()


def test_folder_that_cannot_be_made_is_named(mark):
    Path("run").write_text("")
    with pytest.raises(WriteError, match="Cannot write run: File exists"):
        run("pass")
