"""What is not worth its remaining repeats is not run, and every record says so."""

import functools
import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from fake_sweeps import FAKE, quiet
from paths import ROOT
from synthetic_sweep import make_study, write_trial

from tfunet import exit_codes
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.analysis.trial_noise import noise_of_records
from tfunet.bench.launch import resume_and_cancel, slurm_submit
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.slurm_submit import dry_run, submit_sweep, wait_for
from tfunet.bench.launch.sweep_folder import write_plan
from tfunet.bench.launch.sweep_status import status
from tfunet.bench.records.sweep_record import TrialRecord, read_sweep
from tfunet.bench.report.findings import doubts
from tfunet.bench.report.sweep_report import summary_table, write_report
from tfunet.bench.study.hopeless import HopelessRule, read_rule, why_hopeless
from tfunet.bench.study.plan_text import plan_json, plan_table
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.toml_writer import study_toml
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.bench.trial import main
from tfunet.machine.environment import code_hash

TABLE = {
    "name": "fake",
    "repeats": 4,
    "base": {"cores_per_replica": 1},
    "case": [
        {"backend": "single"},
        {"backend": "mirrored", "num_replicas": 2},
        {"backend": "horovod", "num_replicas": 2},
    ],
    "hopeless": {"after": 2, "slower_than": 3.0},
}
RULE = HopelessRule()


