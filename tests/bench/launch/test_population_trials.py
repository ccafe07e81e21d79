"""Trainers of a tournament are started together. A stand-in for `tfunet train` is what runs."""

import json
import os
import signal
import sys
import threading
from dataclasses import replace

import pytest
from fake_sweeps import quiet

from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.slurm_submit import dry_run
from tfunet.bench.launch.sweep_status import status
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.study.slurm_settings import Slurm
from tfunet.bench.study.study_file import study_from_dict
from tfunet.machine.cores import usable_cores

# Notes when it ran and where, waits until `together` trainers are there, and ends as it is told.
TRAINER = """
import json, os, signal, sys, time
from pathlib import Path
folder, together, ends = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
attempt = len(list(folder.glob("attempt-*")))
attempt += len(list(folder.parent.glob(f"earlier/{folder.name}-*")))
cores = sorted(os.sched_getaffinity(0))
note = {"cores": cores, "places": os.environ.get("TFUNET_PLACES"), "began": time.time()}
(folder / f"attempt-{attempt}").write_text(json.dumps(note))
(folder / "checkpoint.npz").write_text("x")
while len(list(folder.parent.glob("*/attempt-0"))) < together:
    time.sleep(0.01)
end = ends[min(attempt, len(ends) - 1)]
if end == "killed early":
    (folder / "checkpoint.npz").unlink()
if end.startswith("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
if end == "waits":
    time.sleep(60)
if end == "bad input":
    print("error: no such data set")
    sys.exit(2)
result = {"schema_version": 1, "images_per_second": 12.5, "elapsed_seconds": 0.5}
result |= {"num_replicas": 1, "dice": {"cell": 0.5}, "checks": {"samples": True}}
(folder / "result.json").write_text(json.dumps(result))
if end == "done and killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def study(trainers, **changes):
    tournament = {"trainers": trainers, "round_steps": 1, **changes}
    return study_from_dict(
        {"name": "t", "tournament": tournament, "base": {"cores_per_replica": 1}}
    )


def run(study, folder, *, together=0, ends=None, lines=None):
    ends = {} if ends is None else ends

    def command(path):
        number = [trial.folder for trial in read_sweep(folder).trials].index(path)
        how = ends.get(number, ["well"])
        return [sys.executable, "-I", "-S", "-c", TRAINER, str(path), str(together), *how]

    say = [].append if lines is None else lines.append
    return run_sweep(study, folder, command=command, say=say, noise=quiet)


def attempts(folder):
    return [
        [json.loads(path.read_text()) for path in sorted(trial.folder.glob("attempt-*"))]
        for trial in read_sweep(folder).trials
    ]


def test_trainers_run_at_the_same_time_and_one_that_dies_is_started_again(tmp_path):
    trainers, lines = len(usable_cores()) + 1, []
    ends = {0: ["killed", "well"], 1: ["bad input"]}
    code = run(study(trainers), tmp_path, together=trainers, ends=ends, lines=lines)
    assert code == 2
    found = attempts(tmp_path)
    # One that was refused is not tried again. All went on from where they were.
    assert [len(attempt) for attempt in found] == [2, 1] + [1] * (trainers - 2)
    assert not (tmp_path / "earlier").exists()
    # There are more trainers than cores.
    places = len(usable_cores())
    assert [attempt[0]["cores"] for attempt in found] == [
        [usable_cores()[trainer % places]] for trainer in range(trainers)
    ]
    assert {attempt[0]["places"] for attempt in found} == {str(places)}
    assert any("take turns in" in line for line in lines)
    assert any("died; it goes on from its checkpoint (restart 1)" in line for line in lines)
    states = [trial.state for trial in read_sweep(tmp_path).trials]
    assert states == ["done", "failed"] + ["done"] * (trainers - 2)
    # The next run of the sweep goes on with the one that failed.
    assert run(study(trainers), tmp_path) == 0
    assert [len(attempt) for attempt in attempts(tmp_path)] == [2, 2] + [1] * (trainers - 2)


def test_trainers_with_a_place_each_take_no_turns(tmp_path):
    if len(usable_cores()) < 2:
        pytest.fail("This test needs two cores.")
    assert run(study(2), tmp_path, together=2) == 0
    assert {attempt[0]["places"] for attempt in attempts(tmp_path)} == {None}


def test_independent_runs_follow_each_other_where_cores_are_too_few(tmp_path):
    trainers = 2 * len(usable_cores())
    assert run(study(trainers, selection="none"), tmp_path) == 0
    found = attempts(tmp_path)
    for first, second in zip(found[: trainers // 2], found[trainers // 2 :], strict=True):
        assert first[0]["cores"] == second[0]["cores"]
        assert first[0]["began"] < second[0]["began"]


def test_one_that_dies_again_and_again_is_given_up_and_the_others_end(tmp_path):
    assert run(study(2), tmp_path, ends={1: ["killed"]}) == 3
    assert [len(attempt) for attempt in attempts(tmp_path)] == [1, 3]
    assert read_sweep(tmp_path).trials[1].reason == "killed by SIGKILL"


def test_one_is_started_again_only_if_it_has_not_ended_and_anew_only_without_a_checkpoint(tmp_path):
    lines = []
    ends = {0: ["done and killed"], 1: ["killed early", "well"]}
    assert run(study(2), tmp_path, ends=ends, lines=lines) == 0
    assert [len(attempt) for attempt in attempts(tmp_path)] == [1, 1]
    assert [line.partition("; ")[2] for line in lines if "died" in line] == [
        "it begins anew (restart 1)."
    ]
    assert len(list((tmp_path / "earlier").iterdir())) == 1


def test_a_signal_ends_all_trainers_and_status_shows_those_that_run(tmp_path):
    seen, is_over = [], threading.Event()

    def end():
        while len(list(tmp_path.glob("single*/attempt-0"))) < 2:
            if is_over.wait(0.02):
                return
        seen.extend(row["state"] for row in status(tmp_path)["trials"])
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    try:
        code = run(study(2), tmp_path, together=2, ends={0: ["waits"], 1: ["waits"]})
    finally:
        is_over.set()
        thread.join()
    assert code == 143
    assert seen == ["running", "running"]
    assert [trial.state for trial in read_sweep(tmp_path).trials] == ["interrupted"] * 2


def test_fewer_jobs_at_a_time_than_trainers_are_refused(tmp_path):
    few = replace(study(3), slurm=Slurm(max_running=2))
    with pytest.raises(ValueError, match=r"max_running=2 .* than the 3 trainers of a tourn"):
        dry_run(few, tmp_path)
    assert "--array=0-2\n" in dry_run(study(3), tmp_path)
    independent = replace(study(3, selection="none"), slurm=Slurm(max_running=2))
    assert "--array=0-2%2" in dry_run(independent, tmp_path)
