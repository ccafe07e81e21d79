"""Programs that a file names run only if the file is the user's, or with --trust."""

import os
import shutil

import pytest

from tfunet.arguments import parse
from tfunet.bench.launch.resume_and_cancel import resume_sweep
from tfunet.bench.launch.sweep_folder import write_plan
from tfunet.bench.study.study_file import read_study
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.cli import main
from tfunet.config import trust
from tfunet.config.run import RunConfig
from tfunet.record import SIGNATURE, RunFolder

OTHER = 12345
is_root = os.geteuid() == 0


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_another(path, monkeypatch):
    """Have a file belong to another user."""
    if is_root:
        os.chown(path, OTHER, OTHER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model": "unet", "data": "cells"}, []),
        ({"model": "net.keras", "loss": "dice"}, []),
        ({"model": ["unet", "a.py:b"], "backend": "x.y:Z"}, ["a.py:b", "x.y:Z"]),
        ({"callbacks": [{"name": "CSVLogger", "filename": "C:x"}, {"name": "m:C"}]}, ["m:C"]),
        ({"optimizer": "m:O", "loss": "m:L", "data": "m:d"}, ["m:d", "m:O", "m:L"]),
    ],
)
def test_programs_of_settings(settings, expected):
    assert trust.programs(settings) == expected


def test_own_configuration_names_own_program_without_a_flag(home):
    (home / "net.py").write_text("")
    (home / "run.toml").write_text('model = "net.py:build"\n')
    assert parse(["--config", "run.toml"]).model == "net.py:build"


@pytest.mark.parametrize("whose", ["run.toml", "net.py"])
def test_file_of_another_user_runs_nothing_without_trust(home, whose, monkeypatch, capsys):
    (home / "net.py").write_text("raise SystemError")
    (home / "run.toml").write_text('model = "net.py:build"\n')
    of_another(home / whose, monkeypatch)
    with pytest.raises(ValueError, match=r"belongs to another user.* 'net\.py:build'.* --trust"):
        parse(["--config", "run.toml"])
    assert main(["data", "check", "run.toml"]) == 2
    assert "--trust" in capsys.readouterr().err
    monkeypatch.setenv(trust.VARIABLE, "1")
    assert parse(["--config", "run.toml"]).model == "net.py:build"


def test_words_on_the_command_line_are_the_users_own(home, monkeypatch):
    (home / "run.toml").write_text('model = "unet"\n')
    of_another(home / "run.toml", monkeypatch)
    assert parse(["--config", "run.toml", "--model", "m:build"]).model == "m:build"


def test_description_of_data_counts_as_a_file(home, monkeypatch):
    (home / "data.toml").write_text('data = "m:open"\n')
    (home / "run.toml").write_text('data = "data.toml"\n')
    assert parse(["--config", "run.toml"]).data == "m:open"
    of_another(home / "data.toml", monkeypatch)
    with pytest.raises(ValueError, match=r"data\.toml belongs to another user.* 'm:open'"):
        parse(["--config", "run.toml"])
    (home / "study.toml").write_text('[grid]\ndata = ["cells", "data.toml"]\n')
    with pytest.raises(ValueError, match=r"data\.toml belongs to another user"):
        read_study("study.toml")


def recorded(folder, **settings):
    config = RunConfig(**settings)
    run = RunFolder(folder)
    run.create()
    run.write_config(config)
    return run, config


def test_own_record_runs_its_program_wherever_it_is_moved(home):
    run, config = recorded(home / "run", model="net.py:build")
    run.check_programs(config, ["model"])
    shutil.move(home / "run", home / "moved")
    RunFolder(home / "moved").check_programs(config, ["model"])


def test_record_without_programs_has_no_signature(home):
    run, config = recorded(home / "run")
    assert not (home / "run" / SIGNATURE).exists()
    run.check_programs(config, ["model"])


def forged(home, run):
    (run.path / SIGNATURE).unlink()


def changed(home, run):
    text = (run.path / "config.json").read_text()
    (run.path / "config.json").write_text(text.replace("net.py:build", "evil.py:build"))


def of_another_home(home, run):
    shutil.rmtree(home / "config")


def from_another_folder(home, run):
    (home / "elsewhere").mkdir()
    os.chdir(home / "elsewhere")


def key_that_all_read(home, run):
    (home / "config/tfunet/key").chmod(0o644)


@pytest.mark.parametrize(
    "receive", [forged, changed, of_another_home, from_another_folder, key_that_all_read]
)
def test_received_record_runs_nothing_without_trust(home, receive, monkeypatch):
    run, _ = recorded(home / "run", model="net.py:build", loss="m:Loss")
    receive(home, run)
    config = run.read_config()
    with pytest.raises(
        ValueError, match=r"the program '.*:build'.* start tfunet there.* give --trust"
    ):
        run.check_programs(config, ["model"])
    run.check_programs(config, ["data"])  # What is not called may be there.
    monkeypatch.setenv(trust.VARIABLE, "1")
    run.check_programs(config, ["model"])


def test_predict_and_worker_refuse_a_received_record(home, capsys):
    (home / "evil.py").write_text("import pathlib; pathlib.Path('marker').touch()")
    run, _ = recorded(home / "run", model="evil.py:build")
    for name in ("result.json", "data.json"):
        (run.path / name).write_text("{}")
    (run.path / "model.keras").touch()
    (run.path / SIGNATURE).unlink()
    assert main(["predict", "run", "image.tif", "--out", "out"]) == 2
    assert "'evil.py:build'" in capsys.readouterr().err
    assert not (home / "marker").exists()


def test_received_sweep_is_not_resumed(home):
    (home / "study.toml").write_text('[base]\nmodel = "net.py:build"\n')
    root = home / "sweep"
    root.mkdir()
    write_plan(plan_trials(read_study("study.toml")), root)
    (root / SIGNATURE).write_text("0" * 64)
    with pytest.raises(ValueError, match=r"names the program 'net\.py:build'"):
        resume_sweep(root)


def test_key_is_secret_and_made_once(home):
    first = trust.signature("text", ["m:f"])
    key = home / "config/tfunet/key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert trust.signature("text", ["m:f"]) == first
    target = home / "target"
    shutil.copy(key, target)
    key.unlink()
    key.symlink_to(target)
    assert trust.signature("text", ["m:f"]) is None
