"""A process that hangs is named, writes its stacks, and the run ends."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tfunet
from tfunet.bench.launch.launch_run import launch
from tfunet.bench.launch.processes_to_start import fewer
from tfunet.config.run import RunConfig
from tfunet.process.watchdog import OWN_CODE, Beat, Watch
from tfunet.record import RunFolder

# Far more than it takes on a loaded machine.
MOST_SECONDS = 120
WORKER = """
import json, os, signal, sys, time
from tfunet.process.watchdog import dump_stacks_when_asked, pulse_to_supervisor
dump_stacks_when_asked()
index = json.loads(os.environ["TFUNET_LAUNCH"])["process_index"]
pulse = pulse_to_supervisor()

def waits_for_others():
    while True:
        time.sleep(0.1)

"""
MET = """
import os, signal, time
from tfunet.process.launcher_variables import find_place
from tfunet.process.meeting import Meeting
from tfunet.process.watchdog import dump_stacks_when_asked
dump_stacks_when_asked()
place = find_place(os.environ)
meeting = Meeting(place, "code", [], b"known to all processes of a run")
pulse = meeting.watch(3)
pulse.begin("step 1", 1)
if str(place.index) == os.environ["STOPPED"]:
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    pulse.begin("step 1", 1)
    time.sleep(0.1)
"""


def watch(count=2, limit=10.0):
    return Watch([(index, f"process {index}") for index in range(count)], limit, 0.0)


def test_nobody_hangs_who_gets_on_in_time():
    one = watch()
    for now in range(40):
        for index in range(2):
            one.hear(index, Beat(now // 9, now, f"step {now}"), now)
        assert one.hanging(now) is None


def test_who_gives_no_sign_is_named_with_what_it_did_last():
    one = watch()
    one.hear(1, Beat(1, 5, "step 5"), 1)
    for now in range(12):
        one.hear(0, Beat(now, 6, "step 6"), now)
        assert one.hanging(now) is None
    assert one.hanging(12) == (1, "process 1 hangs: no sign of it for 10 s, since step 5")


def test_who_is_behind_is_named_where_nobody_gets_on():
    one = watch(3)
    for now in range(13):
        for index, beat in enumerate([Beat(9, 7, "step 7"), Beat(8, 6, "callbacks after step 6")]):
            one.hear(index, beat, now)
        one.hear(2, Beat(9, 7, "step 7"), now)
        found = one.hanging(now)
    assert found == (
        1,
        "process 1 hangs: callbacks after step 6 for 10 s, and process 0 waits in step 7",
    )


def test_where_none_is_behind_all_are_told():
    one = watch()
    for now in range(13):
        one.hear(0, Beat(9, 7, "step 7"), now)
        one.hear(1, Beat(8, 7, "saving"), now)
        found = one.hanging(now)
    assert found == (
        None,
        "the run hangs: for 10 s, process 0 is in step 7, process 1 is in saving",
    )


def test_one_that_gets_on_is_enough():
    one = watch()
    for now in range(40):
        one.hear(0, Beat(1, 0, "start"), now)  # Waits while the other decodes.
        one.hear(1, Beat(now, 0, "decoding"), now)
        assert one.hanging(now) is None


def test_own_code_may_take_as_long_as_nobody_waits_for_it():
    one = watch()
    for now in range(40):
        for index in range(2):
            one.hear(index, Beat(9, 7, OWN_CODE), now)
        assert one.hanging(now) is None
    one.hear(0, Beat(10, 8, "step 8"), 40)
    for now in range(41, 52):
        assert one.hanging(now - 1) is None
        one.hear(0, Beat(10, 8, "step 8"), now)
        one.hear(1, Beat(9, 7, OWN_CODE), now)
    assert one.hanging(51) == (
        1,
        "process 1 hangs: its own code for 10 s, and process 0 waits in step 8",
    )


def test_who_has_ended_is_not_expected():
    one = watch()
    one.forget(1)
    for now in range(40):
        one.hear(0, Beat(now, now, "saving"), now)
        assert one.hanging(now) is None


def test_a_watch_that_slept_blames_nobody():
    one = watch()
    assert one.hanging(1) is None
    assert one.hanging(5000) is None  # A laptop's lid, or SLURM's gang scheduling.
    one.hear(0, Beat(), 5001)
    one.hear(1, Beat(), 5001)
    assert one.hanging(5004) is None


def run(program, tmp_path, monkeypatch, **settings):
    monkeypatch.setenv("PYTHONPATH", str(Path(tfunet.__file__).parents[1]))
    config = RunConfig(backend="horovod", num_replicas=2, **settings)
    command = [sys.executable, "-c", WORKER + program]
    return launch(config, tmp_path / "run", command=command)


def test_stopped_process_ends_the_run(tmp_path, monkeypatch):
    program = """
pulse.begin("step 3", 3)
if index == 1:
    time.sleep(2.5)
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    pulse.begin("step 3", 3)
    time.sleep(0.1)
"""
    outcome = run(program, tmp_path, monkeypatch, hang_seconds=3)
    assert (outcome.exit_code, outcome.process) == (3, 1)
    assert outcome.reason.startswith("process 1 of 2 hangs: no sign of it for 3 s, since step 3")
    assert "stopped" in outcome.reason
    # Its own stacks too: it is woken for them.
    for index in range(2):
        assert "most recent call first" in (tmp_path / f"run/log-{index}.txt").read_text()


def test_process_that_waits_for_ever_is_named_with_its_stack(tmp_path, monkeypatch):
    program = """
pulse.begin("step 3", 3)
if index == 0:
    pulse.begin("step 4", 4)
