"""Trials become job scripts that a person can read; what SLURM says is read as it says it."""

import subprocess
from pathlib import Path

import pytest

from tfunet import exit_codes
from tfunet.bench.launch.slurm_job_script import (
    MOST_IN_ARRAY,
    ArrayJob,
    Shape,
    job_script,
    jobs_of,
    shape_of,
    trials_of,
)
from tfunet.bench.launch.slurm_queue import parse_queue
from tfunet.bench.launch.slurm_submit import dry_run
from tfunet.bench.slurm_trial import Ended, first_failure
from tfunet.bench.study.slurm_settings import Slurm, read_slurm
from tfunet.bench.study.study_file import read_study, study_from_dict
from tfunet.bench.study.toml_writer import study_toml
from tfunet.config.run import RunConfig

ONE = Shape(nodes=1, tasks=1, tasks_per_node=1, cpus_per_task=1, gpus_per_node=0)


def script(job, slurm=None, folder="/data/logs/mine"):
    return job_script(
        job,
        slurm or Slurm(),
        study="mine",
        path=Path(folder) / "slurm/001-1n1t1c.sh",
        folder=Path(folder),
        code="0123456789ab",
        python="/opt/python",
        cwd=Path("/data"),
    )


@pytest.mark.parametrize(
    ("settings", "slurm", "shape"),
    [
        ({}, {}, (1, 1, 1, 1, 0)),
        ({"backend": "horovod", "num_replicas": 4}, {}, (4, 4, 1, 1, 0)),
        ({"backend": "horovod", "num_replicas": 4}, {"processes_per_node": 2}, (2, 4, 2, 1, 0)),
        # The last node has one process less.
        ({"backend": "horovod", "num_replicas": 3}, {"processes_per_node": 2}, (2, 3, 2, 1, 0)),
        # One process holds all replicas, with their cores and GPUs.
        (
            {"backend": "mirrored", "num_replicas": 4, "cores_per_replica": 3},
            {"gpus_per_replica": 1, "processes_per_node": 4},
            (1, 1, 1, 12, 4),
        ),
        (
            {"backend": "multiworker", "num_replicas": 8, "processes": 2},
            {"gpus_per_replica": 1},
            (2, 2, 1, 4, 4),
        ),
    ],
)
def test_a_run_takes_what_its_processes_need(settings, slurm, shape):
    found = shape_of(RunConfig(**settings), Slurm(**slurm))
    assert tuple(vars(found).values()) == shape


def test_trials_of_one_shape_share_an_array_and_no_array_is_too_long():
    trials = [(f"t{n}", RunConfig()) for n in range(MOST_IN_ARRAY + 1)]
    trials.insert(1, ("two", RunConfig(backend="horovod", num_replicas=2)))
    jobs = jobs_of(trials, Slurm())
    assert [len(job.trials) for job in jobs] == [MOST_IN_ARRAY, 1, 1]
    assert jobs[2].trials == ("two",)
    assert [name for job in jobs[:2] for name in job.trials] == [
        name for name, _ in trials if name != "two"
    ]


