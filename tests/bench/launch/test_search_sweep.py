"""A search with Optuna: trials as of any sweep, by several processes, one of which is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT, SUPPORT

from tfunet import exit_codes
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.search_sweep import run_search
from tfunet.bench.launch.sweep_folder import write_plan
from tfunet.bench.launch.sweep_status import status
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.records.trial_states import read_states
from tfunet.bench.report.sweep_report import summary_json, write_report
from tfunet.bench.study.study_file import read_study, study_from_dict
from tfunet.bench.study.toml_writer import study_toml
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.cli import main

SPACE = {
    "learning_rate": {"low": 0.01, "high": 1.0},
    "optimizer": ["adam", "sgd"],
    "patch": [[32, 32], [64, 64]],
    "model_options": {"filters": {"low": 2, "high": 8, "step": 2}},
}
FAKE = SUPPORT / "fake_search_trial.py"


def table(**changes):
    return {"name": "hunt", "search": {"trials": 12, "space": SPACE, **changes}}


def fake(behaviour="well"):
    return lambda folder: [sys.executable, "-I", "-S", str(FAKE), behaviour, str(folder)]


def search(folder, lines=None, behaviour="well", **changes):
    say = (lines if lines is not None else []).append
    return run_sweep(study_from_dict(table(**changes)), folder, command=fake(behaviour), say=say)


def settings_of(folder):
    return [dict(trial.settings) for trial in read_sweep(folder).trials]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs") / "hunt"
    lines = []
    assert search(folder, lines) == exit_codes.OK
    return folder, lines


def test_a_search_leaves_a_sweep_like_any_other(found, tmp_path):
    folder, lines = found
    sweep = read_sweep(folder)
    assert [trial.state for trial in sweep.trials] == ["done"] * 12
    assert status(folder)["counts"]["done"] == 12
    assert "[12/12] t0011-single-1r-" in lines[-1]
    assert "Dice" in lines[-1]
    assert {trial.config.patch for trial in sweep.trials} == {(32, 32), (64, 64)}
    assert {trial.config.model_options["filters"] for trial in sweep.trials} <= {2, 4, 6, 8}
    assert len({trial.config.learning_rate for trial in sweep.trials}) == 12
    facts = summary_json(folder)["ensemble"]
    assert (facts["objective"], facts["direction"]) == ("val_dice", "maximize")
    assert facts["trials"][0]["score"] == max(trial.result.mean_dice for trial in sweep.trials)
    report = write_report(folder, tmp_path / "report")
    names = [path.stem for path in report.figures]
    assert names == ["samples", "parallel", "importance"]
    assert "learning_rate" in report.figures[2].read_text()


def test_a_search_goes_on_with_more_trials_as_if_it_had_not_stopped(found, tmp_path):
    folder, _ = found
    parts = tmp_path / "parts"
    assert search(parts, trials=7) == exit_codes.OK
    assert search(parts, trials=7) == exit_codes.OK
    assert len(settings_of(parts)) == 7
    assert search(parts) == exit_codes.OK
    assert settings_of(parts) == settings_of(folder)


def test_a_line_that_was_cut_short_costs_no_other(tmp_path):
    assert search(tmp_path, trials=2) == exit_codes.OK
    before = settings_of(tmp_path)
    with (tmp_path / "plan.jsonl").open("a") as lines:
        lines.write('{"trial": {"id": "t0')  # Its writer was killed.
    assert settings_of(tmp_path) == before
    assert search(tmp_path, trials=4) == exit_codes.OK
    assert settings_of(tmp_path)[:2] == before
    assert len(settings_of(tmp_path)) == 4
    # Only the states of a large plan are read, too.
    large = read_states(tmp_path, many=1)
    assert large == read_states(tmp_path)
    assert [trial.state for trial in large.trials] == ["done"] * 4


def test_a_plan_of_samples_takes_the_place_of_a_search(tmp_path):
    search(tmp_path, trials=1)
    for path in tmp_path.glob("t0*"):
        shutil.rmtree(path)
    study = study_from_dict({"name": "other", "base": {"share_cores": True}})
    write_plan(plan_trials(study), tmp_path)
    (trial,) = read_sweep(tmp_path).trials
    assert trial.id.startswith("single-1r-r1")


@pytest.mark.parametrize(
    "line", ['{"trial": 3}', '{"gone": [1]}', '{"trial": {"id": "../x"}}', '{"a": NaN, }']
)
def test_a_damaged_line_is_named(tmp_path, line, capsys):
    search(tmp_path, trials=1)
    with (tmp_path / "plan.jsonl").open("a") as lines:
        lines.write(f"{line}\n")
    main(["sweep", "status", str(tmp_path)])
    said = capsys.readouterr()
    assert "plan.json" in said.out + said.err
    assert not said.err or said.err.startswith("error: ")


def test_another_search_in_the_folder_is_refused(found):
    folder, _ = found
    for changes, differing in (
        ({"objective": "val_loss"}, "objective, direction"),
        ({"space": {"learning_rate": [0.1, 0.2]}}, "space"),
    ):
        with pytest.raises(
            ValueError, match=f"another study or search: what differs is {differing}"
        ):
            search(folder, **changes)
    with pytest.raises(ValueError, match="what differs is base"):
        run_search(study_from_dict({**table(), "base": {"steps": 3}}), folder, say=print)


def test_the_base_may_be_possible_only_with_what_is_searched(tmp_path):
    study = study_from_dict(
        {
            "base": {"global_batch": 6},
            "search": {"trials": 2, "space": {"num_replicas": [2], "backend": ["mirrored"]}},
        }
    )
    assert run_sweep(study, tmp_path, command=fake(), say=print) == exit_codes.OK
    assert [trial.config.global_batch for trial in read_sweep(tmp_path).trials] == [6, 6]


def test_several_processes_search_together_and_a_killed_one_loses_no_settings(tmp_path):
    (tmp_path / "hunt.toml").write_text(study_toml(study_from_dict(table(trials=16))))
    program = (
        "import sys; sys.path[:0] = sys.argv[3:]; from pathlib import Path;"
        "from tfunet.bench.launch.local_sweep import run_sweep;"
        "from tfunet.bench.study.study_file import read_study;"
        "from test_search_sweep import fake;"
        "sys.exit(run_sweep(read_study(sys.argv[1]), 'logs', command=fake(sys.argv[2])))"
    )
    paths = [os.path.dirname(__file__), str(SUPPORT), str(ROOT)]

    def start(behaviour):
        command = [sys.executable, "-c", program, "hunt.toml", behaviour, *paths]
        return subprocess.Popen(command, cwd=tmp_path, start_new_session=True)

    processes = [start("hangs")]
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "logs/hangs").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (lost,) = read_sweep(tmp_path / "logs").trials
        processes += [start("well"), start("well")]
        time.sleep(0.5)
        os.killpg(processes[0].pid, signal.SIGKILL)
        assert [process.wait(timeout=300) for process in processes[1:]] == [0, 0]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    trials = read_sweep(tmp_path / "logs").trials
    assert [trial.state for trial in trials] == ["done"] * 16
    assert len({trial.id for trial in trials}) == 16
    # Its settings were asked for again, under another name, and its record is kept.
    assert lost.id not in {trial.id for trial in trials}
    assert dict(lost.settings) in [dict(trial.settings) for trial in trials]
    assert (tmp_path / f"logs/earlier/{lost.id}-1").is_dir()
    starts = (tmp_path / "logs/starts.txt").read_text().split("\n")
    assert len({line.split()[1] for line in starts if line}) == 16


def test_a_bad_trial_is_pruned_from_its_epochs(tmp_path):
    # Five good ones, one of 1.0, and another good one.
    space = {"learning_rate": [0.3, 0.31, 0.32, 1.0]}
    options = {"sampler": "random", "pruner": "median", "trials": 7, "space": space}
    assert search(tmp_path, behaviour="epochs", **options) == exit_codes.OK
    trials = read_sweep(tmp_path).trials
    assert [trial.state for trial in trials] == [*5 * ["done"], "interrupted", "done"]
    assert trials[5].config.learning_rate == 1.0
    assert re.fullmatch(r"pruned after epoch [12]: val_dice 0\.[12]", trials[5].reason)
    # It is not asked for again.
    assert search(tmp_path, behaviour="epochs", **options) == exit_codes.OK
    assert read_sweep(tmp_path).trials == trials


def test_settings_that_are_impossible_together_are_skipped(tmp_path):
    space = {"num_replicas": [1, 2], "learning_rate": {"low": 0.1, "high": 1.0}}
    assert search(tmp_path, sampler="random", trials=8, space=space) == exit_codes.OK
    sweep = read_sweep(tmp_path)
    assert len(sweep.trials) + len(sweep.skipped) == 8
    assert {trial.config.num_replicas for trial in sweep.trials} == {1}
    assert "single trains one replica" in str(sweep.skipped[0]["reason"]).replace("'", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "tpee"}, "sampler in .* must be one of tpe, random, qmc, got 'tpee'"),
        ({"objective": "dice"}, "Unknown objective 'dice' in .search.. Did you mean 'val_dice'"),
        ({"objective": "val_hd95"}, "Unknown objective 'val_hd95'"),
        ({"direction": "up"}, "direction in .* must be one of maximize, minimize, got 'up'"),
        ({"pruner": "medium"}, "pruner in .* must be one of none, median"),
        ({"pruner": "median", "objective": "loss"}, "needs an objective that every evaluation"),
        ({"trials": 0}, "trials in .* must lie in 1..100000, got 0"),
        ({"trials": "many"}, "trials in .* must be a whole number"),
        ({"samplr": "tpe"}, "Unknown key 'samplr' in .search.. Did you mean 'sampler'"),
        ({"space": {}}, "must say what varies"),
        ({"space": {"learning_rat": [1.0]}}, "Unknown key 'learning_rat' in .search.space."),
        ({"space": {"learning_rate": {"low": -1.0, "high": 1}}}, "learning_rate in .search.space."),
        ({"space": {"seed": [1, 2]}}, "Leave seed out"),
    ],
)
def test_a_wrong_search_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        study_from_dict(table(**changes))


def test_an_objective_can_be_a_metric():
    base = {"metrics": ["hd95", "m.py:mine"]}
    study = study_from_dict({**table(objective="val_hd95", pruner="median"), "base": base})
    assert study.search.direction == "minimize"
    with pytest.raises(ValueError, match="Neither more nor less of the objective 'val_mine'"):
        study_from_dict({**table(objective="val_mine"), "base": base})


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": {"xla": [True]}},
        {"case": [{"xla": True}]},
        {"repeats": 2},
        {"samples": {"method": "grid", "space": {"xla": [True]}}},
    ],
)
def test_a_search_chooses_its_trials_alone(changes):
    with pytest.raises(ValueError, match=r"A study with \[search\] has no "):
        study_from_dict({**table(), **changes})


def test_the_commands_know_a_search(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    study = study_from_dict(table())
    (tmp_path / "hunt.toml").write_text(study_toml(study))
    assert read_study("hunt.toml") == study
    assert main(["sweep", "plan", "hunt.toml"]) == exit_codes.OK
    said = capsys.readouterr().out
    assert "a search of 12 trials" in said
    assert "0.01 to 1.0" in said
    assert main(["sweep", "plan", "hunt.toml", "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["search"]["space"]["optimizer"] == ["adam", "sgd"]
    for words in (["export", "hunt.toml"], ["run", "hunt.toml", "--slurm"]):
        assert main(["sweep", *words]) == exit_codes.BAD_INPUT
        assert "is a search: its trials are known only as they run" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["sweep", "run", "hunt.toml"]) == exit_codes.BAD_INPUT
    assert "[search] needs optuna, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "logs/hunt").exists()