waits_for_others()
"""
    outcome = run(program, tmp_path, monkeypatch, hang_seconds=3)
    assert (outcome.exit_code, outcome.process) == (3, 1)
    assert "step 3 for 3 s, and process 0 of 2 waits in step 4" in outcome.reason
    assert "waits_for_others" in (tmp_path / "run/log-1.txt").read_text()


@pytest.mark.parametrize("stopped", [0, 1])
def test_processes_that_met_end_when_one_is_stopped(stopped):
    def start(index):
        variables = {
            "TFUNET_HOSTS": "127.0.0.1,127.0.0.1",
            "TFUNET_PROCESS": str(index),
            "STOPPED": str(stopped),
            "PYTHONPATH": str(Path(tfunet.__file__).parents[1]),
        }
        return subprocess.Popen(
            [sys.executable, "-c", MET],
            env={**os.environ, **variables},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    processes = [start(index) for index in range(2)]
    try:
        _, said = processes[1 - stopped].communicate(timeout=MOST_SECONDS)
        assert processes[1 - stopped].returncode == 3
        who = f"process {stopped} of 2 on 127.0.0.1"
        assert f"error: {who} hangs: no sign of it for 3 s, since step 1" in said
        assert "most recent call first" in said
        is_stopped = psutil.Process(processes[stopped].pid).status() == psutil.STATUS_STOPPED
        assert is_stopped  # srun or mpirun ends it.
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_who_fails_because_another_is_stopped_is_not_blamed(tmp_path, monkeypatch):
    # As TensorFlow's collectives do, whose patience is shorter.
    program = """
if index == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
pulse.begin("step 2", 2)
time.sleep(2)
sys.exit(3)
"""
    # Also where nothing limits how long a process may hang.
    outcome = run(program, tmp_path, monkeypatch, hang_seconds=0)
    assert (outcome.exit_code, outcome.process, outcome.is_lost) == (3, 1, True)
    assert outcome.reason.startswith("process 1 of 2 hangs: it is stopped, as by SIGSTOP, since")


def test_error_beside_a_silent_process_is_that_of_the_one_that_failed(tmp_path, monkeypatch):
    # The other has not begun to give signs: a slow disk, or TensorFlow's import.
    program = """
if index == 0:
    time.sleep(1)
    raise RuntimeError("a mistake in the model")
time.sleep(600)
"""
    config = RunConfig(backend="horovod", num_replicas=2, elastic=True)
    monkeypatch.setenv("PYTHONPATH", str(Path(tfunet.__file__).parents[1]))
    prelude = WORKER.replace("pulse = pulse_to_supervisor()", "")
    outcome = launch(config, tmp_path / "run", command=[sys.executable, "-c", prelude + program])
    assert (outcome.exit_code, outcome.process, outcome.is_lost) == (3, 0, False)
    assert "a mistake in the model" in outcome.reason


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"num_replicas": 4, "global_batch": 8}, (2, 4, None)),  # Three do not divide it.
        ({"num_replicas": 3, "global_batch": 6}, (2, 3, None)),
        ({"num_replicas": 2, "global_batch": 2}, (1, 2, None)),
        ({"num_replicas": 4, "processes": 2, "global_batch": 8}, (2, 4, 1)),
        ({"num_replicas": 4, "global_batch": 16, "accumulation": 4}, (2, 8, None)),
        # Three can share out the twelve tiles of a sample.
        ({"num_replicas": 4, "global_batch": 1, "tiling": (3, 4)}, (3, 1, None)),
        ({"num_replicas": 1, "global_batch": 2}, None),
    ],
)
def test_elastic_run_keeps_its_global_batch(given, left):
    config = RunConfig(backend="multiworker", elastic=True, **given)
    found = fewer(config)
    if left is None:
        assert found is None
    else:
        assert (found.num_replicas, found.replica_batch, found.processes) == left
        assert found.global_batch == config.global_batch


def test_elastic_run_goes_on_after_a_death_and_not_after_an_error(tmp_path, monkeypatch):
    death = """
if index == 1 and not os.path.exists("died"):
    open("died", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1.5)
"""
    monkeypatch.chdir(tmp_path)
    assert run(death, tmp_path, monkeypatch, elastic=True, global_batch=4).exit_code == 0
    config = RunFolder(tmp_path / "run").read_config()
    assert (config.num_replicas, config.replica_batch) == (1, 4)
    failed = run("raise SystemExit(3)", tmp_path / "other", monkeypatch, elastic=True)
    assert (failed.exit_code, failed.is_lost) == (3, False)


def test_elastic_with_one_process_is_refused(tmp_path, monkeypatch):
    config = RunConfig(backend="mirrored", num_replicas=2, elastic=True)
    with pytest.raises(ValueError, match="has only one"):
        launch(config, tmp_path / "run")


def test_elastic_run_that_is_done_is_not_begun_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = """
if index == 0:
    open("run/result.json", "w").write("{}")
else:
    while not os.path.exists("run/result.json"):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    outcome = run(program, tmp_path, monkeypatch, elastic=True)
    assert (outcome.exit_code, outcome.process) == (3, 1)


def test_elastic_run_where_nobody_is_to_blame_is_ended(tmp_path, monkeypatch):
    program = "pulse.begin('step 3', 3)\nwaits_for_others()"
    outcome = run(program, tmp_path, monkeypatch, elastic=True, hang_seconds=3)
    assert (outcome.exit_code, outcome.process, outcome.is_lost) == (3, None, False)
    assert "process 0 of 2 is in step 3, process 1 of 2 is in step 3" in outcome.reason
