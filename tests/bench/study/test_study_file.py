import tomllib
from pathlib import Path

import pytest
from paths import ROOT

from tfunet import arguments
from tfunet.arguments import parse
from tfunet.bench.study.study_file import read_study, study_from_dict
from tfunet.bench.study.toml_writer import config_toml, study_toml
from tfunet.bench.study.trial_plan import plan_trials, trial_name
from tfunet.config.keys import flat, nested
from tfunet.config.run import RunConfig

STUDIES = ROOT / "studies"


RUN = """
data = "cells"
patch = [32, 32]
global_batch = 8
epochs = 3
validation_share = 0.3
augmentation = { flips = true }

[model_options]
filters = 8
levels = 2

[data_options]
root = "pictures"
size = 64
"""


def test_a_study_is_based_on_the_configuration_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "mine.toml").write_text(
        '[base]\nfile = "run.toml"\npatch = [64, 64]\nmodel_options.levels = 3\n'
        "[grid]\nreplica_batch = [2, 4]\nmodel_options.filters = [4, 16]\n"
    )
    study = read_study("mine.toml")
    assert study.base == {
        "data": "cells",
        "patch": (64, 64),
        "epochs": 3,
        "validation_share": 0.3,
        "augmentation.flips": True,
        "model_options.levels": 3,
        # As for `tfunet train`, relative to where it is started.
        "data_options.root": "pictures",
        "data_options.size": 64,
    }
    batches = {trial.config.global_batch for trial in plan_trials(study, 4).trials}
    assert batches == {2, 4}
    # What is kept of the study does not change with the file.
    (tmp_path / "copy.toml").write_text(study.text or study_toml(study))
    (tmp_path / "run.toml").unlink()
    copy = read_study("copy.toml")
    assert (copy.base, copy.grid) == (study.base, study.grid)


