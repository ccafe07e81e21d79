"""docs/auto.md: its commands run, and what it predicts is what a run takes."""

import json
import re
from pathlib import Path
from statistics import fmean

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


def test_the_page_has_what_its_settings_reached():
    runs = json.loads((ROOT / "logs/reference/settings-by-rules/runs.json").read_text())
    rows = {"hippocampus": 4, "micrographs": 3, "nuclei": 3}
    for (row, count), data in zip(rows.items(), ("hippocampus", "sem", "nuclei"), strict=True):
        dice = {
            way: [
                f"{fmean(run['dice'].values()):.3f}"
                for name, run in sorted(runs.items())
                if name.startswith(f"{data}-{way}")
            ]
            for way in ("hand", "auto")
        }
        assert len(dice["hand"] + dice["auto"]) == count
        assert f"| {', '.join(dice['hand'])} | {', '.join(dice['auto'])} |" in PAGE, row
