"""What a job script runs around srun: it says how a trial ended, and runs no other code."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tfunet import exit_codes
from tfunet.bench.launch.sweep_folder import write_plan
from tfunet.bench.records.sweep_record import planned_trial
from tfunet.bench.slurm_trial import main
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.machine.environment import code_hash

RESULT = {
    "schema_version": 1,
    "images_per_second": 12.5,
    "num_replicas": 1,
    "checks": {"samples": True},
}


class Job:
    """One trial of a sweep, run by commands of the shell where a script has srun."""

    def __init__(self, root, monkeypatch):
        self.monkeypatch = monkeypatch
        planned = plan_trials(study_from_dict({"base": {"cores_per_replica": 1}}), 1)
        write_plan(planned, root)
        self.root, self.name = root, planned.trials[0].id
        self.folder = root / self.name

    def run(self, *lines, code=None):
        script = "\n".join((f"cd {shlex.quote(str(self.folder))}", *lines))
        command = [
            "trial",
            "--code",
            code or code_hash(),
            str(self.folder),
            "/bin/sh",
            "-c",
            script,
        ]
        self.monkeypatch.setattr(sys, "argv", command)
        return main()

    @property
    def state(self):
        trial = planned_trial(self.root, self.name)
        return trial.state, trial.reason


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    return Job(tmp_path, monkeypatch)


WELL = f"echo {shlex.quote(json.dumps(RESULT))} > result.json"


def test_a_trial_that_ended_well_is_done_and_never_runs_again(job):
    assert job.run(WELL) == exit_codes.OK
    assert job.state == ("done", "")
    assert (job.folder / "config.json").is_file()
    assert job.run("touch again") == exit_codes.OK
    assert not (job.folder / "again").exists()


def test_other_code_than_was_planned_does_not_run(job):
    assert job.run("touch ran", code="000000000000") == exit_codes.BAD_INPUT
    assert not (job.folder / "ran").exists()
    state, reason = job.state
    assert state == "failed"
    assert f"from 000000000000 to {code_hash()}" in reason
    assert "tfunet sweep resume" in reason


def test_who_died_and_where_is_written_down(job):
    died = "echo 'srun: error: n10: task 1: Killed' >&2"
    words = "echo 'RuntimeError: the other end is gone' > log-1.txt"
    assert job.run(words, died, "exit 137") == exit_codes.PROCESS_DIED
    assert job.state == (
        "failed",
        "process 1 on n10: Killed, see log-1.txt: RuntimeError: the other end is gone",
    )


def test_a_step_that_could_not_start_says_why(job):
    error = "srun: error: Unable to create step for job 3: Invalid generic resource"
    assert job.run(f"echo '{error}' >&2", "exit 1") == exit_codes.PROCESS_DIED
    assert job.state == ("failed", error)


def test_a_trial_that_cannot_be_queued_again_waits_for_resume(job, capsys):
    job.monkeypatch.setenv("PATH", str(job.root))  # Without scontrol.
    assert job.run("exit 75") == exit_codes.STOPPED
    state, reason = job.state
    assert state == "interrupted"
    assert reason.startswith(
        "stopped by a signal of SLURM after step 0, to run again: this attempt made 0 steps in 0 s"
    )
    steps = "step,seconds,loss,traced\\n1,100,0.5,1\\n2,200,0.5,0\\n"
    assert job.run(f"printf '{steps}' > steps.csv", "exit 75") == exit_codes.STOPPED
    assert "after step 2, to run again: this attempt made 2 steps" in job.state[1]
    assert job.state[1].endswith(" s")  # Steps took the time.
    assert "tfunet sweep resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("restarts", "left", "goes_on"),
    [
        ("1", "checkpoint.npz", True),
        ("1", "log-0.txt", False),  # It had not come to its first checkpoint.
        ("0", "checkpoint.npz", False),  # Another job: its times are not to be mixed.
    ],
)
def test_only_what_slurm_queued_again_goes_on_from_its_checkpoint(job, restarts, left, goes_on):
    job.run(f"touch {left}", "exit 1")
    job.monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    assert job.run(f"[ -e {left} ] && touch there", WELL) == exit_codes.OK
    assert (job.folder / "there").exists() == goes_on
    assert (job.root / "earlier").exists() == (not goes_on)


def test_a_folder_that_is_none_of_the_sweep_is_refused(job, capsys):
    job.folder = Path(job.root, "nonesuch")
    assert job.run("true") == exit_codes.BAD_INPUT
    assert "has no trial 'nonesuch'" in capsys.readouterr().err
