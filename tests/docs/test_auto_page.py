"""docs/auto.md: its commands run, and what it predicts is what a run takes."""

import json
import re
import tomllib
from pathlib import Path
from statistics import fmean

import pytest
from pages import put_example, run_commands
from paths import ROOT

PAGE = (ROOT / "docs/auto.md").read_text()
MIB = 2**20


@pytest.mark.multiprocess
def test_the_example_is_trained_in_the_memory_that_was_predicted(tmp_path, monkeypatch, capsys):
    put_example(PAGE, tmp_path, monkeypatch)
    run_commands(PAGE)
    predicted = float(re.search(r"predicted to take ([\d,.]+) MiB", capsys.readouterr().out)[1])
    result = json.loads(Path("logs/chosen/result.json").read_text())
    assert result["steps"] == 4
    (peak_bytes,) = result["peak_device_bytes"]
    assert 0.9 < peak_bytes / MIB / predicted < 1.2


def test_the_page_has_what_steps_took_on_real_data():
    """What `auto` wrote, and the peak of three steps, are the columns of the table."""
    folder = ROOT / "logs/reference/settings-by-rules/memory"
    runs = json.loads((folder / "runs.json").read_text())
    rows = {"network": [], "batch": [], "predicted memory of a step": []}
    rows |= {"`intensity`, `normalization`": [], "measured, the peak of three steps": []}
    patches, surplus = [], []
    for name in ("hippocampus", "nuclei", "sem"):
        text, run = (folder / f"{name}.toml").read_text(), runs[name]
        config, options = tomllib.loads(text), run["config"]["model_options"]
        assert (run["steps"], run["config"]["cpu_memory"]) == (3, "1GiB")
        for key in ("model", "model_options", "patch", "replica_batch"):
            assert run["config"][key] == config[key]
        predicted = float(re.search(r"predicted to take ([\d,.]+) MiB of 1,024.0", text)[1])
        (peak_bytes,) = run["peak_device_bytes"]
        surplus.append(round(100 * (peak_bytes / MIB / predicted - 1)))
        rows["network"].append(
            f"{config['model']}, {options['levels']} levels, {options['filters']} filters"
        )
        rows["batch"].append(str(config["replica_batch"]))
        rows["`intensity`, `normalization`"].append(
            f"`{config['data_options']['intensity']}`, `{options['normalization']}`"
        )
        rows["predicted memory of a step"].append(f"{predicted:.0f} MiB")
        rows["measured, the peak of three steps"].append(f"{peak_bytes / MIB:.0f} MiB")
        patches.append(" x ".join(map(str, config["patch"])))
    for name, cells in rows.items():
        assert f"| {' | '.join([name, *cells])} |" in PAGE
    (line,) = re.findall(r"^\| patch \| (.*) \|$", PAGE, re.MULTILINE)
    for cell, patch in zip(line.split(" | "), patches, strict=True):
        assert cell.startswith(patch)
    assert f": {min(surplus)} to {max(surplus)} % here" in PAGE


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
