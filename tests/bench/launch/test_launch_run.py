"""The supervisor, with small programs instead of the worker: nothing of a run outlives it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest

import tfunet
from tfunet.backend import num_processes
from tfunet.bench.launch import supervisor as supervisor_module
from tfunet.bench.launch.blame import blame
from tfunet.bench.launch.launch_run import launch
from tfunet.bench.launch.processes_to_start import child_environment, free_ports, plan_processes
from tfunet.bench.launch.supervisor import Outcome
from tfunet.config.run import RunConfig
from tfunet.files.atomic import WriteError
from tfunet.process.stop_request import TRIAL_VARIABLE
from tfunet.record import RunFolder

MARK = "TFUNET_TEST_MARK"
# Far more than it takes on a loaded machine, far less than the 600 s that BUSY would go on.
MOST_SECONDS = 120
PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
place = json.loads(os.environ["TFUNET_LAUNCH"])
index = place["process_index"]
"""
# Each has a child of its own, and says when both run.
BUSY = """
subprocess.Popen(["sleep", "600"])
open(f"ready-{index}", "w").close()
while True:
    time.sleep(600)
"""
# Notes what it is told, and goes on.
STUBBORN = (
    "told = lambda *_: open(f'told-{index}', 'w').close()\n"
    "for one in (15, 2, 1): signal.signal(one, told)\n" + BUSY
)
SUPERVISOR = """
import sys
from pathlib import Path
from tfunet.bench.launch.launch_run import launch
from tfunet.config import RunConfig
command = [sys.executable, "-c", sys.argv[1]]
config = RunConfig(backend="horovod", num_replicas=2)
outcome = launch(config, Path("run"), command=command, grace_seconds=float(sys.argv[2]))
sys.exit(outcome.exit_code)
"""


@pytest.fixture
def mark(monkeypatch, tmp_path):
    """Mark every process that the test starts; none of them may be left at its end."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    monkeypatch.chdir(tmp_path)
    yield value
    left = marked(value)
    for process in left:
        process.kill()
    assert left == []


def marked(mark: str) -> list[psutil.Process]:
    collected = []
    for process in psutil.process_iter():
        try:
            mine = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                collected.append(process)
        except psutil.Error:
            continue
    return collected


def until(condition):
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Let programs import this tfunet, wherever they run."""
    monkeypatch.setenv("PYTHONPATH", str(Path(tfunet.__file__).parents[1]))


def run(program: str, num_replicas: int = 2, folder: str = "run", **options: object) -> Outcome:
    config = RunConfig(backend="horovod", num_replicas=num_replicas)
    command = [sys.executable, "-c", PRELUDE + program]
    return launch(config, Path(folder), command=command, **options)


def supervisor(program: str, grace_seconds: float = 2.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, PRELUDE + program, str(grace_seconds)],
        stderr=subprocess.PIPE,
        text=True,
    )


def all_ready() -> bool:
    return Path("ready-0").exists() and Path("ready-1").exists()


# -- what a process finds


