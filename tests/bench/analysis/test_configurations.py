"""Which configurations of a study are compared, and how: over repeats, and over cases."""

import itertools
import math
from statistics import fmean

import pytest
from planted_cases import plant
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.confidence_intervals import difference, holm
from tfunet.bench.analysis.configurations import rankings
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.configuration_table import best_configurations

BASE = {"cores_per_replica": 1}


def ranked(folder, *, write=lambda trial: {}, repeats=3, grid=None, **study):
    """The rankings of a study, whose trials are planted as `write` says."""
    study = {"base": BASE, "skip": [], "grid": grid or {}, "repeats": repeats, **study}
    for trial in write_sweep(folder, make_study(**study)):
        if planted := write(trial):
            plant(folder, trial, **planted)
    return rankings(summarise(read_sweep(folder)).families)


def names(ranking):
    return sorted(ranking.name_of(each) for each in ranking.configurations)


def test_models_are_compared_in_the_first_way_that_all_of_them_have(tmp_path):
    grid = {
        "backend": ["single", "mirrored"],
        "num_replicas": [1, 2],
        "model": ["unet", "isensee2017"],
        "loss": ["dice", "dice_crossentropy"],
    }
    skip = [
        {"when": {"backend": "single", "num_replicas": 2}, "reason": "one device"},
        {"when": {"backend": "mirrored", "num_replicas": 1}, "reason": "single does"},
    ]
    (ranking,), _ = ranked(tmp_path, grid=grid, skip=skip)
    assert ranking.label == "single x1"
    assert len(ranking.configurations) == 4
    assert {cell.cell.way for cell in ranking.configurations} == {"single"}
    assert set(ranking.configurations[0].settings) == {"model", "loss"}


@pytest.mark.parametrize(
    ("study", "compared"),
    [
        # Neither memory nor the way of training changes what a network learns.
        ({"grid": {"swap": ["none", "24MiB"]}}, []),
        ({"grid": {"fold": [0, 1]}, "base": {**BASE, "folds": 2}}, []),
        (
            {"grid": {"swap": ["none", "24MiB"], "learning_rate": [0.1, 0.2]}},
            [["learning_rate=0.1", "learning_rate=0.2"]],
        ),
        (
            {"grid": {"fold": [0, 1], "learning_rate": [0.1, 0.2]}, "base": {**BASE, "folds": 2}},
            [["learning_rate=0.1", "learning_rate=0.2"]],
        ),
        # One replica is in a family of weak and in one of strong scaling.
        (
            {
                "case": [
                    {"global_batch": 4},
                    {"global_batch": 4, "backend": "mirrored", "num_replicas": 2},
                    {"replica_batch": 4, "backend": "mirrored", "num_replicas": 2},
                ]
            },
            [],
        ),
        (
            {
                "case": [
                    {"learning_rate": 0.1},
                    {"learning_rate": 0.2, "backend": "mirrored", "num_replicas": 2},
                ],
                "base": {**BASE, "global_batch": 4},
            },
            [["mirrored x2 with learning_rate=0.2", "single x1 with learning_rate=0.1"]],
        ),
        (
            {
                "case": [{"learning_rate": 0.1}, {"learning_rate": 0.2}],
                "base": {**BASE, "tournament": {"trainers": 2, "round_steps": 2}, "steps": 8},
            },
            [],
        ),
    ],
)
def test_what_changes_the_network_or_its_training_is_compared(study, compared, tmp_path):
    found, _ = ranked(tmp_path, **study)
    of_settings = [each for each in found if any(one.settings for one in each.configurations)]
    assert [names(ranking) for ranking in of_settings] == compared


def test_runs_that_were_validated_on_other_masks_are_not_compared(tmp_path):
    def write(trial):
        voxels = 1000 if trial.config.data == "cells" else 800
        dice = 0.5 if trial.config.learning_rate == 0.1 else 0.6
        return {"cases": {"a": {"cell": dice}}, "voxels": voxels}

    grid = {"data": ["cells", "spheres.py:open"], "learning_rate": [0.1, 0.2]}
    (cells, spheres), has_several = ranked(tmp_path / "both", grid=grid, write=write)
    assert has_several
    assert [cells.shared, spheres.shared] == [{"data": "cells"}, {"data": "spheres.py:open"}]
    for ranking in (cells, spheres):
        best, other = ranking.configurations
        assert best.settings == {"learning_rate": 0.2}
        assert other.scores[0].from_best.value == pytest.approx(-0.1)
    grid = {"data": ["cells", "spheres.py:open"]}
    assert ranked(tmp_path / "data", grid=grid, write=write) == ((), True)


# Dice of the only case of each repeat, by learning rate.
DICE = {0.1: (0.70, 0.72, 0.77), 0.2: (0.71, 0.75, 0.78), 0.4: (0.60, 0.62, 0.65)}


