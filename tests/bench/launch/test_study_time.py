"""How long a study takes is told by the records of the same trials, or how to find out."""

import json

from synthetic_sweep import make_study, write_sweep, write_trial

from tfunet import exit_codes
from tfunet.bench.launch.study_time import time_json, time_text
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.cli import main

STUDY = make_study(grid={"backend": ["single", "horovod"]}, base={"steps": 4}, skip=[], repeats=2)


def test_time_is_that_of_the_same_trials(tmp_path):
    planned = plan_trials(STUDY, 4)
    write_sweep(tmp_path, STUDY, write=lambda trial: False)
    assert time_json(planned, tmp_path)["seconds"] is None
    single, horovod = (
        next(trial for trial in planned.trials if trial.config.backend == backend)
        for backend in ("single", "horovod")
    )
    write_trial(tmp_path, single, elapsed_seconds=100.0)
    # The other cell has no record yet: it takes as long as those that are known.
    assert time_json(planned, tmp_path) == {
        "seconds": 400.0,
        "seconds_left": 300.0,
        "from_trials": 1,
    }
    write_trial(tmp_path, horovod, elapsed_seconds=20.0)
    text = time_text(planned, tmp_path)
    assert text.startswith("Time: about 4 min for all trials one after the other, of which 2 min ")
    assert "(from 2 of them in " in text


def test_trials_of_another_study_tell_nothing(tmp_path):
    write_sweep(tmp_path, STUDY)
    other = make_study(grid={"backend": ["single"]}, base={"steps": 400}, skip=[])
    text = time_text(plan_trials(other, 4), tmp_path)
    assert text.startswith("Time: not known, since no trial of this study has ended in ")
    assert "`tfunet sweep run` says it after the first trial" in text


def test_trainers_of_a_population_run_together(tmp_path):
    study = make_study(
        grid={}, skip=[], repeats=1, tournament={"trainers": 3, "round_steps": 2}, base={"steps": 4}
    )
    planned = plan_trials(study, 8)
    write_sweep(tmp_path, study, write=lambda trial: False)
    for trial in planned.trials:
        write_trial(tmp_path, trial, elapsed_seconds=60.0)
    assert time_json(planned, tmp_path)["seconds"] == 60.0


def test_the_command_looks_into_the_folder_of_the_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'repeats = 2\n[base]\ndata = "cells"\nsteps = 2\n[base.data_options]\nsize = 32\n'
    )
    assert main(["sweep", "plan", "mine.toml"]) == exit_codes.OK
    said = capsys.readouterr().out
    assert "Time: not known, since no trial of this study has ended in logs/mine." in said
    assert main(["sweep", "plan", "mine.toml", "--json", "--out", "here"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["time"]["seconds"] is None
