"""The measured records under logs/reference/: complete, readable, and as good as they must be."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from tfunet.bench.report import write_report

REFERENCE = Path(__file__).parents[2] / "logs/reference"
# Dice reached by others in the same number of steps (README.md there), less 0.02.
LEAST_DICE = {
    "hippocampus": {"anterior": 0.835 - 0.02, "posterior": 0.836 - 0.02},
    "sem": {"axon": 0.903 - 0.02, "myelin": 0.852 - 0.02},
}


def results(study):
    """Each backend's results, one a repeat."""
    found = {}
    for path in sorted((REFERENCE / study).glob("*/result.json")):
        result = json.loads(path.read_text())
        found.setdefault(result["backend"], []).append(result)
    return found


@pytest.mark.parametrize("study", LEAST_DICE)
def test_every_backend_reached_the_dice_of_the_single_device(study):
    found = results(study)
    assert sorted(found) == ["horovod", "mirrored", "multiworker", "single"]
    single = [fmean(one["dice"].values()) for one in found["single"]]
    for backend, runs in found.items():
        assert len(runs) == 3
        assert all(all(one["checks"].values()) for one in runs)
        mean = fmean(fmean(one["dice"].values()) for one in runs)
        assert min(single) <= mean <= max(single), backend
        for region, least in LEAST_DICE[study].items():
            assert fmean(one["dice"][region] for one in runs) >= least, (backend, region)


@pytest.mark.parametrize("study", LEAST_DICE)
def test_records_give_a_report(study, tmp_path):
    report = write_report(REFERENCE / study, tmp_path / "report")
    page = report.html.read_text()
    for backend in ("single", "mirrored", "multiworker", "horovod"):
        assert backend in page