@pytest.mark.parametrize(
    ("own", "left_out"),
    [
        ({"grid": {"steps": [2, 4]}}, "epochs"),
        ({"base": {"folds": 3}, "grid": {"fold": [0, 1]}}, "validation_share"),
        ({"case": [{"augmentation": {"flips": False}}]}, "augmentation.flips"),
        ({"samples": {"method": "grid", "space": {"epochs": [1, 2]}}}, "steps"),
        ({"search": {"space": {"global_batch": [2, 4]}}}, "replica_batch"),
    ],
)
def test_what_a_study_gives_replaces_what_the_file_says(own, left_out, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    base = {**own.get("base", {}), "file": str(tmp_path / "run.toml")}
    study = study_from_dict({**own, "base": base})
    assert left_out not in study.base
    assert not {*study.base} & {*study.varied, *study.space}


def test_a_run_can_be_based_on_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {
        "a.toml": 'steps = 3\nmetrics = ["hd95"]\n[model_options]\nfilters = 2\nlevels = 1\n',
        "b.toml": 'file = "a.toml"\npatch = [16, 16]\noptimizer = "sgd"\n'
        '[data_options]\nroot = "2024"\n',
        "c.toml": 'file = "b.toml"\nepochs = 2\n[model_options]\nlevels = 2\n',
        "d.toml": 'file = "e.toml"',
        "e.toml": 'file = "d.toml"',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    wanted = {
        "steps": 4,
        "patch": (16, 16),
        "optimizer": "sgd",
        "metrics": ("hd95",),
        "model_options": {"filters": 2, "levels": 2},
        "data_options": {"root": "2024"},
    }
    for config in (
        arguments.parse(["--config", "c.toml", "--steps", "4"]),
        arguments.of_file(Path("c.toml"), {"steps": 4}),
        arguments.of_study(nested(study_from_dict({"base": {"file": "c.toml", "steps": 4}}).base)),
    ):
        assert {key: getattr(config, key) for key in wanted} == wanted
    # A file counts where it stands, whatever way its name is written.
    assert arguments.parse(["--config", "a.toml", "--config", "./c.toml"]).patch == (16, 16)
    assert arguments.parse(["--config=./c.toml", "--config=a.toml"]).steps == 3
    with pytest.raises(ValueError, match=r"based on itself: d.toml -> e.toml -> d.toml"):
        arguments.parse(["--config=d.toml"])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (3, "", r"file in \[base\] must be the path of a run's configuration, got 3"),
        ("run.toml", None, "There is no configuration file"),
        ("run.toml", "epoch = 3", "Unknown key 'epoch'. Did you mean 'epochs'"),
        ("run.toml", "elastic = true", "elastic cannot be set in a study"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(file, text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        study_from_dict({"base": {"file": file}})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"data": "cells"}, r"data is a key of a run: put it into \[base\]"),
        ({"repeat": 2}, r"Unknown key 'repeat' in the study. Did you mean 'repeats'\?"),
        ({"qqq": 2}, r"Known: name, .*Settings of a run go into \[base\]"),
        (
            {"base": {"backnd": "single"}},
            r"Unknown key 'backnd' in \[base\]. Did you mean 'backend'",
        ),
        ({"grid": {"replica_batches": [1]}}, "Did you mean 'replica_batch'"),
        ({"case": [{"patches": [8, 8]}]}, "in case 1. Did you mean 'patch'"),
        ({"skip": [{"when": {"bakend": "x"}, "reason": "y"}]}, "Did you mean 'backend'"),
        ({"grid": {"model_option.filters": [8]}}, "Did you mean 'model_options'"),
        ({"skip": [{"wen": {}, "reason": "y"}]}, r"in \[\[skip\]\]. Did you mean 'when'"),
        ({"skip": [{"when": {"backend": "single"}}]}, "needs `when"),
        ({"base": {"backend": "horovd"}}, "Did you mean 'horovod'"),
        ({"grid": {"backend": ["single", "horovd"]}}, "Did you mean 'horovod'"),
        ({"base": {"num_replicas": 2.5}}, r"num_replicas in \[base\].*a whole number, got 2.5"),
        ({"base": {"model_options": 3}}, r"model_options in \[base\].*a table"),
        ({"grid": {"patch": [[64, 64], ["a", "b"]]}}, r"patch in \[grid\].*whole numbers"),
        # The second value has the type of the first, so only the configuration can refuse it.
        ({"grid": {"precision": ["float32", "float31"]}}, "Unknown precision 'float31'"),
        ({"grid": {"replica_batch": [4, 0]}}, "replica_batch must be at least 1, got 0"),
        ({"grid": {"replica_batch": [4, "many"]}}, "replica_batch in"),
        ({"grid": {"replica_batch": 4}}, "must be a list of values, got 4"),
        ({"grid": {"replica_batch": []}}, "has no values"),
        ({"case": {"backend": "single"}}, r"Write \[\[case\]\] with two brackets"),
        ({"repeats": True}, "repeats must be a whole number, got True"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"repeats": 10**9}, "has 1000000000 trials .1 cells, .*allowed: at most 100000"),
        (
            {"repeats": 40, "grid": {"epochs": list(range(1, 60)), "learning_rate": [0.1] * 60}},
            "has 141600 trials .3540 cells",
        ),
        ({"name": "../elsewhere"}, "name must be the name of a folder"),
        ({"name": "x" * 201}, "name must have at most 200 bytes"),
        ({"base": {"epochs": 1}, "grid": {"epochs": [1, 2]}}, r"epochs is in \[grid\] and in"),
        ({"case": [{"elastic": True}]}, "elastic cannot be set in a study"),
        ({"grid": {"epochs": [1]}, "case": [{"epochs": 2}]}, r"and in \[\[case\]\]"),
        ({"grid": {"seed": [1, 2]}}, "Do not vary seed"),
        ({"case": [{"seed": 2}]}, "Do not set seed"),
        ({"tournament": {"trainers": 1, "round_steps": 1}}, "needs 2 to 1000 trainers"),
        # Not a cell that is skipped because it is impossible.
        (
            {
                "tournament": {"trainers": 2, "round_steps": 1},
                "grid": {"tournament.selection": ["none", "pears"]},
            },
            "Unknown selection 'pears'",
        ),
        (
            {"case": [{"epochs": 1}, {"tournament": {"trainers": 2}}]},
            "give one of round_steps and round_epochs",
        ),
        ({"tournament": 3}, r"\[tournament\] must be a table"),
        (
            {
                "tournament": {
                    "trainers": 2,
                    "round_steps": 1,
                    "mutate": {"augmentation.noise": {"factors": [2], "low": 0.1, "high": 1}},
                }
            },
            "changes augmentation.noise, so it needs a positive number",
        ),
        (
            {
                "tournament": {"trainers": 2, "round_steps": 1},
                "base": {"tournament": {"trainers": 3}},
            },
            "Give it in one of them",
        ),
        (
            {"repeats": 101, "tournament": {"trainers": 1000, "round_steps": 1}},
            "up to 1000 trainers; allowed: at most 100000 trials",
        ),
    ],
)
def test_a_wrong_study_is_refused_with_what_to_do(table, message):
    with pytest.raises(ValueError, match=message):
        study_from_dict(table)


