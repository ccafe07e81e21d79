"""The steps of an exported workflow, run as an engine runs them, with trials that are stand-ins."""

import json
import os
import sys
import threading
import time

import pytest
import yaml
from fake_sweeps import FAKE

from tfunet import exit_codes
from tfunet.bench import workflow_step as step
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.workflow_file import export_sweep
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.study.study_file import study_from_dict
from tfunet.cli import main

STUDY = {
    "name": "flow",
    "samples": {
        "method": "random",
        "number": 3,
        "space": {"learning_rate": {"low": 0.1, "high": 0.9}},
    },
}


@pytest.fixture
def workflow(tmp_path):
    path = export_sweep(study_from_dict(STUDY), tmp_path / "flow", attempts=2)
    return path.parent, yaml.safe_load(path.read_text())


def commands(table):
    """Return the words of every step in an order that its `depends` allow, as an engine does."""
    variables = {f"$({name})": value for name, value in table["env"]["variables"].items()}
    done, lines = set(), []
    waiting = list(table["study"])
    while waiting:
        ready = [entry for entry in waiting if set(_needs(entry)) <= done]
        assert ready, "The steps wait for each other."
        for entry in ready:
            text = entry["run"]["cmd"]
            for name, value in variables.items():
                text = text.replace(name, value)
            trials = table["global.parameters"]["TRIAL"]["values"] if "$(TRIAL)" in text else [""]
            lines += [(entry["name"], text.replace("$(TRIAL)", name)) for name in trials]
            done.add(entry["name"])
            waiting.remove(entry)
    return lines


def _needs(one):
    return [name.removesuffix("_*") for name in one["run"].get("depends", [])]


def fake(behaviours):
    """Return a command for a trial that behaves as told, one behaviour for each attempt."""

    def command(folder):
        behaviour = behaviours.pop(0) if behaviours else "well"
        return [sys.executable, "-I", "-S", str(FAKE), behaviour, str(folder)]

    return command


def test_the_file_has_what_both_engines_understand(workflow):
    root, table = workflow
    assert set(table) == {"description", "env", "study", "global.parameters", "merlin"}
    assert [name for name, _ in commands(table)] == ["prepare", *3 * ["trial"], "collect", "report"]
    for entry in table["study"]:
        # Maestro takes keys of Merlin alone for mistakes; ": " ends Merlin's own copy.
        assert set(entry["run"]) <= {"cmd", "depends"}
        assert ": " not in entry["run"]["cmd"]
    names = table["global.parameters"]["TRIAL"]["values"]
    assert names == [trial.id for trial in read_sweep(root).trials]
    # Merlin without a broker leaves out the second step of a chain.
    assert table["study"][-1]["run"]["depends"] == ["trial_*", "collect"]


def test_steps_in_their_order_end_with_the_results_of_a_sweep(workflow, tmp_path, monkeypatch):
    root, table = workflow
    assert step.collect(root) == step.RAISE_ERROR
    for name, line in commands(table):
        words = line.split()
        assert words[:3] == [sys.executable, "-m", "tfunet.bench.workflow_step"]
        if name == "trial":
            assert words[-3:-1] == ["trial", str(root)]
            assert not (root / "report/report.html").exists()
            assert step.trial(root, words[-1], command=fake([])) == 0
        else:
            # An engine may lose its last step with a worker.
            assert (root / "report/report.html").exists() == (name != "prepare")
            assert step.main(words[3:]) == 0
    run_sweep(study_from_dict(STUDY), tmp_path / "plain", command=fake([]), noise=dict)
    for trial in read_sweep(root).trials:
        plain = tmp_path / "plain" / trial.id
        for file in ("result.json", "config.toml"):
            assert (trial.folder / file).read_bytes() == (plain / file).read_bytes()
    assert (root / "report/report.html").is_file()
    when = [
        measurement["when"]
        for measurement in json.loads((root / "noise.json").read_text())["measurements"]
    ]
    assert when == ["before", "after"]


@pytest.mark.parametrize(
    ("behaviours", "code", "left", "state"),
    [
        (["well"], 0, 0, "done"),
        # Processes that died are started once more in the step, since Maestro does not.
        (["killed", "well"], 0, 0, "done"),
        (["worker died", "killed", "well"], step.SOFT_FAIL, 1, "failed"),
        # What would fail again is not tried again.
        (["usage", "well"], step.SOFT_FAIL, 1, "failed"),
        (["unlike single", "well"], step.SOFT_FAIL, 1, "failed"),
        # A full disk ends all.
        (["disk full", "well"], step.HARD_FAIL, 1, "failed"),
    ],
)
def test_the_exit_code_says_to_merlin_what_to_do(workflow, behaviours, code, left, state):
    root, _ = workflow
    name = read_sweep(root).trials[0].id
    assert step.trial(root, name, attempts=2, command=fake(behaviours)) == code
    assert len(behaviours) == left
    assert read_sweep(root).trials[0].state == state
    assert step.collect(root) == step.RAISE_ERROR  # Two others have not run.


