"""The measured records under logs/reference/: complete, readable, and as good as they must be."""

import json
import re
from statistics import fmean

import browser
import pytest
from paths import ROOT

from tfunet.bench.analysis.confidence_intervals import mean
from tfunet.bench.analysis.populations import common_dice, compare, read_populations
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.notebooks.growth import ended, read_growth
from tfunet.bench.notebooks.resolution import read_resolutions
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.findings import findings
from tfunet.bench.report.sweep_report import write_report
from tfunet.bench.report.tables import lost_rows
from tfunet.swap.report.text import read_plans

REFERENCE = ROOT / "logs/reference"
# Dice reached by others in the same number of steps (README.md there), less 0.02.
LEAST_DICE = {
    "hippocampus": {"anterior": 0.835 - 0.02, "posterior": 0.836 - 0.02},
    "sem": {"axon": 0.903 - 0.02, "myelin": 0.852 - 0.02},
}


def results(study):
    """Each backend's results, one a repeat."""
    collected = {}
    for path in sorted((REFERENCE / study).glob("*/result.json")):
        result = json.loads(path.read_text())
        collected.setdefault(result["backend"], []).append(result)
    return collected


@pytest.mark.parametrize("study", LEAST_DICE)
def test_every_backend_reached_the_dice_of_the_single_device(study):
    results_by_way = results(study)
    assert sorted(results_by_way) == ["horovod", "mirrored", "multiworker", "single"]
    single = [fmean(trial["dice"].values()) for trial in results_by_way["single"]]
    for backend, runs in results_by_way.items():
        assert len(runs) == 3
        assert all(all(trial["checks"].values()) for trial in runs)
        mean = fmean(fmean(trial["dice"].values()) for trial in runs)
        assert min(single) <= mean <= max(single), backend
        for region, least in LEAST_DICE[study].items():
            assert fmean(trial["dice"][region] for trial in runs) >= least, (backend, region)


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
        assert len({trial.samples_hash for trial in results}) == 1
        dice = [trial.mean_dice for trial in results]
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


def test_volumes_that_do_not_fit_train_with_support_to_the_same_weights():
    sweep = read_sweep(REFERENCE / "large-models-sizes")
    # What is there to fail did so for want of memory, and nothing else did.
    failed = [trial for trial in sweep.trials if trial.result is None]
    assert {trial.state for trial in failed} == {"failed"}
    assert {ended([trial]) for trial in failed} <= {
        "out of memory",
        *(f"killed by {name}" for name in ("SIGABRT", "SIGSEGV")),
    }
    assert {trial.config.cpu_memory for trial in failed} == {"200MiB"}
    growth = read_growth(sweep)
    assert growth.largest("without").shape == (48,) * 3
    assert growth.largest("swap 0.5").shape == (64,) * 3
    # All its steps were taken; it was the evaluation that found no room.
    assert ended(growth.sizes[4].ways["swap 0.5"]) == "1 of 2: out of memory"
    weights = {}
    for trial in sweep.trials:
        if trial.result is not None:
            plans = read_plans(trial.folder) if trial.config.swap else []
            # What is split is summed in another order.
            if not any(plan.split for plan in plans):
                key = trial.config.data_options["size"], trial.config.seed
                weights.setdefault(key, set()).add(trial.result.weights_hash)
    assert {len(found) for found in weights.values()} == {1}


