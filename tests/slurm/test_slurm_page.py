"""What docs/slurm.md shows is what is printed, and its commands do what it says."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from paths import ROOT

from tfunet import exit_codes
from tfunet.bench.launch.slurm_submit import dry_run
from tfunet.bench.study.study_file import read_study
from tfunet.cli import main
from tfunet.machine.environment import code_hash

PAGE = (ROOT / "docs/slurm.md").read_text()


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]


def shown(text, folder):
    """A printed script as the page has it: with its reader's folders, and any hashes."""
    home = "/home/me/project"
    text = text.replace(sys.executable, f"{home}/.venv/bin/python").replace(str(folder), home)
    text = text.replace(code_hash(), "0123456789ab")
    return re.sub(r"-r(\d)-[0-9a-f]{6}$", r"-r\1-012345", text, flags=re.MULTILINE)


def test_the_script_of_the_page_is_what_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cells.toml").write_text(block("toml"))
    printed = shown(dry_run(read_study("cells.toml"), "logs/cells"), tmp_path)
    assert printed[printed.rindex("#!/bin/bash") :] == block("bash")


@pytest.mark.slurm
@pytest.mark.slow
def test_commands_of_the_page(on_cluster, capsys):
    # One trial, as short as can be; the rest is in test_sweep_under_slurm.
    study = block("toml").replace(
        "steps = 20",
        "steps = 2\ndata_options = {num_cases = 5, size = 32}\n"
        "model_options = {filters = 4, levels = 1}",
    )
    study = re.sub(r"\[\[case\]\]\nbackend = \"(multi|horo).*?\n\n", "", study, flags=re.DOTALL)
    study = study.replace("repeats = 2", "repeats = 1").replace(
        "global_batch = 4", "global_batch = 2"
    )
    Path("cells.toml").write_text(study)
    said = {}
    for line in block("sh").splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "tfunet"
        assert main(words[1:]) == exit_codes.OK, capsys.readouterr()
        said[" ".join(words[2:])] = capsys.readouterr().out
    assert "1 of 1 trials to submit" in said["run cells.toml --slurm"]
    assert re.search("1 (waiting|running)", said["status logs/cells"])
    assert "Report: logs/cells/report/report.html" in said["wait logs/cells"]
    assert "0 of 1 trials to submit" in said["resume logs/cells"]
    assert "0 of 1 trials to submit" in said["retry logs/cells"]
    assert "No trial runs or is queued." in said["cancel logs/cells"]