def test_a_finished_trial_does_not_run_again(workflow):
    root, _ = workflow
    trial = read_sweep(root).trials[0]
    assert step.trial(root, trial.id, command=fake([])) == 0
    before = (trial.folder / "result.json").stat().st_mtime_ns
    assert step.trial(root, trial.id, command=fake(["killed"])) == 0
    assert (trial.folder / "result.json").stat().st_mtime_ns == before


def test_a_step_that_is_delivered_twice_runs_once(workflow):
    root, _ = workflow
    trial = read_sweep(root).trials[0]
    starts = []

    def slow(folder):
        starts.append(folder)
        text = "import time; time.sleep(0.5)"
        return [
            "/bin/sh",
            "-c",
            f'{sys.executable} -c "{text}"; {sys.executable} {FAKE} well {folder}',
        ]

    codes = []
    steps = [
        threading.Thread(target=lambda: codes.append(step.trial(root, trial.id, command=slow)))
        for _ in range(3)
    ]
    for stage in steps:
        stage.start()
    for stage in steps:
        stage.join(60)
    assert codes == [0, 0, 0]
    assert not (root / "report").exists()  # Three ended, but it was one trial.
    assert len(starts) == 1


def test_a_stopped_step_is_to_be_started_again(workflow):
    import signal

    root, _ = workflow
    trial = read_sweep(root).trials[0]

    def stop():
        while not (trial.folder / "started").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert step.trial(root, trial.id, attempts=2, command=fake(["slow"])) == step.RESTART
    stopper.join()
    assert read_sweep(root).trials[0].state == "interrupted"
    assert step.trial(root, trial.id, command=fake(["well"])) == 0


def test_a_changed_code_is_not_mixed_with_the_plans(workflow, capsys):
    _, table = workflow
    ((_, line),) = [command for command in commands(table) if command[0] == "prepare"]
    words = line.split()[3:]
    assert step.main(words) == 0
    words[words.index("--code") + 1] = "0123456789ab"
    assert step.main(words) == step.HARD_FAIL
    assert "The code has changed" in capsys.readouterr().err


def test_collect_names_what_is_missing(workflow, capsys):
    root, _ = workflow
    first, second, third = (trial.id for trial in read_sweep(root).trials)
    step.trial(root, first, command=fake([]))
    step.trial(root, second, command=fake(["usage"]))
    assert step.collect(root) == step.RAISE_ERROR
    said = capsys.readouterr().err
    assert "2 trials without a result" in said
    assert f"{second}: failed error: no such data set" in said
    assert f"{third}: waiting" in said


@pytest.mark.parametrize(
    ("table", "folder", "attempts", "message"),
    [
        ({**STUDY, "name": "two words"}, "flow", 1, "name of the study is 'two words'"),
        (STUDY, "a: b", 1, "engines copy a workflow file without its quotes"),
        (STUDY, "a$(date)", 1, "engines copy"),
        (STUDY, "flow", 0, "--attempts must be at least 1, got 0"),
    ],
)
def test_what_the_engines_cannot_do_is_refused(tmp_path, table, folder, attempts, message):
    with pytest.raises(ValueError, match=message):
        export_sweep(study_from_dict(table), tmp_path / folder, attempts)
    assert not (tmp_path / folder).exists()


def test_export_says_how_to_run_it_and_an_engine_that_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[base]\nsteps = 2\n")
    assert main(["sweep", "export", "mine.toml"]) == exit_codes.OK
    said = capsys.readouterr().out
    path = tmp_path / "logs/mine/workflow.yaml"
    assert f"maestro run -y -fg -s 1 {path}" in said
    assert f"merlin run --local {path}" in said
    monkeypatch.setenv("PATH", "")
    for engine in ("maestro", "merlin"):
        assert main(["sweep", "export", "mine.toml", "--run", engine]) == exit_codes.BAD_INPUT
        assert capsys.readouterr().err.startswith(
            f"error: {engine} is not installed, or not on PATH"
        )


def test_a_trial_that_another_program_runs_is_running(workflow):
    from tfunet.record import RunFolder

    root, _ = workflow
    trial = read_sweep(root).trials[0]
    trial.folder.mkdir()
    (trial.folder / "config.toml").write_text("")
    assert read_sweep(root).trials[0].state == "interrupted"
    with RunFolder(trial.folder).locked():
        assert read_sweep(root).trials[0].state == "running"