def test_both_data_sets_were_trained_on_at_both_resolutions():
    sweep = read_sweep(REFERENCE / "large-models-resolution")
    compared = read_resolutions(sweep)
    assert [data_set.data for data_set in compared] == ["msd_hippocampus", "tumours"]
    for data_set in compared:
        full, half = data_set.resolutions
        assert [size // 2 for size in full.shape] == list(half.shape)
        assert (len(full.trained), len(half.trained)) == (3, 3)
        assert all(trial.config.swap for trial in full.trained)
        (words,) = full.failed
        ways = r"(out of memory|killed by SIG\w+)(, |$)"
        assert re.fullmatch(rf"without support in \d+MiB: ({ways})+", words)


def test_the_page_on_choosing_has_the_scores_of_the_records():
    page = (REFERENCE.parents[1] / "docs/choosing.md").read_text()
    number = r"(\d\.\d{3})"
    rows = re.findall(
        rf"^\| (\w+), (\w+) \| (\d+) \| {number} \| {number} \| .*? \| (\d+) of \3 \|$",
        page,
        re.MULTILINE,
    )
    collected = []
    for data_set in read_resolutions(read_sweep(REFERENCE / "large-models-resolution")):
        for region in data_set.regions:
            full, half = (size.case_dice(region) for size in data_set.resolutions)
            means = [f"{fmean(dice.values()):.3f}" for dice in (full, half)]
            better = sum(full[case] > half[case] for case in full)
            name = data_set.data.removeprefix("msd_")
            collected.append((name, region, str(len(full)), *means, str(better)))
    assert rows == collected


@pytest.mark.parametrize("study", ["split-hippocampus", "split-fractals"])
def test_samples_in_parts_reach_the_scores_of_whole_ones(study):
    sweep = read_sweep(REFERENCE / study)
    ways = {}
    for trial in sorted(sweep.trials, key=lambda trial: trial.repeat):
        ways.setdefault(trial.config.split, []).append(trial.result)
    whole, parts = ways[()], ways[2, 1, 1]
    assert [trial.samples_hash for trial in whole] == [trial.samples_hash for trial in parts]
    scores = [trial.mean_dice for trial in whole]
    assert min(scores) <= fmean(trial.mean_dice for trial in parts) <= max(scores)
    if study == "split-fractals":
        assert all(trial.mean_dice >= 0.95 for trial in [*whole, *parts])


@pytest.mark.parametrize(
    ("study", "heading"),
    [("split-hippocampus", "Speed"), ("split-weak", "Weak scaling in space")],
)
def test_the_page_on_parts_has_what_its_studies_found(study, heading):
    page = (ROOT / "docs/spatial-parallelism.md").read_text()
    found = findings(summarise(read_sweep(REFERENCE / study)))[heading]
    assert "\n".join(f"> {sentence}" for sentence in found) in page


@pytest.mark.parametrize("study", ["tournament-sem", "tournament-hippocampus"])
def test_the_page_on_tournaments_has_what_its_studies_found(study):
    page = (ROOT / "docs/tournaments.md").read_text()
    populations = read_populations(read_sweep(REFERENCE / study))
    dice = common_dice(populations)
    assert f"Dice {dice}" in page
    cells = compare(populations, dice)
    assert {len(cell.populations) for cell in cells} == {5}
    for cell in cells:
        if cell.difference is not None:
            low, high = cell.difference.low, cell.difference.high
            assert f"| {cell.difference.value:+.3f} ({low:+.3f} to {high:+.3f})" in page
            hours = cell.ratios["device_hours"]
            assert f"| {hours.value:.2f} ({hours.low:.2f} to {hours.high:.2f}) |" in page


def test_the_page_on_tiles_has_what_its_study_found():
    dice, regions = {}, {}
    for trial in read_sweep(REFERENCE / "tiling-sem").trials:
        dice.setdefault(trial.config.tiling, {})[trial.repeat] = trial.result.mean_dice
        regions.setdefault(trial.config.tiling, []).append(trial.result.dice)
    page = (ROOT / "docs/tiles.md").read_text()
    for name, tiling in (("random patches", ()), ("tiles", (3, 3))):
        found = mean(dice[tiling])
        axon, myelin = (
            fmean(scores[key] for scores in regions[tiling]) for key in ("axon", "myelin")
        )
        assert (
            f"| {name} | {found.value:.3f} ({found.low:.3f} to {found.high:.3f}) "
            f"| {axon:.3f}, {myelin:.3f} |"
        ) in page


def test_the_page_on_stages_has_what_parts_and_stages_cost():
    sweep = read_sweep(REFERENCE / "together-cells")
    assert [all(trial.result.checks.values()) for trial in sweep.trials] == [True] * 12
    (family,) = summarise(sweep).families
    speeds = {
        cell.label.removesuffix(" x1"): f"{cell.images_per_second.median:.1f}"
        for cell in family.cells
    }
    page = (ROOT / "docs/pipeline.md").read_text()
    assert f"| one device | 1 | {speeds.pop('single')} |" in page
    lost = {row["backend"]: row for row in lost_rows(family)}
    assert sorted(lost) == sorted(speeds)
    stages = "stages=2 schedule=1f1b micro_batches=4"
    names = {
        "multiworker split=2x1": "two parts | 2",
        f"multiworker {stages}": "two stages | 2",
        f"multiworker split=2x1 {stages}": "two stages of two parts | 4",
    }
    for way, name in names.items():
        parts = [lost[way][key] for key in ("halo", "transfer", "bubble", "imbalance")]
        row = [name, speeds[way], lost[way]["lost efficiency"], *parts]
        assert f"| {' | '.join(row)} |" in page


def test_all_ways_together_take_the_same_steps_and_lose_the_parts_of_each():
    sweep = read_sweep(REFERENCE / "together-tiles")
    results = [trial.result for trial in sweep.trials]
    assert [all(result.checks.values()) for result in results] == [True] * 5
    assert len({result.samples_hash for result in results}) == 1
    dice = [result.mean_dice for result in results]
    assert max(dice) - min(dice) <= 1e-4
    (family,) = summarise(sweep).families
    on_all = {"input", "communication", "rest", "computation", "halo"}
    in_stages = {*on_all, "transfer", "bubble", "imbalance"}
    cells = {cell.label: cell for cell in family.cells if not cell.is_baseline}
    assert sorted(cell.num_devices for cell in cells.values()) == [2, 2, 2, 8]
    for label, cell in cells.items():
        expected = in_stages if "stages" in label else {*on_all, "stragglers"}
        assert [set(lost.parts) for lost in cell.lost] == [expected], label


@pytest.mark.parametrize("study", ["folds-sem", "folds-hippocampus"])
def test_the_page_on_folds_has_what_its_studies_found(study):
    page = (ROOT / "docs/folds.md").read_text()
    best = json.loads((REFERENCE / study / "best.json").read_text())
    assert len(best["ways"]) == 4
    for way in best["ways"]:
        cell = f"{fmean(way['dice'].values()):.3f}"
        if way["best_is_ahead_by"]:
            value, low, high = way["best_is_ahead_by"]
            cell += f", {-value:+.3f} ({-high:+.3f} to {-low:+.3f})"
        assert f"| {cell} |" in page


def _but_swap(trial):
    config = trial.config
    return config.backend, config.num_replicas, config.global_samples, config.seed


@pytest.mark.parametrize("study", ["sem", "ways-hippocampus"])
def test_records_give_a_report_that_a_browser_shows(study, tmp_path):
    report = write_report(REFERENCE / study, tmp_path / "report")
    page = report.html.read_text()
    for backend in ("single", "mirrored", "multiworker", "horovod"):
        assert backend in page
    browser.shows_all(report, tmp_path)
