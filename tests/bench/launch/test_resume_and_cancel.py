"""A sweep of this machine is resumed, retried, awaited and cancelled by its folder alone."""

import functools
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import SUPPORT

from tfunet import exit_codes
from tfunet.bench.launch import resume_and_cancel
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.slurm_submit import wait_for
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.study.study_file import read_study

FAKE = SUPPORT / "fake_trial.py"
# Without a name: it has that of its file, which is another one in the sweep's folder.
STUDY = "[base]\ncores_per_replica = 1\n[grid]\nepochs = [1, 2, 3]\n"


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs trials that end as told, and says which ones were started."""
    (tmp_path / "mine.toml").write_text(STUDY)
    behaviours, started = [], []

    def command(folder):
        started.append(folder.name)
        return [sys.executable, "-I", "-S", str(FAKE), behaviours.pop(0), str(folder)]

    run = functools.partial(run_sweep, command=command, noise=lambda: {"spread": 0.01})
    monkeypatch.setattr(resume_and_cancel, "run_sweep", run)
    folder = tmp_path / "logs"

    def act(function, *given, **options):
        behaviours[:] = given
        started.clear()
        return function(**options), len(started)

    act.first = functools.partial(run, read_study(tmp_path / "mine.toml"), folder)
    act.folder = folder
    return act


def test_resume_runs_what_is_not_done_and_retry_what_failed(sweep):
    assert sweep(sweep.first, "well", "usage", "disk full") == (exit_codes.BAD_INPUT, 3)
    ended = next(trial for trial in read_sweep(sweep.folder).trials if trial.state == "done")
    (ended.folder / "result.json").unlink()  # As if it had been interrupted.

    retry = functools.partial(resume_and_cancel.resume_sweep, sweep.folder, states=("failed",))
    assert sweep(retry, "well", "usage")[1] == 2
    resume = functools.partial(resume_and_cancel.resume_sweep, sweep.folder)
    assert sweep(resume, "well", "well") == (exit_codes.OK, 2)
    assert sweep(resume) == (exit_codes.OK, 0)
    assert read_sweep(sweep.folder).name == "mine"


def test_sweep_is_resumed_where_its_paths_lead_somewhere(sweep, tmp_path, monkeypatch):
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    sweep(sweep.first, "usage", "usage", "usage")
    monkeypatch.chdir("/")
    ran_in = []
    real = resume_and_cancel.run_sweep
    monkeypatch.setattr(
        resume_and_cancel,
        "run_sweep",
        lambda *given, **more: ran_in.append(Path.cwd()) or real(*given, **more),
    )
    # By its name as seen from elsewhere.
    resume = functools.partial(resume_and_cancel.resume_sweep, sweep.folder.relative_to("/"))
    assert sweep(resume, "well", "well", "usage")[1] == 3
    assert ran_in == [there]
    assert Path.cwd() == Path("/")
    there.rmdir()
    with pytest.raises(ValueError, match="there, which does not exist here"):
        resume_and_cancel.resume_sweep(sweep.folder)


def test_wait_says_how_each_trial_ended(sweep):
    sweep(sweep.first, "well", "usage", "well")
    assert wait_for(sweep.folder, say=print, late_seconds=0) == exit_codes.BAD_INPUT
    sweep(functools.partial(resume_and_cancel.resume_sweep, sweep.folder), "well")
    assert wait_for(sweep.folder, late_seconds=0) == exit_codes.OK


def test_cancel_ends_a_running_sweep_as_a_whole(sweep, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from tfunet.bench.study.study_file import read_study\n"
        "from tfunet.bench.launch.local_sweep import run_sweep\n"
        f"command = lambda folder: [sys.executable, {str(FAKE)!r}, 'slow', str(folder)]\n"
        f"sys.exit(run_sweep(read_study({str(tmp_path / 'mine.toml')!r}), {str(sweep.folder)!r},"
        " command=command, noise=dict))\n"
    )
    running = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not list(sweep.folder.glob("*/started")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (name,) = [trial.id for trial in read_sweep(sweep.folder).trials if trial.state == "running"]
    with pytest.raises(ValueError, match="single trials cannot be cancelled"):
        resume_and_cancel.cancel_sweep(sweep.folder, [name])
    assert resume_and_cancel.cancel_sweep(sweep.folder) == [name]
    assert running.wait(timeout=100) == 128 + signal.SIGTERM
    assert resume_and_cancel.cancel_sweep(sweep.folder) == []


def test_a_trial_that_is_none_is_refused(sweep):
    sweep(sweep.first, "well", "well", "well")
    with pytest.raises(
        ValueError, match=r"has no trial 'nonesuch'\. List them: tfunet sweep status"
    ):
        resume_and_cancel.cancel_sweep(sweep.folder, ["nonesuch"])
