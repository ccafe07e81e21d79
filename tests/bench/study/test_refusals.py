"""What every trial would refuse is said by `sweep plan`, once for each reason."""

import json

import pytest

from tfunet import exit_codes
from tfunet.bench.study import refusals as module
from tfunet.bench.study.refusals import refusals, search_refusals
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.cli import main

PATTERNS = {"images": "{case}.png", "masks": "{case}_mask.png"}
CELLS = {"data": "cells", "data_options": {"num_cases": 10, "size": 32}, "global_batch": 2}


def refused(**table):
    return refusals(plan_trials(study_from_dict(table), num_cores=8))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_options": {"sizes": 32}}, "has no option 'sizes'. Did you mean 'size'"),
        ({"data_options": {"size": "big"}}, "The data options of 'cells' are wrong: size"),
        ({"data": "folder", "data_options": {"root": "nowhere", **PATTERNS}}, "nowhere"),
        ({"data": "cels"}, "Did you mean 'cells'"),
        ({"model_options": {"filtrs": 8}}, "no option 'filtrs'"),
        ({"model": "unett"}, "Did you mean 'unet'"),
        ({"model": "nowhere.py:build"}, "The file nowhere.py of the program"),
        ({"patch": [16, 16, 16]}, "has 3 sizes"),
        ({"global_batch": 400}, "An epoch has"),
        ({"folds": 20}, "folds=20 needs as many groups"),
        ({"metrics": ["nsd@1mm"]}, "state no pixel size"),
        ({"augmentation": {"rotation90": True}, "patch": [16, 32]}, "rotation90"),
    ],
)
def test_a_study_that_every_trial_would_refuse(changes, reason):
    (refusal,) = refused(repeats=2, base={**CELLS, **changes}, grid={"learning_rate": [0.1, 0.01]})
    assert reason in refusal.reason
    assert len(refusal.trials) == 4
    assert str(refusal).startswith("Each of the 4 trials would be refused. ")


def test_only_the_trials_that_are_hit_are_named_with_their_reasons():
    found = refused(
        repeats=2,
        base=CELLS,
        case=[{}, {"model_options": {"filtrs": 8}}, {"patch": [8, 8, 8]}],
    )
    assert {(refusal.reason.partition(".")[0], len(refusal.trials)) for refusal in found} == {
        ("The model 'unet' has no option 'filtrs'", 2),
        ("patch=(8, 8, 8) has 3 sizes; the images of cells have 2 dimensions", 2),
    }
    assert all(str(refusal).startswith("2 of 6 trials (") for refusal in found)
    assert all(trial in str(refusal) for refusal in found for trial in refusal.trials)
    assert refused(base=CELLS) == []


def test_each_data_set_is_opened_once_and_each_configuration_checked_once(monkeypatch):
    opened, checked = [], []
    open_source, check_data = module.open_source, module.check_data

    def counted(data, options, **more):
        opened.append(options)
        return open_source(data, options, **more)

    def noted(config, **more):
        checked.append(config.fold)
        return check_data(config, **more)

    monkeypatch.setattr(module, "open_source", counted)
    monkeypatch.setattr(module, "check_data", noted)
    grid = {"fold": [0, 1, 2], "model_options.filters": [4, 8], "learning_rate": [0.1, 0.01]}
    assert refused(repeats=5, base={**CELLS, "folds": 3}, grid=grid) == []
    assert len(opened) == 1
    assert sorted(checked) == [0, 1, 2]


def test_a_share_of_a_trainer_is_that_of_its_seed():
    block = {"trainers": 4, "round_steps": 1, "partition": True}
    base = {**CELLS, "data_options": {"num_cases": 4, "size": 32}}
    (refusal,) = refused(base=base, tournament=block)
    assert "at least 8 groups of training cases" in refusal.reason


@pytest.mark.parametrize(
    ("base", "is_refused"),
    [(CELLS, False), ({**CELLS, "data_options": {"sizes": 32}}, True)],
)
def test_a_search_is_refused_where_its_base_is(base, is_refused):
    search = {"trials": 4, "space": {"learning_rate": {"low": 0.01, "high": 0.1}}}
    assert bool(search_refusals(study_from_dict({"base": base, "search": search}))) == is_refused


def test_values_that_do_are_enough_for_a_search():
    search = {"trials": 4, "space": {"global_batch": [2, 400]}}
    base = {key: value for key, value in CELLS.items() if key != "global_batch"}
    assert search_refusals(study_from_dict({"base": base, "search": search})) == []


def test_the_command_prints_the_plan_and_ends_with_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'repeats = 2\n[base]\ndata = "cells"\n[base.model_options]\nfiltrs = 8\n'
    )
    assert main(["sweep", "plan", "mine.toml"]) == exit_codes.BAD_INPUT
    said = capsys.readouterr()
    assert "Study mine: 2 trials" in said.out
    assert said.err.startswith("error: Each of the 2 trials would be refused. The model 'unet' has")
    assert main(["sweep", "plan", "mine.toml", "--json"]) == exit_codes.BAD_INPUT
    (entry,) = json.loads(capsys.readouterr().out)["refused"]
    assert "filtrs" in entry["reason"]
    assert len(entry["trials"]) == 2
