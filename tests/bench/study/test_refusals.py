"""What every trial would refuse is said by `sweep plan`, once for each reason."""

import functools
import json
import sys
import tomllib

import pytest
from paths import SUPPORT

from tfunet import exit_codes
from tfunet.bench.launch import local_sweep, resume_and_cancel
from tfunet.bench.launch.workflow_file import export_sweep
from tfunet.bench.study import refusals as module
from tfunet.bench.study.refusals import refusals, search_refusals
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.cli import main
from tfunet.commands import sweep as sweep_command
from tfunet.data import early_checks

PATTERNS = {"images": "{case}.png", "masks": "{case}_mask.png"}
CELLS = {"data": "cells", "data_options": {"num_cases": 10, "size": 32}, "global_batch": 2}


def refused(**table):
    return refusals(plan_trials(study_from_dict(table), num_cores=8))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_options": {"sizes": 32}}, "has no option 'sizes'. Did you mean 'size'"),
        (
            {"data_options": {"size": "big"}},
            "data_options.size must be a whole number, got the text",
        ),
        ({"data": "folder", "data_options": {"root": "nowhere", **PATTERNS}}, "nowhere"),
        ({"data": "cels"}, "Did you mean 'cells'"),
        ({"model_options": {"filtrs": 8}}, "no option 'filtrs'"),
        ({"model": "unett"}, "Did you mean 'unet'"),
        ({"model": "nowhere.py:build"}, "The file nowhere.py of the program"),
        ({"patch": [16, 16, 16]}, "has 3 sizes"),
        ({"global_batch": 400}, "An epoch has"),
        ({"folds": 20}, "folds=20 needs as many groups"),
        ({"metrics": ["nsd@1mm"]}, "state no pixel size"),
        ({"model_options": {"normalization": "instnace"}}, "Did you mean 'instance'"),
        ({"patch": [24, 32]}, "Each spatial size must be a multiple of 16"),
        ({"augmentation": {"rotation90": True}, "patch": [16, 32]}, "rotation90"),
    ],
)
def test_a_study_that_every_trial_would_refuse(changes, reason):
    (refusal,) = refused(repeats=2, base={**CELLS, **changes}, grid={"learning_rate": [0.1, 0.01]})
    assert reason in refusal.reason
    assert len(refusal.trials) == 4
    assert str(refusal).startswith("Each of the 4 trials would be refused. ")


ONLY_WHEN_MADE = (
    # Settings, and what is said of them by the process that makes each thing once.
    ({"optimizer": "adm"}, "Unknown optimizer 'adm'. Did you mean 'adam'"),
    ({"optimizer_options": {"weight_decay": "a"}}, "weight_decay must be a number, got the text"),
    (
        {"optimizer": "sgd", "optimizer_options": {"nesterov": "no"}},
        "nesterov must be true",
    ),
    ({"optimizer_options": {"beta_3": 0.9}}, "beta_3"),
    ({"loss": "dic"}, "Unknown loss 'dic'. Did you mean 'dice'"),
    ({"loss": "focal", "loss_options": {"gamma": "a"}}, "loss_options.gamma must be a number"),
    ({"loss": "focal", "loss_options": {"gama": 2}}, "no option 'gama'. Did you mean 'gamma'"),
    ({"loss": "dice", "loss_options": {"x": 2}}, "no option 'x'. Its options: "),
    ({"callbacks": [{"name": "EarlyStoping"}]}, "Did you mean 'EarlyStopping'"),
    ({"callbacks": [{"name": "EarlyStopping", "patienc": 3}]}, "Did you mean 'patience'"),
    ({"callbacks": [{"name": "EarlyStopping", "patience": "a"}]}, "patience of the callback"),
    ({"metrics": ["hd59"]}, "Unknown metric 'hd59'. Did you mean 'hd95'"),
    ({"metrics": ["dice", "AUCC"]}, "Unknown metric 'AUCC'. Did you mean 'AUC'"),
    ({"model": "mine.py:biuld"}, "has no 'biuld'. Did you mean 'build'"),
    ({"model": "mine.py:build", "model_options": {"widht": 4}}, "Did you mean 'width'"),
    ({"model": "mine.py:build", "model_options": {"width": 0}}, "in mine.py, line 5"),
    ({"model": "broken.py:build"}, "SyntaxError: invalid syntax, in broken.py, line 1"),
    ({"model": "mine.py:other"}, "must return a keras.Model"),
    ({"model_options": {"encoder": "MobilNetV2"}}, "Did you mean 'MobileNetV2'"),
    ({"data": "mine.py:opne"}, "has no 'opne'"),
)


