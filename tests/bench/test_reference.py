"""The measured records under logs/reference/: complete, readable, and as good as they must be."""

import json
from pathlib import Path
from statistics import fmean

import browser
import pytest

from tfunet.bench.collect import read_sweep
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


WAYS = ("ways-sem", "ways-hippocampus")


@pytest.mark.parametrize("study", WAYS)
def test_study_of_every_way_is_whole(study):
    sweep = read_sweep(REFERENCE / study)
    assert [trial.reason for trial in sweep.trials if trial.state != "done"] == []
    cells = {}
    for trial in sweep.trials:
        config = trial.config
        swap = "none" if config.swap is None else "swapped"
        key = (config.backend, config.num_replicas, config.global_samples, swap)
        cells.setdefault(key, []).append(trial)
    one = min(batch for _, _, batch, _ in cells)
    ways = [("single", 1, one)]
    for backend in ("mirrored", "multiworker", "horovod"):
        ways += [(backend, 1, one), (backend, 2, one), (backend, 2, 2 * one)]
    assert set(cells) == {(*way, swap) for way in ways for swap in ("none", "swapped")}
    assert {len(trials) for trials in cells.values()} == {5}


@pytest.mark.parametrize("study", WAYS)
def test_every_way_trained_on_the_same_samples_to_the_same_scores(study):
    groups = {}
    for trial in read_sweep(REFERENCE / study).trials:
        groups.setdefault((trial.repeat, trial.config.global_samples), []).append(trial.result)
    for results in groups.values():
        assert len({one.samples_hash for one in results}) == 1
        dice = [one.mean_dice for one in results]
        assert max(dice) - min(dice) < 0.005


@pytest.mark.parametrize("study", WAYS)
def test_large_model_support_gave_tensors_up_and_changed_no_bit(study):
    trials = read_sweep(REFERENCE / study).trials
    kept = {_but_swap(trial): trial for trial in trials if trial.config.swap is None}
    for trial in trials:
        if trial.config.swap is None:
            continue
        plans = json.loads((trial.folder / "swap.json").read_text())["plans"]
        assert all(plan["decisions"] for plan in plans)
        assert trial.result.weights_hash == kept[_but_swap(trial)].result.weights_hash


def _but_swap(trial):
    config = trial.config
    return config.backend, config.num_replicas, config.global_samples, config.seed


@pytest.mark.parametrize("study", [*LEAST_DICE, *WAYS])
def test_records_give_a_report_that_a_browser_shows(study, tmp_path):
    report = write_report(REFERENCE / study, tmp_path / "report")
    page = report.html.read_text()
    for backend in ("single", "mirrored", "multiworker", "horovod"):
        assert backend in page
    browser.shows_all(report, tmp_path)