@pytest.mark.parametrize(
    ("inherited", "onednn"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")]
)
def test_processes_use_onednn_unless_the_user_turned_it_off(inherited, onednn):
    (plan,) = plan_processes(RunConfig(data="cells"), [0])
    assert child_environment(plan, inherited)["TF_ENABLE_ONEDNN_OPTS"] == onednn


# -- how a run ends


def test_run_is_over_when_all_have_ended_well(mark):
    assert run("time.sleep(0.2 * index)") == Outcome(0)
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
    assert outcome == Outcome(code, f"process 1 of 2 {how}", 1, is_lost=is_lost)
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
    assert outcomes == [Outcome(3, reason, 1, is_lost=True)]


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
    assert run("subprocess.Popen(['sleep', '600'])") == Outcome(0)


def test_half_written_file_of_a_killed_process_is_removed(mark):
    program = """
from pathlib import Path
from tfunet.record import replacing
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


# -- signals to the supervisor


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
)
def test_signal_to_the_supervisor_ends_everything(mark, number, code):
    process = supervisor(BUSY)
    until(all_ready)
    process.send_signal(number)
    _, errors = process.communicate(timeout=MOST_SECONDS)
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
    process = supervisor(STUBBORN)
    until(all_ready)
    # The supervisor, its guard, two processes and a child of each.
    assert len(marked(mark)) == 6
    process.kill()
    process.communicate(timeout=MOST_SECONDS)
    until(lambda: marked(mark) == [])


def test_signal_while_starting_ends_everything(mark):
    process = supervisor(BUSY)
    # The first thing that the supervisor does once it takes signals; nothing is started yet.
    until(Path("run/.lock").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 130
    assert marked(mark) == []


def test_second_ctrl_c_does_not_wait(mark):
    process = supervisor(STUBBORN, grace_seconds=600)
    until(all_ready)
    process.send_signal(signal.SIGINT)
    until(lambda: Path("told-0").exists() and Path("told-1").exists())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=MOST_SECONDS)
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
    process = supervisor(TRAINING)
    until(all_ready)
    process.send_signal(number)
    _, errors = process.communicate(timeout=MOST_SECONDS)
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
    process = supervisor(TRAINING, grace_seconds=600)
    until(all_ready)
    process.send_signal(signal.SIGINT)
    line = process.stderr.readline()
    assert "A second Ctrl-C ends it at once, without the steps since its last checkpoint." in line
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 130, errors
    assert "This run has no checkpoint yet" in errors
    assert marked(mark) == []


def test_trial_of_a_sweep_is_not_saved(mark, monkeypatch):
    monkeypatch.setenv(TRIAL_VARIABLE, "1")
    process = supervisor(TRAINING)
    until(all_ready)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 130
    assert "saved" not in errors
    assert not Path("run/checkpoint.npz").exists()


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), 9)", 3), ("sys.exit(0)", 0)]
)
def test_what_happens_instead_of_saving_is_said(mark, end, code):
    # A disk that is full, a process that dies, and a run that was at its end.
    program = TRAINING.replace("        if chief:\n", f"        {end}\n        if chief:\n")
    process = supervisor(program)
    until(all_ready)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=MOST_SECONDS)
    said = {5: "ended with exit code 5", 3: "was killed by SIGKILL", 0: "The run was at its end"}
    assert said[code] in errors
    # Of a run that is complete, the signal ends what the caller does next.
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
        folder, noted, verbose=False, grace_seconds=2, hang_seconds=0
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
    assert outcome == Outcome(143, "interrupted by SIGTERM")
    assert "tfunet: Saved after step" in said[-1]


def test_ctrl_c_of_a_terminal_reaches_only_the_supervisor(mark):
    process = supervisor(BUSY)
    until(all_ready)
    # A terminal signals the process group in its foreground.
    others = [
        marked_process for marked_process in marked(mark) if marked_process.pid != process.pid
    ]
    assert os.getpgid(process.pid) not in {os.getpgid(other.pid) for other in others}
    process.terminate()
    process.communicate(timeout=MOST_SECONDS)


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
    assert outcomes == [Outcome(0)]


# -- what a process is given

REPORT = """
names = ["TFUNET_CORES", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
         "TF_CPP_MIN_LOG_LEVEL", "PYTHONUNBUFFERED"]
with open(f"report-{index}", "w") as file:
    json.dump({"place": place, "cores": sorted(os.sched_getaffinity(0)),
               "variables": [os.environ.get(name) for name in names]}, file)
"""


def test_each_process_has_its_own_cores_and_threads_to_match(mark, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // 2
    assert run(REPORT).exit_code == 0
    reports = [json.loads(Path(f"report-{index}").read_text()) for index in range(2)]
    for index, report in enumerate(reports):
        mine = cores[index * share : (index + 1) * share]
        assert report["cores"] == mine
        assert report["variables"][0] == ",".join(map(str, mine))
        assert report["variables"][1:] == [str(share)] * 3 + ["2", "1"]
        assert report["place"]["process_index"] == index
        assert report["place"]["process_count"] == 2
        assert report["place"]["num_replicas"] == 2
    assert reports[0]["place"]["addresses"] == reports[1]["place"]["addresses"]
    assert len(set(reports[0]["place"]["addresses"])) == 2


def test_log_level_of_the_user_is_kept(mark, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    assert run(REPORT, num_replicas=1).exit_code == 0
    assert json.loads(Path("report-0").read_text())["variables"][4] == "0"


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"backend": "single"}, 1),
        ({"backend": "mirrored", "num_replicas": 2}, 1),
        ({"backend": "multiworker", "num_replicas": 2}, 2),
        ({"backend": "horovod", "num_replicas": 4}, 4),
        ({"backend": "horovod", "num_replicas": 4, "processes": 2}, 2),
        ({"backend": "mine:Backend", "num_replicas": 3}, 3),
    ],
)
def test_number_of_processes(options, count):
    assert num_processes(RunConfig(**options)) == count


def test_replicas_of_one_process_share_its_cores():
    config = RunConfig(backend="horovod", num_replicas=4, processes=2)
    assert [number.cores for number in plan_processes(config, range(9))] == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
    ]
    config = RunConfig(backend="mirrored", num_replicas=2)
    assert [plan.cores for plan in plan_processes(config, [3, 5])] == [(3, 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_replicas": 3},
            "num_replicas=3 needs a CPU core for each replica, but 2 can be used here. Give "
            "num_replicas=2 or fewer.",
        ),
        (
            {"num_replicas": 2, "cores_per_replica": 2},
            "num_replicas=2 with cores_per_replica=2 needs 4 CPU cores, but 2 can be used here. "
            "Give cores_per_replica=1 or fewer, or fewer replicas.",
        ),
        (
            {"backend": "mirrored", "num_replicas": 2, "processes": 2},
            "The backend 'mirrored' runs in one process, got processes=2. Leave out processes",
        ),
        (
            {"num_replicas": 1, "processes": 2},
            "num_replicas=1 cannot be shared equally by process_count=2.",
        ),
        ({"backend": "horovd"}, "Unknown backend 'horovd'. Did you mean 'horovod'?"),
        # However many are asked for.
        ({"num_replicas": 10**30}, "needs a CPU core for each replica, but 2"),
        ({"stages": 10**30}, f"needs a CPU core for each of {10**30} devices, but 2"),
        (
            {"num_replicas": 1, "processes": 10**30},
            f"num_replicas=1 cannot be shared equally by process_count={10**30}.",
        ),
    ],
)
def test_run_that_this_machine_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_processes(RunConfig(**{"backend": "horovod", **options}), [0, 1])


def test_refused_run_writes_nothing(mark):
    with pytest.raises(ValueError, match="needs a CPU core for each replica"):
        run("pass", num_replicas=len(os.sched_getaffinity(0)) + 1)
    assert not Path("run").exists()


def test_ports_are_free_before_and_after(mark):
    outcome = run(
        """
host, port = place["addresses"][index].split(":")
server = socket.create_server((host, int(port)))
open(f"ready-{index}", "w").write(port)
while index == 0 and not os.path.exists("ready-1"):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    )
    assert outcome.exit_code == 3
    for index in range(2):
        port = int(Path(f"ready-{index}").read_text())
        with socket.socket() as again:
            again.bind(("127.0.0.1", port))