def test_a_script_says_all_that_sbatch_and_srun_need():
    slurm = Slurm(
        partition="gpu",
        account="lab",
        constraint="a100",
        time="2:00:00",
        max_running=4,
        setup=("module load python/3.11",),
        sbatch=("--mem=0",),
        srun=("--mpi=pmix",),
    )
    shape = Shape(nodes=2, tasks=8, tasks_per_node=4, cpus_per_task=6, gpus_per_node=4)
    text = script(ArrayJob(shape=shape, trials=("a", "b")), slurm)
    options = [line[8:] for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert options[:2] == ["--job-name=tfunet-mine", "--array=0-1%4"]
    for option in ("--partition=gpu", "--account=lab", "--constraint=a100", "--time=2:00:00"):
        assert option in options
    for option in ("--nodes=2", "--ntasks=8", "--cpus-per-task=6", "--gpus-per-node=4", "--mem=0"):
        assert option in options
    assert "\nmodule load python/3.11\n" in text
    srun = text[text.index("srun --nodes") :]
    for option in ("--cpus-per-task=6", "--kill-on-bad-exit=1", "--export=ALL", "--mpi=pmix"):
        assert option in srun
    assert "--code 0123456789ab" in text


def test_a_script_runs_the_trial_of_its_array_index(tmp_path):
    """Bash itself runs it, with a printing program for Python, in a folder with a space."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nfor one; do echo "$one"; done\n')
    python.chmod(0o755)
    path = tmp_path / "a b/slurm/001-1n1t1c.sh"
    path.parent.mkdir(parents=True)
    text = job_script(
        ArrayJob(shape=ONE, trials=("first", "it's")),
        Slurm(),
        study="mine",
        path=path,
        folder=tmp_path / "a b",
        code="0",
        python=str(python),
        cwd=tmp_path,
    )
    path.write_text(text)
    assert trials_of(text) == ["first", "it's"]
    environment = {"SLURM_ARRAY_TASK_ID": "1", "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(["bash", path], env=environment, capture_output=True, text=True).stdout
    words = shown.splitlines()
    assert words[:5] == ["-m", "tfunet.bench.slurm_trial", "--code", "0", f"{tmp_path}/a b/it's"]
    assert words[5] == "srun"
    assert f"--output={tmp_path}/a b/it's/log-%t.txt" in words
    assert words[-3:] == ["-m", "tfunet.worker", f"{tmp_path}/a b/it's"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"partiton": "gpu"}, "Unknown key 'partiton' in .slurm.*partition"),
        ({"nodes": 2}, r"Any other option goes into sbatch = \[\"--option=value\"\]"),
        ({"time": "two hours"}, "time in .slurm. must be minutes or"),
        ({"max_running": 0}, "max_running in .slurm. must be at least 1, got 0"),
        ({"max_running": "4"}, "max_running in .slurm. must be a whole number, got the text '4'"),
        ({"partition": 3}, "partition in .slurm. must be a text, got 3"),
        ({"setup": "module load x"}, "setup in .slurm. must be a list of texts"),
        ({"signal_seconds": 0}, "signal_seconds in .slurm. must lie in 1..65535"),
    ],
)
def test_a_wrong_table_is_refused(table, words):
    with pytest.raises(ValueError, match=words):
        read_slurm(table)


def test_the_table_is_no_part_of_the_science(tmp_path):
    table = {"name": "mine", "case": [{"backend": "single"}]}
    study = study_from_dict({**table, "slurm": {"partition": "gpu", "setup": ["a", "b"]}})
    path = tmp_path / "study.toml"
    path.write_text(study_toml(study))
    assert read_study(path).slurm == study.slurm
    here, there = (dry_run(asked, tmp_path) for asked in (study, study_from_dict(table)))
    assert trials_of(here) == trials_of(there)
    assert "--partition=gpu" in here
    assert "partition" not in there
    assert not (tmp_path / "plan.json").exists()


def test_the_queue_is_read_as_squeue_22_05_writes_it():
    listing = (
        "2_1|PENDING|Resources|/data/logs/s/slurm/002-2n2t1c.sh\n"
        "1_0|RUNNING|None|/data/a|b/slurm/001-1n1t1c.sh\n"
        "17|COMPLETING|None|wrap\n"
    )
    pending, running, other = parse_queue(listing)
    assert (pending.job, pending.index, pending.is_waiting) == ("2_1", 1, True)
    assert (running.is_waiting, running.script) == (False, Path("/data/a|b/slurm/001-1n1t1c.sh"))
    assert other.index is None


@pytest.mark.parametrize(
    ("messages", "process", "host", "code"),
    [
        # As srun 22.05 wrote them; the first is the one to blame.
        (
            "srun: error: n2: task 0: Aborted\n"
            "srun: launch/slurm: _step_signal: Terminating StepId=3.0\n"
            "srun: error: n10: task 1: Killed\nsrun: Force Terminated StepId=3.0\n",
            *(0, "n2", exit_codes.PROCESS_DIED),
        ),
        (
            "srun: error: n10: task 1: Killed\nsrun: error: n2: task 0: Exited with exit code 1\n",
            *(1, "n10", exit_codes.PROCESS_DIED),
        ),
        (
            "srun: error: n2: tasks 0-1: Exited with exit code 2\n",
            *(0, "n2", exit_codes.BAD_INPUT),
        ),
    ],
)
def test_the_process_to_blame_is_the_first_that_srun_names(messages, process, host, code):
    failure = first_failure(messages)
    assert failure is not None
    assert (failure.process, failure.host, failure.exit_code) == (process, host, code)


def test_srun_that_started_nothing_names_nobody():
    assert first_failure("srun: error: Unable to create step: Invalid argument\n") is None
    assert first_failure("") is None
    assert Ended(host="n2", process=0, words="Exited with exit code 75").exit_code == 3
