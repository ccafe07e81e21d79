"""Names of cases and runs that a terminal would obey: no command writes them raw."""

import logging
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
from paths import ROOT
from PIL import Image
from synthetic_sweep import make_study, write_sweep

from tfunet.cli import main

ESCAPE = "\x1b[2J\x07\x9b2J"
DATA = 'data = "folder"\n[data_options]\nroot = "."\nimages = "images/{case}.png"\n'
DATA += 'masks = "masks/{case}.png"\nclasses = { cell = 1 }\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for kind, top in (("images", 255), ("masks", 2)):
        (tmp_path / kind).mkdir()
        for at in range(6):
            pixels = draw.integers(0, top, (32, 32), np.uint8)
            Image.fromarray(pixels).save(tmp_path / kind / f"=c{ESCAPE}{at}.png")
    (tmp_path / "images" / f"torn{ESCAPE}.png").write_bytes(b"no image")
    shutil.copy(next((tmp_path / "masks").iterdir()), tmp_path / "masks" / f"torn{ESCAPE}.png")
    (tmp_path / "run.toml").write_text(DATA)
    return tmp_path


def is_safe(text):
    return not {"\x1b", "\x07", "\x9b"} & set(text)


def said(capfd):
    captured = capfd.readouterr()
    assert is_safe(captured.out), repr(captured.out)
    assert is_safe(captured.err), repr(captured.err)
    return captured.out + captured.err


COMMANDS = [
    ["data", "check", "run.toml"],
    ["data", "show", "run.toml", "--out", "shown.png"],
    ["data", "check", "run.toml", "--on_bad_sample", "skip"],
    ["data", "show", "run.toml", "--on_bad_sample", "skip", "--out", "shown.png"],
    ["init", "images", "--masks", "masks", "--out", "new.toml"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_on_data_writes_a_name_raw(folder, words, capfd):
    main(words)
    assert "\\x1b[2J" in said(capfd) or "shown.png" in words or words[0] == "init"


@pytest.mark.parametrize("words", [["sweep", "status"], ["report"], ["sweep", "watch"]])
def test_no_command_on_a_record_writes_a_name_raw(tmp_path, words, capfd):
    root = tmp_path / f"runs{ESCAPE}"
    for trial in write_sweep(root, make_study(grid={"backend": ["single"]}, skip=[], repeats=2)):
        (root / trial.id).rename(root / f"{ESCAPE}{trial.id}")
    (root / "plan.json").unlink()
    assert main([*words, str(root)]) == 0
    assert ESCAPE[:4] not in said(capfd)


def test_libraries_warn_and_log_nothing_raw(tmp_path):
    program = (
        "import logging, sys, warnings\n"
        "from matplotlib.figure import Figure\n"
        "from tfunet.process.terminal import show_messages_safely\n"
        "show_messages_safely()\n"
        f"name = {ESCAPE!r}\n"
        "figure = Figure(); figure.suptitle(name); figure.savefig('a.png')\n"
        "warnings.warn(name); logging.getLogger('PIL').warning('%s in %d', name, 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=tmp_path, env=_environment()
    )
    assert done.returncode == 0
    text = done.stderr.decode()
    assert is_safe(text), repr(text)
    assert "Glyph 27" in text
    assert "UserWarning: \\x1b[2J\\x07\\x9b2J\n" in text
    assert "\\x1b[2J\\x07\\x9b2J in 3" in text


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_the_command_line_makes_messages_safe(capsys):
    before, factory = warnings.formatwarning, logging.getLogRecordFactory()
    try:
        assert main(["models"]) == 0
        assert is_safe(warnings.formatwarning(ESCAPE, UserWarning, "a", 1))
        record = logging.getLogRecordFactory()("n", 30, "f", 1, ESCAPE, (), None)
        assert is_safe(record.getMessage())
    finally:
        warnings.formatwarning = before
        logging.setLogRecordFactory(factory)