def test_what_only_keras_can_say_is_said_before_the_first_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def build(:\n")
    (tmp_path / "mine.py").write_text(
        "import keras\ndef build(*, image_shape, num_classes, width=8):\n"
        "    image = keras.Input(image_shape)\n"
        "    hidden = keras.layers.Conv2D(8, 3, padding='same')(image)\n"
        "    assert width > 0, 'no width'\n"
        "    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(hidden))\n"
        "def other(*, image_shape, num_classes): return 3\n"
    )
    right = [{"model": "mine.py:build"}, {"optimizer": "SGD", "metrics": ["AUC", "dice"]}]
    cases = [*right, *(settings for settings, _ in ONLY_WHEN_MADE)]
    study = study_from_dict({"base": {**CELLS, "patch": [32, 32]}, "case": cases, "repeats": 2})
    planned = plan_trials(study)
    found = refusals(planned)
    for settings, reason in ONLY_WHEN_MADE:
        (wrong,) = (refusal for refusal in found if reason in refusal.reason)
        named = {trial.id: trial.config for trial in planned.trials}
        assert len(wrong.trials) == 2
        for trial in wrong.trials:
            assert all(
                getattr(named[trial], key) in (value, tuple(value))
                for key, value in settings.items()
            )
    assert len(found) == len(ONLY_WHEN_MADE)


def test_programs_of_one_name_in_two_folders_do_not_meet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder, width in (("a", 4), ("b", 0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(f"WIDTH = {width}\n")
        (tmp_path / folder / "net.py").write_text(
            "import os, signal, sys, helper, keras\n"
            "def build(*, image_shape, num_classes, dies=False):\n"
            "    signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
            "    print('printed')\n"
            "    if dies: os._exit(7)\n"
            "    image = keras.Input(image_shape)\n"
            "    return keras.Model(image, keras.layers.Conv2D(helper.WIDTH, 1)(image))\n"
        )
    dying = {"model": "a/net.py:build", "model_options": {"dies": True}}
    cases = [{"model": "a/net.py:build"}, dying, {"optimizer": "adm"}, {"model": "b/net.py:build"}]
    found = refused(base=CELLS, case=cases)
    assert sorted(len(refusal.trials) for refusal in found) == [1, 1]
    assert any("'adm'" in refusal.reason for refusal in found)
    assert any("Conv2D" in refusal.reason or "filters" in refusal.reason for refusal in found)
    said = capsys.readouterr()
    assert "died of one of them (exit code 7: " in said.err
    assert "printed" not in said.out
    # Whoever asked is gone.
    planned = plan_trials(study_from_dict({"base": CELLS, "case": [{"optimizer": "adm"}]}))
    assert refusals(planned, stops=lambda: True) == []


def test_trials_that_need_what_is_not_installed_are_named_and_the_others_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in ("horovod", "skimage"):
        monkeypatch.setitem(sys.modules, name, None)  # As if it were not installed.
        monkeypatch.delitem(sys.modules, f"{name}.morphology", raising=False)
    (tmp_path / "mine.toml").write_text(
        '[base]\ndata = "cells"\n[grid]\nbackend = ["single", "horovod"]\n'
        'metrics = [["hd95"], ["cldice"]]\n'
    )
    assert main(["sweep", "plan", "mine.toml"]) == exit_codes.OK
    said = capsys.readouterr().err
    assert said.count("warning: 2 of 4 trials (") == 2
    assert "cannot run here. The backend 'horovod' needs horovod, which is not installed." in said
    assert "cannot run here. cldice needs scikit-image" in said
    assert "pip install 'tfunet[metrics]'" in said
    assert '  [[skip]]\n  when = {backend = "horovod"}' in said
    assert main(["sweep", "plan", "mine.toml", "--json"]) == exit_codes.OK
    table = json.loads(capsys.readouterr().out)
    assert "refused" not in table
    assert [len(entry["trials"]) for entry in table["not_installed"]] == [2, 2]

    started = []

    def train(folder):
        started.append(folder.name)
        return [sys.executable, "-c", "raise SystemExit(2)"]

    study = study_from_dict(tomllib.loads((tmp_path / "mine.toml").read_text()))
    run = functools.partial(local_sweep.run_sweep, command=train, noise=dict, say=lambda _: None)
    run(study, tmp_path / "sweep", refuses=True)
    assert len(started) == 4
    assert "cldice needs scikit-image" in capsys.readouterr().err
    # Where no trial can run, none is started.
    study = study_from_dict({"base": {**CELLS, "backend": "horovod"}})
    with pytest.raises(ValueError, match=r"The trial cannot run here.*\nNo trial was started"):
        run(study, tmp_path / "other", refuses=True)


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
    open_source, check_data = early_checks.open_source, module.check_data

    def counted(data, options, **more):
        opened.append(options)
        return open_source(data, options, **more)

    def noted(config, **more):
        checked.append(config.fold)
        return check_data(config, **more)

    monkeypatch.setattr(early_checks, "open_source", counted)
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


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        # One key tells the refused trials apart, a dotted one, and only several together.
        ({"grid": {"patch": [[32, 32], [8, 8, 8]]}}, "when = {patch = [8, 8, 8]}"),
        (
            {"case": [{}, {"model_options": {"filtrs": 8}}]},
            'when = {"model_options.filtrs" = 8}',
        ),
        (
            {"grid": {"global_batch": [2, 80], "patches_per_case": [1, 40]}},
            "when = {",
        ),
    ],
)
def test_the_rule_that_leaves_refused_trials_out_does_so(changes, rule):
    base = {**CELLS, "steps": 2}
    base = {key: value for key, value in base.items() if key not in changes.get("grid", {})}
    (refusal,) = refused(base=base, repeats=2, **changes)
    words = str(refusal)
    assert rule in words
    skip = tomllib.loads(words[words.index("[[skip]]") :])["skip"]
    assert refused(base=base, repeats=2, skip=skip, **changes) == []
    planned = plan_trials(study_from_dict({"base": base, "skip": skip, **changes}), num_cores=8)
    assert len(planned.trials) == refusal.num_trials // 2 - len(refusal.trials) // 2


def test_a_sweep_starts_no_trial_if_trials_would_be_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    started = []

    def train(folder):
        started.append(folder.name)
        return [sys.executable, "-c", "raise SystemExit(2)"]

    monkeypatch.setattr(local_sweep, "train_command", train)
    monkeypatch.setattr(
        local_sweep,
        "run_sweep",
        functools.partial(local_sweep.run_sweep, command=train, noise=dict),
    )
    monkeypatch.setattr(sweep_command, "print_report", lambda *_: None)
    (tmp_path / "mine.toml").write_text(
        '[base]\ndata = "cells"\n[grid]\npatch = [[32, 32], [8, 8, 8]]\n'
    )
    assert main(["sweep", "run", "mine.toml"]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert started == []
    assert "error: 1 of 2 trials (" in said
    assert "has 3 sizes" in said
    assert said.endswith(
        "No trial was started. To run the others all the same: --go-on. These then fail.\n"
    )
    assert main(["sweep", "run", "mine.toml", "--go-on"]) == exit_codes.BAD_INPUT
    assert len(started) == 2
    (tmp_path / "mine.toml").write_text('[base]\ndata = "cells"\npatch = [8, 8, 8]\n')
    assert main(["sweep", "run", "mine.toml", "--out", "other"]) == exit_codes.BAD_INPUT
    assert capsys.readouterr().err.endswith("No trial was started.\n")
    search = "[search]\ntrials = 2\n[search.space]\nlearning_rate = [0.1, 0.01]\n"
    (tmp_path / "hunt.toml").write_text(f'[base]\ndata = "cells"\npatch = [8, 8, 8]\n{search}')
    assert main(["sweep", "run", "hunt.toml"]) == exit_codes.BAD_INPUT
    assert "has 3 sizes" in capsys.readouterr().err
    assert len(started) == 2


def test_trials_that_are_done_are_not_checked_again(tmp_path, monkeypatch):
    """A sweep that is complete needs its data no more."""
    study = study_from_dict({"base": CELLS, "repeats": 2})
    fake = [sys.executable, str(SUPPORT / "fake_trial.py"), "well"]
    run = functools.partial(
        local_sweep.run_sweep, study, tmp_path, command=lambda folder: [*fake, str(folder)]
    )
    assert run(noise=dict) == exit_codes.OK
    monkeypatch.setattr(early_checks, "open_source", None)
    assert run(noise=dict, refuses=True) == exit_codes.OK


HALF = '[base]\ndata = "cells"\n[grid]\npatch = [[32, 32], [8, 8, 8]]\n'
ADVICE = "No trial was started. To run the others all the same: --go-on. These then fail.\n"


@pytest.mark.parametrize("action", ["resume", "retry"])
def test_a_sweep_that_goes_on_is_checked_too(action, tmp_path, monkeypatch, capsys):
    started = []

    def train(folder):
        started.append(folder.name)
        return [sys.executable, "-c", "raise SystemExit(2)"]

    run = functools.partial(local_sweep.run_sweep, command=train, noise=dict, say=lambda _: None)
    monkeypatch.setattr(local_sweep, "run_sweep", run)
    monkeypatch.setattr(resume_and_cancel, "run_sweep", run)
    monkeypatch.setattr(sweep_command, "print_report", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(HALF)
    assert main(["sweep", "run", "mine.toml", "--out", "sweep", "--go-on"]) == exit_codes.BAD_INPUT
    assert len(started) == 2
    capsys.readouterr()
    assert main(["sweep", action, "sweep"]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert len(started) == 2
    assert "error: 1 of 2 trials (" in said
    assert said.endswith(ADVICE)
    assert main(["sweep", action, "sweep", "--go-on"]) == exit_codes.BAD_INPUT
    assert len(started) == 4


def test_an_export_is_checked_before_it_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(HALF)
    assert main(["sweep", "export", "mine.toml", "--out", "flow"]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert "has 3 sizes" in said
    assert said.endswith(ADVICE)
    for name in ("workflow.yaml", "plan.json", "study.toml"):
        assert not (tmp_path / "flow" / name).exists()
    assert main(["sweep", "export", "mine.toml", "--out", "flow", "--go-on"]) == exit_codes.OK
    assert (tmp_path / "flow/workflow.yaml").is_file()


# Torn, and of other versions: without trials, and with a key that is not known.
@pytest.mark.parametrize(
    "plan",
    [
        "{",
        '{"base": {}}',
        '{"base": {"later": 1}, "trials": [{"id": "a", "cell": 0, "changes": {}}]}',
    ],
)
def test_an_export_writes_a_plan_that_cannot_be_read_anew(plan, tmp_path):
    (tmp_path / "plan.json").write_text(plan)
    study = study_from_dict({"name": "flow", "base": CELLS, "repeats": 2})
    assert export_sweep(study, tmp_path, refuses=True).is_file()
    assert len(json.loads((tmp_path / "plan.json").read_text())["trials"]) == 2


def test_an_export_checks_no_trial_that_is_done(tmp_path, monkeypatch):
    study = study_from_dict({"name": "flow", "base": CELLS, "repeats": 2})
    fake = [sys.executable, str(SUPPORT / "fake_trial.py"), "well"]
    run = functools.partial(local_sweep.run_sweep, command=lambda folder: [*fake, str(folder)])
    assert run(study, tmp_path, noise=dict) == exit_codes.OK
    monkeypatch.setattr(early_checks, "open_source", None)
    assert export_sweep(study, tmp_path, refuses=True).is_file()


def test_a_study_takes_descriptions_of_data_sets(tmp_path):
    files = []
    for size in (32, 48):
        files.append(str(tmp_path / f"{size}.toml"))
        (tmp_path / f"{size}.toml").write_text(f'data = "cells"\nnum_cases = 9\nsize = {size}\n')
    base = {"global_batch": 2, "data_options": {"noise": 0.5}}
    skip = [{"when": {"data": files[1]}, "reason": "large"}]
    assert refused(base=base, grid={"data": files}) == []
    plan = plan_trials(study_from_dict({"base": base, "grid": {"data": files}, "skip": skip}), 8)
    (trial,) = plan.trials
    assert [skipped.reason for skipped in plan.skipped] == ["large"]
    assert trial.config.data == "cells"
    assert trial.config.data_options == {"num_cases": 9, "size": 32, "noise": 0.5}
    base["data_options"]["nois"] = 1
    (refusal,) = refused(base={**base, "data": files[0]})
    assert "no option 'nois'" in refusal.reason