def test_differences_are_taken_within_repeats_and_their_p_values_adjusted_for_all_pairs(tmp_path):
    def write(trial):
        dice = DICE[trial.config.learning_rate][trial.repeat - 1]
        return {"cases": {"a": {"cell": dice}}}

    (ranking,), _ = ranked(tmp_path, grid={"learning_rate": list(DICE)}, write=write)
    order = [each.settings["learning_rate"] for each in ranking.configurations]
    assert order == [0.2, 0.1, 0.4]
    best, *others = (each.scores[0] for each in ranking.configurations)
    assert (best.metric, best.region, best.from_best) == ("Dice", "cell", None)
    assert best.mean.value == pytest.approx(fmean(DICE[0.2]))
    # The best is only known afterwards: the pair without it counts, too.
    pairs = list(itertools.combinations(order, 2))
    values = {rate: dict(enumerate(dice, 1)) for rate, dice in DICE.items()}
    estimates = [difference(values[lower], values[upper]) for upper, lower in pairs]
    adjusted = holm([estimate.p_value() for estimate in estimates])
    for score, estimate, p in zip(others, estimates, adjusted, strict=False):
        assert score.from_best.value == pytest.approx(estimate.value)
        assert score.from_best.low == pytest.approx(estimate.low)
        assert score.adjusted_p == pytest.approx(p)
    against_best = holm([estimate.p_value() for estimate in estimates[:2]])
    assert others[1].adjusted_p > 1.4 * against_best[1]


def test_a_score_of_each_region_follows_the_mean_and_is_adjusted_with_the_other_regions(tmp_path):
    def write(trial):
        gain = 0.1 if trial.config.learning_rate == 0.2 else 0.0
        dice = 0.5 + 0.01 * trial.repeat**2 * (1 + gain)
        return {"cases": {"a": {"axon": dice + gain, "myelin": 0.7 + 0.001 * trial.repeat * gain}}}

    (ranking,), _ = ranked(tmp_path, grid={"learning_rate": [0.1, 0.2]}, write=write)
    scores = ranking.configurations[1].scores
    assert [score.region for score in scores] == ["mean", "axon", "myelin"]
    assert scores[0].from_best.value == pytest.approx(
        fmean(score.from_best.value for score in scores[1:])
    )
    assert scores[0].adjusted_p == pytest.approx(scores[0].from_best.p_value())
    assert scores[1].adjusted_p == pytest.approx(2 * scores[1].from_best.p_value())


@pytest.mark.parametrize(
    ("epoch_score", "best", "named"),
    [("dice", 0.2, "mean Dice"), ("dataset_iou", 0.1, "highest mIoU, 0.510, ")],
)
def test_configurations_are_ranked_by_the_score_that_the_runs_show(
    epoch_score, best, named, tmp_path
):
    def write(trial):
        ahead = trial.config.learning_rate == 0.1
        dice = 0.5 - 0.1 * ahead + 0.001 * trial.repeat
        miou = 0.4 + 0.1 * ahead + 0.005 * trial.repeat
        dataset = {"axon": miou - 0.1, "myelin": miou + 0.1}
        cases = {"a": {"axon": dice, "myelin": dice}}
        return {"cases": cases, "miou": miou, "dataset_iou": dataset}

    grid, base = {"learning_rate": [0.1, 0.2]}, {**BASE, "epoch_score": epoch_score}
    (ranking,), _ = ranked(tmp_path, grid=grid, base=base, write=write)
    assert ranking.configurations[0].settings["learning_rate"] == best
    families = summarise(read_sweep(tmp_path)).families
    assert named in best_configurations(families)
    shown = {(score.metric, score.region) for score in ranking.configurations[1].scores}
    assert (("dataset IoU", "axon") in shown) == (epoch_score == "dataset_iou")
    assert all(score.from_best.value < 0 for score in ranking.configurations[1].scores[:1])


def test_a_case_counts_with_its_mean_over_the_runs_that_validated_it(tmp_path):
    # Each fold has its own cases; every repeat of a fold is as good as the other.
    lead = {"a": 0.10, "b": 0.02, "c": 0.03, "d": -0.04}

    def write(trial):
        cases = ("a", "b") if trial.config.fold == 0 else ("c", "d")
        noise = 0.01 if trial.repeat == 1 else -0.01
        is_best = trial.config.learning_rate == 0.2
        return {
            "cases": {
                case: {"cell": 0.6 + noise + (lead[case] + noise if is_best else 0)}
                for case in cases
            }
        }

    base = {**BASE, "folds": 2}
    grid = {"learning_rate": [0.1, 0.2], "fold": [0, 1]}
    (ranking,), _ = ranked(tmp_path, grid=grid, base=base, repeats=2, write=write)
    assert ranking.num_cases == 4
    best, other = ranking.configurations
    assert best.settings == {"learning_rate": 0.2}
    score = other.scores[0]
    assert (score.from_best.repeats, score.from_best_over_cases.repeats) == (4, 4)
    expected = difference(dict.fromkeys(lead, 0.0), lead)
    assert score.from_best_over_cases.low == pytest.approx(expected.low)
    assert score.from_best_over_cases.high == pytest.approx(expected.high)


def test_a_single_repeat_has_an_interval_over_cases_only(tmp_path):
    def write(trial):
        gain = trial.config.learning_rate
        return {"cases": {case: {"cell": 0.5 + gain * (1 + case)} for case in range(3)}}

    (ranking,), _ = ranked(tmp_path, grid={"learning_rate": [0.1, 0.05]}, repeats=1, write=write)
    score = ranking.configurations[1].scores[0]
    assert score.from_best.value == pytest.approx(-0.1)
    assert math.isnan(score.from_best.low)
    assert score.adjusted_p is None
    assert score.from_best_over_cases.has_interval
