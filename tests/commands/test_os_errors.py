"""What the system refuses, and Ctrl-C, is said in a line by every command, without TensorFlow."""

import errno
import resource
import subprocess
import sys

import pytest
from paths import ROOT

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.commands.os_errors import of_os_error
from tfunet.files.atomic import WriteError, write_atomic

LONG = "n" * 300
COMMANDS = (
    *("train NAME", "train --out NAME", "train --initial_weights NAME.keras"),
    *("sweep plan NAME", "sweep run NAME", "sweep status NAME", "sweep watch NAME"),
    *("sweep wait NAME", "sweep cancel NAME", "sweep resume NAME", "report NAME"),
    *("compare NAME NAME", "predict NAME a.png --out o", "evaluate NAME a --out o", "best NAME"),
    *("export NAME --to onnx", "export NAME --to tensorboard", "init NAME --out new.toml"),
    *("auto NAME --out new.toml", "data check NAME", "plan NAME --device h100-pcie5"),
    "data pack NAME --out new",
)
# Runs a command in a process, and says whether it loaded TensorFlow.
CODE = (
    "import sys; from tfunet.cli import main; code = main(sys.argv[1:])\n"
    "sys.exit('TensorFlow' if 'tensorflow' in sys.modules else code)"
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_is_too_long_is_said(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command.replace("NAME", LONG).split()) == exit_codes.BAD_INPUT
    assert LONG[:250] in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if not command.startswith("train") or "--out" in command],
)
def test_an_empty_name_is_not_the_current_folder(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word.replace("NAME", "") for word in command.split()]
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == exit_codes.BAD_INPUT
    assert "empty" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def run(words, **options):
    return subprocess.run(
        [sys.executable, "-c", CODE, *words],
        env={"PYTHONPATH": str(ROOT), "PATH": ""} | options.pop("env", {}),
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        **options,
    )


def test_output_that_cannot_be_written_is_said(tmp_path):
    with open("/dev/full", "w") as full:
        ended = run(["models"], stdout=full)
    assert ended.returncode == exit_codes.NOT_WRITTEN, ended.stderr
    assert ended.stderr.startswith("error: Cannot write the output: No space left on device.")


def test_a_working_folder_that_is_gone_is_said(tmp_path):
    (tmp_path / "run.toml").write_text('data = "cells"\n')
    code = f"import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n{CODE}"
    ended = subprocess.run(
        [sys.executable, "-c", code, "train", str(tmp_path / "run.toml"), "--out", "run"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == exit_codes.BAD_INPUT, ended.stderr
    assert ended.stderr.startswith("error: The folder in which tfunet was started is no longer")


def test_a_home_that_nobody_knows_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text("[base]\nfile = '~nosuchuser/run.toml'\n")
    for words in (
        ["sweep", "plan", "s.toml"],
        ["train", "--data", "~nosuchuser/data.toml"],
        ["train", "--cache_dir", "~nosuchuser/cache"],
        ["init", "~nosuchuser/images"],
    ):
        assert main(words) == exit_codes.BAD_INPUT
        assert "The home folder in '~nosuchuser/" in capsys.readouterr().err


def test_a_user_without_a_home_can_train_programs_of_their_own(tmp_path):
    code = (
        "import os, sys, tfunet.config.trust as trust\n"
        "os.environ.pop('HOME', None); os.environ.pop('XDG_CONFIG_HOME', None)\n"
        "from pathlib import Path\n"
        "def home(): raise RuntimeError('Could not determine home directory.')\n"
        "Path.home = home\n"
        "sys.exit(trust.signature('text', ['m.py:build']) is not None)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, timeout=60, check=False
    )
    assert ended.returncode == 0


def test_ctrl_c_while_the_commands_are_imported_is_said():
    code = (
        "import runpy, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tfunet.commands': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "runpy.run_module('tfunet', run_name='__main__', alter_sys=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "models"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (exit_codes.INTERRUPTED, "interrupted\n")


def test_a_limit_of_the_shell_is_not_called_a_full_disk(tmp_path):
    """Writing past `ulimit -f` fails with EFBIG, where freeing space does not help."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(WriteError, match=r"File too large\. .*ulimit -f") as caught:
            write_atomic(tmp_path / "result.json", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Free space" not in str(caught.value)
    assert not any(tmp_path.iterdir())
    code, words = of_os_error(OSError(errno.EFBIG, "File too large", "big.npy"))
    assert (code, "ulimit -f" in words) == (exit_codes.NOT_WRITTEN, True)