def test_settings_are_converted_as_on_the_command_line():
    study = study_from_dict(
        {"base": {"learning_rate": 1, "patch": [64, 64]}, "grid": {"warmup_epochs": [1, 0.5]}}
    )
    assert study.base == {"learning_rate": 1.0, "patch": (64, 64)}
    assert isinstance(study.base["learning_rate"], float)
    assert study.grid == {"warmup_epochs": [1.0, 0.5]}


@pytest.mark.parametrize(
    ("base", "key", "values"),
    [
        ({"folds": 3}, "fold", [0, 1, 2]),
        ({"swap": "auto"}, "swap_host", ["1GiB", "2GiB"]),
        ({"swap": "auto", "swap_host": "1GiB"}, "swap_disk", [".", "/tmp"]),
        ({"swap": "auto", "swap_host": "0", "swap_disk": "."}, "swap_disk_size", ["1GiB"]),
    ],
)
def test_what_needs_another_key_is_checked_beside_it(base, key, values):
    assert study_from_dict({"base": base, "grid": {key: values}}).grid[key] == values
    cases = [{key: value} for value in values]
    assert study_from_dict({"base": base, "case": cases}).cases == tuple(cases)
    with pytest.raises(ValueError, match=f"{key} in case 1"):
        study_from_dict({"base": base, "case": [{key: -1}]})


def test_a_key_that_came_later_renames_no_trial():
    name = trial_name({"backend": "single"}, RunConfig(), 1)
    assert name == "single-r1-bb6d5d"
    assert trial_name({"backend": "single"}, RunConfig(learning_rate_schedule="cosine"), 1) != name


def test_folds_are_an_axis_of_a_study():
    study = study_from_dict({"base": {"folds": 3}, "grid": {"fold": [0, 1, 2]}})
    plan = plan_trials(study, 4)
    assert [trial.config.fold for trial in plan.trials] != []
    assert {trial.config.fold for trial in plan.trials} == {0, 1, 2}
    # A fold that there is not is not run.
    other = plan_trials(study_from_dict({"base": {"folds": 2}, "grid": {"fold": [0, 2]}}), 4)
    (skipped,) = other.skipped
    assert "fold must lie between 0 and 1" in skipped.reason


def test_accumulation_that_divides_the_studys_batch_is_allowed():
    study = study_from_dict({"base": {"replica_batch": 8}, "grid": {"accumulation": [1, 8]}})
    assert study.grid["accumulation"] == [1, 8]


def test_tables_and_dotted_keys_mean_the_same():
    dotted = study_from_dict({"grid": {"model_options.filters": [8, 16]}})
    table = study_from_dict({"grid": {"model_options": {"filters": [8, 16]}}})
    assert dotted == table


def test_flat_and_nested_are_inverse():
    values = {"backend": "single", "model_options": {"filters": 8, "levels": 2}}
    assert nested(flat(values)) == values


