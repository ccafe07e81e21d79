"""docs/export.md: its commands and its program run, and its options are those of the command."""

import runpy

import pytest
from pages import put_example, run_commands
from paths import ROOT

PAGE = (ROOT / "docs/export.md").read_text()


@pytest.mark.multiprocess
def test_the_example_does_what_the_page_says(tmp_path, monkeypatch, capsys):
    put_example(PAGE, tmp_path, monkeypatch)
    run_commands(PAGE)
    assert "it gives the logits of the run to" in capsys.readouterr().out
    runpy.run_path("run_exported.py")
    said = capsys.readouterr().out
    assert float(said.splitlines()[0].removeprefix("Largest difference:")) < 1e-4
    counted = [int(line.split()[-2]) for line in said.splitlines()[1:]]
    assert sum(counted) == 64 * 64