class Sweeps:
    """Sweeps in one folder; `speeds` and `failing` say by parts of names how trials end."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        self.lines = []

    def run(self, speeds=(), failing=(), table=TABLE, act=None, **options):
        self.started, self.lines = [], []

        def command(folder):
            self.started.append(folder.name)
            speed = next(
                (value for name, value in dict(speeds).items() if name in folder.name), 12.5
            )
            way = (
                "worker died"
                if any(trial in folder.name for trial in failing)
                else f"speed {speed}"
            )
            return [sys.executable, "-I", "-S", str(FAKE), way, str(folder)]

        common = {"command": command, "num_cores": 2, "say": self.lines.append, "noise": quiet}
        if act is not None:
            return act(functools.partial(run_sweep, **common))
        return run_sweep(study_from_dict(table), self.folder, **common, **options)

    @property
    def trials(self):
        return {
            re.sub(r"-[0-9a-f]+$", "", trial.id): trial for trial in read_sweep(self.folder).trials
        }

    def states(self, name):
        return [self.trials[f"{name}-r{repeat}"].state for repeat in (1, 2, 3, 4)]


@pytest.fixture
def sweeps(tmp_path):
    return Sweeps(tmp_path / "sweep")


SLOW = {"horovod-2r-r1": 4.0, "horovod-2r-r2": 3.0}


def test_a_far_slower_cell_is_given_up_after_its_repeats(sweeps):
    assert sweeps.run(SLOW) == exit_codes.OK
    assert sweeps.states("horovod-2r") == ["done", "done", "hopeless", "hopeless"]
    assert sweeps.states("mirrored-2r") == sweeps.states("single-1r") == ["done"] * 4
    reason = "mirrored x2 was 3.1 and 4.2 times as fast in repeats 1 and 2"
    assert sweeps.trials["horovod-2r-r3"].reason == reason
    assert sum(f"not run, hopeless: {reason}" in line for line in sweeps.lines) == 2
    assert len(sweeps.started) == 10

    # Nothing is left to do, and nothing is timed for it.
    measured = len(read_sweep(sweeps.folder).noise)
    assert sweeps.run(SLOW) == exit_codes.OK
    assert sweeps.started == []
    assert len(read_sweep(sweeps.folder).noise) == measured
    assert not (sweeps.folder / "earlier").exists()


def test_one_repeat_within_the_limit_keeps_a_cell(sweeps):
    assert sweeps.run({"horovod-2r-r1": 1.0, "horovod-2r-r2": 4.5}) == exit_codes.OK
    assert sweeps.states("horovod-2r") == ["done"] * 4


def test_a_cell_that_only_fails_is_given_up_and_comes_back(sweeps):
    code = sweeps.run(failing=["horovod"])
    assert code == exit_codes.PROCESS_DIED
    assert sweeps.states("horovod-2r") == ["failed", "failed", "hopeless", "hopeless"]
    assert sweeps.trials["horovod-2r-r4"].reason == (
        "repeats 1 and 2 failed: process 1 of 2 was killed by SIGKILL"
    )
    # What failed is tried again as ever, and fails as before: no more of it is run.
    assert sweeps.run(failing=["horovod"]) == exit_codes.PROCESS_DIED
    assert len(sweeps.started) == 2
    assert sweeps.run() == exit_codes.OK
    assert len(sweeps.started) == 4
    assert sweeps.states("horovod-2r") == ["done"] * 4


@pytest.mark.parametrize("command", ["retry", "resume"])
def test_retry_and_resume_ask_the_same_question(sweeps, command, monkeypatch):
    sweeps.run(failing=["horovod"])
    states = ("failed",) if command == "retry" else resume_and_cancel.NOT_DONE

    def act(run):
        monkeypatch.setattr(resume_and_cancel, "run_sweep", run)
        return resume_and_cancel.resume_sweep(sweeps.folder, states=states)

    sweeps.run(failing=["horovod"], act=act)
    assert len(sweeps.started) == 2
    assert sweeps.states("horovod-2r")[2:] == ["hopeless"] * 2
    sweeps.run(failing=["horovod-2r-r2"], act=act)
    # Retry runs what failed and nothing else, and the others are no longer given up.
    then = ["waiting"] * 2 if command == "retry" else ["done"] * 2
    assert sweeps.states("horovod-2r") == ["done", "failed", *then]


def test_without_the_rule_everything_runs(sweeps):
    sweeps.run(SLOW)
    table = {key: value for key, value in TABLE.items() if key != "hopeless"}
    assert sweeps.run(SLOW, table=table) == exit_codes.OK
    assert [name[:13] for name in sorted(sweeps.started)] == ["horovod-2r-r3", "horovod-2r-r4"]
    assert not list(sweeps.folder.glob("*/hopeless.json"))
    assert not (sweeps.folder / "earlier").exists()


def test_repeats_that_never_ran_are_none_that_a_study_loses(sweeps):
    sweeps.run(SLOW)
    # Two of the three fourth repeats were run.
    with pytest.raises(ValueError, match="holds 2 trials that are not in study"):
        sweeps.run(SLOW, table={**TABLE, "repeats": 3})


def test_every_record_says_what_was_given_up(sweeps):
    sweeps.run(SLOW)
    answer = status(sweeps.folder)
    assert answer["counts"]["hopeless"] == 2
    assert answer["counts"]["failed"] == 0
    (doubt,) = [
        sentence
        for sentence in doubts(summarise(read_sweep(sweeps.folder)))
        if "given up" in sentence
    ]
    assert doubt == (
        "The cell backend=horovod num_replicas=2 was given up as hopeless, and 2 of its 4 repeats "
        "were not run: mirrored x2 was 3.1 and 4.2 times as fast in repeats 1 and 2."
    )
    text = summary_table(sweeps.folder)
    assert doubt in text
    assert re.search(r"horovod +2 +2 of 4 ", text)
    # Too few repeats for an interval, but more of them is no advice for this cell.
    assert "Some cells have only" not in text
    assert "have no numbers" not in text
    report = write_report(sweeps.folder)
    assert "given up as hopeless" in report.html.read_text()
    assert "| hopeless | - | - | - | - | - | mirrored x2 was" in report.markdown.read_text()
    assert wait_for(sweeps.folder, late_seconds=0) == exit_codes.OK


def test_a_given_up_cell_does_not_shorten_what_noise_is_read_from(sweeps):
    sweeps.run({**SLOW, "single-1r-r3": 14.0})
    noise = noise_of_records(summarise(read_sweep(sweeps.folder)))
    # Two cells of four repeats, and not three of two.
    assert noise.freedom == 3


def records(*speeds, table=TABLE):
    """The trials of a plan; `speeds` of a trial by a part of its name: a number or a state."""
    known = dict(speeds)
    collected = []
    for planned in plan_trials(study_from_dict(table), 8).trials:
        what = next((value for name, value in known.items() if name in planned.id), "waiting")
        trial = unread(planned)
        if isinstance(what, str):
            collected.append(replace(trial, state=what, reason="why"))
        else:
            collected.append(replace(trial, state="done", result=Speed(what)))
    return collected


class Speed:
    """All that is asked of a result."""

    def __init__(self, images_per_second):
        self.images_per_second = images_per_second


def unread(planned):
    return TrialRecord(
        id=planned.id,
        folder=Path("nowhere", planned.id),
        cell=planned.cell,
        repeat=planned.repeat,
        scaling=planned.scaling,
        settings=planned.settings,
        config=planned.config,
        environment={},
    )


FAST = (("mirrored-2r-r1", 10.0), ("mirrored-2r-r2", 20.0))


@pytest.mark.parametrize(
    ("known", "asked", "reason"),
    [
        ([*FAST, ("horovod-2r-r1", 2.5), ("horovod-2r-r2", 5.0)], "horovod-2r-r3", "4.0 and 4.0"),
        # Just at the limit is not over it.
        ([*FAST, ("horovod-2r-r1", 2.5), ("horovod-2r-r2", 20 / 3)], "horovod-2r-r3", ""),
        # One repeat is too few.
        ([*FAST, ("horovod-2r-r1", 1.0)], "horovod-2r-r3", ""),
        # Two of each, but only one that both have.
        ([*FAST, ("horovod-2r-r2", 1.0), ("horovod-2r-r3", 1.0)], "horovod-2r-r4", ""),
        # The fastest cell has too few itself, and the next one is not far ahead.
        (
            [
                *(("mirrored-2r-r1", 90.0), ("horovod-2r-r1", 1.0), ("horovod-2r-r2", 1.0)),
                *(("multiworker-2r-r1", 2.0), ("multiworker-2r-r2", 2.0)),
            ],
            "horovod-2r-r3",
            "",
        ),
        ([("horovod-2r-r1", "failed"), ("horovod-2r-r2", "failed")], "horovod-2r-r3", "failed"),
        ([("horovod-2r-r1", "failed"), ("horovod-2r-r2", "interrupted")], "horovod-2r-r3", ""),
        ([("horovod-2r-r1", "failed"), ("horovod-2r-r3", "failed")], "horovod-2r-r4", ""),
        # Who asks for a failed trial sees it run.
        ([("horovod-2r-r1", "failed"), ("horovod-2r-r2", "failed")], "horovod-2r-r2", ""),
        # Another number of replicas is another group, and the baseline is what all need.
        ([*FAST, ("single-1r-r1", 0.1), ("single-1r-r2", 0.1)], "single-1r-r3", ""),
        ([("single-1r-r1", "failed"), ("single-1r-r2", "failed")], "single-1r-r3", ""),
        (
            [
                *(("single-1r-r1", 9.0), ("single-1r-r2", 9.0)),
                *(("horovod-1r-r1", 1.0), ("horovod-1r-r2", 1.0)),
            ],
            "horovod-1r-r3",
            "single x1 was 9.0 and 9.0 times as fast in repeats 1 and 2",
        ),
    ],
)
def test_the_rule(known, asked, reason):
    case = [{"backend": "single"}, {"backend": "horovod"}]
    ways = ("mirrored", "multiworker", "horovod")
    case += [{"backend": name, "num_replicas": 2} for name in ways]
    trials = records(*known, table={**TABLE, "case": case})
    trial = next(trial for trial in trials if asked in trial.id)
    found = why_hopeless(trial, trials, RULE)
    assert reason in found if reason else found == ""


def test_cells_of_other_settings_are_not_compared():
    grid = {"model_options.filters": [8, 64]}
    known = [("2r-f8-r", 10.0), ("2r-f64-r1", 1.0), ("2r-f64-r2", 1.0)]
    trials = records(*known, table={**TABLE, "grid": grid})
    asked = [trial for trial in trials if "-f64-r3" in trial.id]
    assert len(asked) == 3
    assert [why_hopeless(trial, trials, RULE) for trial in asked] == [""] * 3


def test_options_of_a_backend_are_compared():
    case = [
        {"backend": "horovod", "num_replicas": 2},
        {"backend": "horovod", "num_replicas": 2, "backend_options": {"compression": "fp16"}},
    ]
    known = [("fp16-r1", 1.0), ("fp16-r2", 1.0), ("fp16", "waiting"), ("horovod", 10.0)]
    trials = records(*known, table={**TABLE, "case": case})
    (asked,) = [trial for trial in trials if "fp16-r4" in trial.id]
    assert why_hopeless(asked, trials, RULE).startswith("horovod x2 was 10.0 and 10.0 times")


def test_without_single_each_ways_own_replica_is_its_baseline():
    case = [{"backend": "mirrored"}, {"backend": "horovod"}]
    known = [("mirrored", 10.0), ("horovod-1r-r1", 1.0), ("horovod-1r-r2", 1.0)]
    trials = records(*known, table={**TABLE, "case": case})
    (asked,) = [trial for trial in trials if "horovod-1r-r3" in trial.id]
    assert why_hopeless(asked, trials, RULE) == ""


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"afer": 2}, r"Unknown key 'afer' in \[hopeless\]. Did you mean 'after'\? Known: after"),
        ({"after": 0}, r"after in \[hopeless\] must be at least 1, got 0"),
        ({"after": True}, "must be a whole number, got True"),
        ({"after": 1.5}, "must be a whole number, got 1.5"),
        ({"slower_than": 1}, "must be more than 1, got 1"),
        ({"slower_than": float("nan")}, "must be a number, got nan"),
        ({"slower_than": "3x"}, "must be a number, got the text '3x'"),
        (3, "must be a table, got 3"),
    ],
)
def test_a_wrong_rule_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        study_from_dict({"hopeless": table})


def test_the_rule_has_defaults_and_is_written_and_read():
    assert study_from_dict({}).hopeless is None
    assert study_from_dict({"hopeless": {}}).hopeless == RULE
    study = study_from_dict({**TABLE, "hopeless": {"after": 3, "slower_than": 10}})
    assert study_from_dict(tomllib.loads(study_toml(study))) == study
    assert read_rule(plan_json(plan_trials(study, 2))["hopeless"]) == study.hopeless


def test_the_rule_of_the_page_is_the_default():
    page = (ROOT / "docs" / "studies.md").read_text()
    (block,) = re.findall(r"```toml\n(\[hopeless\].*?)```", page, re.DOTALL)
    assert study_from_dict(tomllib.loads(block)).hopeless == RULE


def test_the_plan_says_the_rule_in_a_line():
    text = plan_table(plan_trials(study_from_dict(TABLE), 2))
    (line,) = [text for text in text.splitlines() if text.startswith("Hopeless")]
    assert "first 2 repeats failed" in line
    assert "more than 3 times as fast in every repeat that both have, 2 at the least." in line
    short = plan_table(plan_trials(study_from_dict({**TABLE, "repeats": 2}), 2))
    assert "[hopeless] has no effect: it waits for 2 repeats of 2." in short
    assert "opeless" not in plan_table(plan_trials(study_from_dict({}), 2))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A sweep under SLURM whose first two repeats are there; a job's trial runs a shell's line."""
    study = make_study(
        repeats=4, grid={"backend": ["mirrored", "horovod"], "num_replicas": [2]}, hopeless={}
    )
    planned = plan_trials(study, 64)
    write_plan(planned, tmp_path)
    for trial in planned.trials:
        if trial.repeat < 3:
            write_trial(tmp_path, trial, speed={"mirrored": 1.0, "horovod": 0.1}, noise=0)
    monkeypatch.setattr(slurm_submit, "queued_trials", lambda root: {})

    def job(name):
        (trial,) = [trial for trial in planned.trials if trial.id.startswith(name)]
        command = ["trial", "--code", code_hash(), str(tmp_path / trial.id), "/bin/sh", "-c"]
        monkeypatch.setattr(sys, "argv", [*command, f"touch {tmp_path}/ran-{name}; exit 1"])
        main()
        return (tmp_path / f"ran-{name}").exists()

    job.study, job.root = study, tmp_path
    return job


