"""docs/auto.md: its commands run, and what it predicts is what a run takes."""

import json
import re
from pathlib import Path

import pytest
from pages import put_example, run_commands
from paths import ROOT

PAGE = (ROOT / "docs/auto.md").read_text()


@pytest.mark.multiprocess
def test_the_example_is_trained_in_the_memory_that_was_predicted(tmp_path, monkeypatch, capsys):
    put_example(PAGE, tmp_path, monkeypatch)
    run_commands(PAGE)
    predicted = float(re.search(r"predicted to take ([\d,.]+) MiB", capsys.readouterr().out)[1])
    result = json.loads(Path("logs/chosen/result.json").read_text())
    assert result["steps"] == 4
    (peak_bytes,) = result["peak_device_bytes"]
    # None where oneDNN is off: then no allocator counts.
    assert peak_bytes is None or 0.9 < peak_bytes / 2**20 / predicted < 1.15