def test_ports_differ():
    assert len(set(free_ports(50))) == 50


# -- output


def test_terminal_shows_the_chief_and_logs_have_everyone(mark, capfd):
    assert run("print('out', index); print('err', index, file=sys.stderr)").exit_code == 0
    shown = capfd.readouterr()
    assert shown.out == "[0] out 0\n"
    assert shown.err == "[0] err 0\n"
    for index in range(2):
        lines = Path(f"run/log-{index}.txt").read_text().splitlines()
        assert sorted(lines) == [f"err {index}", f"out {index}"]


def test_verbose_shows_everyone(mark, capfd):
    run("print('out', index)", verbose=True)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] out 0", "[1] out 1"]


def test_single_process_has_no_prefix_and_its_progress_bar_moves(mark, capfd):
    run("print('\\r 50%', end=''); print('\\r100%')", num_replicas=1)
    assert capfd.readouterr().out == "\r 50%\r100%\n"
    assert Path("run/log-0.txt").read_text() == "100%\n"


def test_failing_process_shows_the_end_of_what_it_wrote(mark, capfd):
    program = """
if index == 1:
    for line in range(50):
        print("line", line)
    sys.exit(2)
time.sleep(600)
"""
    run(program)
    lines = capfd.readouterr().err.splitlines()
    assert lines[:20] == [f"[1] line {line}" for line in range(30, 50)]
    assert lines[20:] == [
        "tfunet: process 1 of 2 ended with exit code 2, see log-1.txt",
        "tfunet: All its output is in run/log-1.txt",
    ]
    failure = RunFolder(Path("run")).read_failure()
    assert failure["reason"].endswith("see log-1.txt: line 49")


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        ("print('error: no', file=sys.stderr); sys.exit(2)", ["error: no"]),
        ("sys.exit(2)", 2 * ["tfunet: "]),  # Nothing else says what happened.
        ("print('error: no', file=sys.stderr); sys.exit(4)", ["error: no", *2 * ["tfunet: "]]),
    ],
)
def test_an_error_of_use_of_a_single_process_is_said_once(mark, capfd, end, lines):
    run(end, num_replicas=1)
    said = capfd.readouterr().err.splitlines()
    assert [line.startswith(start) for line, start in zip(said, lines, strict=True)] == [
        True for _ in lines
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_what_all_processes_found_wrong_is_said_once(mark, monkeypatch, capfd, first):
    monkeypatch.setattr(supervisor_module, "SETTLE_SECONDS", MOST_SECONDS)
    program = f"""
while index != {first} and not os.path.exists("pid"):
    time.sleep(0.01)
while index != {first} and os.path.exists("/proc/" + open("pid").read()):
    time.sleep(0.01)
print("error: split = [9, 1] has too many parts", file=sys.stderr, flush=True)
if index == {first}:
    with open("new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("new", "pid")
sys.exit(2)
"""
    assert run(program).exit_code == 2
    said = [line for line in capfd.readouterr().err.splitlines() if "too many parts" in line]
    assert [line[4:] for line in said] == ["error: split = [9, 1] has too many parts"]
    assert "too many parts" in RunFolder(Path("run")).read_failure()["reason"]


def test_last_words_of_a_single_process_are_not_lost(mark):
    # It ends while its pipe holds more than one read, and nobody else is left to wait for.
    program = """
import fcntl
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 2**20)
sys.stdout.write("x\\n" * 250000 + "the end\\n")
sys.stdout.flush()
sys.exit(1)
"""
    outcome = run(program, num_replicas=1)
    assert outcome.reason == "process 0 of 1 ended with exit code 1, see log-0.txt: the end"
    assert Path("run/log-0.txt").stat().st_size == 2 * 250000 + len("the end\n")


def test_chief_knows_of_the_terminal_behind_the_supervisor(mark, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    program = """
names = ("TFUNET_TERMINAL", "COLUMNS")
with open(f"ready-{index}", "w") as file:
    file.write(" ".join(str(os.environ.get(name)) for name in names))
"""
    for with_terminal in (True, False):
        main, other = os.openpty()
        errors = other if with_terminal else subprocess.DEVNULL
        subprocess.run([sys.executable, "-c", SUPERVISOR, PRELUDE + program, "2"], stderr=errors)
        os.close(main)
        os.close(other)
        # A progress bar and its prefix fit into one line.
        assert Path("ready-0").read_text() == ("1 96" if with_terminal else "None 100")
        assert Path("ready-1").read_text() == "None 100"


def test_reader_that_went_away_does_not_end_the_run(mark):
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, PRELUDE + "for i in range(9): print(i)", "2"],
        stdout=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.wait(MOST_SECONDS) == 0
    assert Path("run/log-0.txt").read_text() == "".join(f"{i}\n" for i in range(9))


def test_full_disk_under_the_logs_ends_the_run_and_is_named(mark):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", limit + SUPERVISOR, PRELUDE + "print('x' * 30000)" + BUSY, "2"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    _, errors = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 5
    assert "Cannot write run/log-" in errors
    assert "Free space there" in errors
    assert RunFolder(Path("run")).read_failure()["exit_code"] == 5


# -- the folder


def test_second_supervisor_in_a_folder_is_refused(mark):
    process = supervisor(BUSY)
    until(all_ready)
    with pytest.raises(ValueError, match=f"in use by process {process.pid} "):
        run("pass")
    process.terminate()
    process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 143
    assert run("pass") == Outcome(0)


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