def test_a_study_names_itself_by_its_file_and_keeps_its_text(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("# why\n[grid]\nepochs = [1, 2]\n")
    study = read_study(path)
    assert study.name == "mine"
    assert study.text == path.read_text()


def test_files_that_are_no_study_are_named(tmp_path):
    with pytest.raises(ValueError, match="There is no study"):
        read_study(tmp_path / "none.toml")
    (tmp_path / "torn.toml").write_text("[base\n")
    with pytest.raises(ValueError, match=r"torn.toml is not a TOML file"):
        read_study(tmp_path / "torn.toml")


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_studies_that_come_along_are_right(path):
    assert read_study(path).name == path.stem


def test_the_study_in_the_docs_is_right(tmp_path):
    text = (STUDIES.parent / "docs" / "studies.md").read_text()
    (tmp_path / "docs.toml").write_text(text.split("```toml")[1].split("```")[0])
    plan = plan_trials(read_study(tmp_path / "docs.toml"), num_cores=2)
    # 3 cases of 4 cells, less one of each of both Horovod cases, 3 times.
    assert len(plan.trials) == 30
    assert [cell.reason for cell in plan.skipped] == ["too little work for two"] * 2
    assert plan.notes == ()
    example = text.split("```python")[1].split("```")[0]
    names: dict = {}
    exec(compile(example.split("exit_code")[0], "docs/studies.md", "exec"), names)
    assert len(plan_trials(names["study"], num_cores=2).trials) == 9


def test_a_study_made_in_python_can_be_written_and_read(tmp_path):
    study = study_from_dict(
        {
            "name": "ünï study",
            "repeats": 2,
            "base": {"model_options.a b": 'x\n"y" \\ \x7f ü', "patch": [8, 8]},
            "grid": {"xla": [True, False], "learning_rate": [1e-3, 1e-30]},
            "case": [{"backend": "horovod", "backend_options": {"compression": "fp16"}}],
            "skip": [{"when": {"xla": True, "backend": ["single"]}, "reason": "because"}],
        }
    )
    (tmp_path / "study.toml").write_text(study_toml(study), encoding="utf-8")
    assert read_study(tmp_path / "study.toml") == study


def test_a_configuration_written_as_toml_is_read_back_equal(tmp_path):
    config = RunConfig(
        backend="horovod",
        num_replicas=2,
        global_batch=6,
        patch=(32, 32),
        model_options={"filters": 8, "norm": "group", "nested": {"a": [1, 2]}},
        callbacks=({"name": "EarlyStopping", "patience": 2},),
        validation_groups=("a", "b"),
    )
    path = tmp_path / "config.toml"
    path.write_text(config_toml(config))
    assert parse(["--config", str(path)]) == config
    assert "null" not in path.read_text()
    assert "steps" not in tomllib.loads(path.read_text())


@pytest.mark.parametrize("budgets", [["none", "24MiB"], ["24MiB", "none"]])
def test_without_large_model_support_is_a_value_of_a_grid_made_in_python(budgets, tmp_path):
    study = study_from_dict({"name": "mine", "grid": {"swap": budgets}})
    path = tmp_path / "mine.toml"
    path.write_text(study_toml(study))
    assert read_study(path) == study
    assert {trial.config.swap for trial in plan_trials(study, 2).trials} == {None, "24MiB"}


@pytest.mark.parametrize("name", ["sem", "hippocampus"])
def test_the_studies_of_tournaments_compare_equal_numbers_of_samples(name):
    plan = plan_trials(read_study(STUDIES / f"tournament-{name}.toml"), num_cores=2)
    samples = {}
    for trial in plan.trials:
        if trial.repeat <= trial.config.tournament.get("trainers", 1):  # The first population.
            made = trial.config.steps * trial.config.global_samples
            samples[trial.cell] = samples.get(trial.cell, 0) + made
    assert len(set(samples.values())) == 1
    assert len(samples) == {"sem": 4, "hippocampus": 5}[name]
    assert not plan.skipped