def test_a_job_asks_right_before_srun(cluster, capsys):
    assert cluster("mirrored-2r-r3")
    assert not cluster("horovod-2r-r3")
    assert "is not run, hopeless: mirrored x2 was 10.0 and 10.0 times" in capsys.readouterr().out
    table = json.loads((cluster.root / "plan.json").read_text())
    (cluster.root / "plan.json").write_text(json.dumps({**table, "hopeless": None}))
    assert cluster("horovod-2r-r3")


def test_what_is_given_up_is_not_submitted(cluster, monkeypatch):
    submitted = []
    monkeypatch.setattr(
        slurm_submit, "submit", lambda path: submitted.append(path.read_text()) or "7"
    )
    assert "horovod-2r-r3" not in dry_run(cluster.study, cluster.root)
    submit_sweep(cluster.study, cluster.root, say=str)
    (script,) = submitted
    assert "mirrored-2r-r3" in script
    assert "horovod" not in script
    states = {trial.id[:13]: trial.state for trial in read_sweep(cluster.root).trials}
    assert states["horovod-2r-r4"] == "hopeless"


def test_repeats_wait_with_the_failures_that_are_submitted_again(cluster, monkeypatch):
    for trial in read_sweep(cluster.root).trials:
        if trial.result is not None and trial.config.backend == "horovod":
            (trial.folder / "result.json").unlink()
            (trial.folder / "failure.json").write_text(json.dumps({"reason": "x", "exit_code": 3}))
    monkeypatch.setattr(slurm_submit, "submit", lambda path: "7")
    said = []
    submit_sweep(cluster.study, cluster.root, say=said.append, states=("waiting",))
    assert "2 of 8 trials to submit" in said[0]
    said.clear()
    submit_sweep(cluster.study, cluster.root, say=said.append)
    assert "6 of 8 trials to submit" in said[0]
    # Nor do the jobs that begin before them judge by what they replace.
    states = [trial.state for trial in read_sweep(cluster.root).trials if "horovod" in trial.id]
    assert set(states) == {"waiting"}
