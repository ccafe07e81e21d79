"""docs/export.md: its commands and its program run, and its options are those of the command."""

import re
import runpy
import shlex

import pytest
from paths import ROOT

from tfunet import exit_codes
from tfunet.cli import main

PAGE = (ROOT / "docs/export.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.multiprocess
def test_the_example_does_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    for block in [*blocks("python"), *blocks("toml")]:
        (tmp_path / re.match(r"# (\S+)\n", block)[1]).write_text(block)
    for line in "".join(blocks("sh")).splitlines():
        assert main(shlex.split(line)[1:]) == exit_codes.OK, line
    assert "it gives the logits of the run to" in capsys.readouterr().out
    runpy.run_path("run_exported.py")
    said = capsys.readouterr().out
    assert float(said.splitlines()[0].removeprefix("Largest difference:")) < 1e-4
    counted = [int(line.split()[-2]) for line in said.splitlines()[1:]]
    assert sum(counted) == 64 * 64
