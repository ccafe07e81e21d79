"""What the statistics promise, on simulated sweeps whose truth is known."""

import itertools

import numpy as np
import pytest
from simulated import sweeps

from tfunet.bench.analysis.confidence_intervals import adjusted_p_values, ratio, speed_verdict
from tfunet.bench.analysis.repeats_needed import assumed_noise, repeats_needed
from tfunet.bench.analysis.trial_noise import Noise, block_noise

SWEEPS = 2000
REPEATS = (3, 5, 10)


def verdicts(sweep):
    """The verdict on each pair of a sweep's cells, by their numbers."""
    pairs = list(itertools.combinations(range(len(sweep)), 2))
    ratios = [ratio(sweep[upper], sweep[lower]) for upper, lower in pairs]
    verdict_list = map(speed_verdict, ratios, adjusted_p_values(ratios))
    return dict(zip(pairs, verdict_list, strict=True))


@pytest.mark.parametrize("repeats", REPEATS)
def test_a_95_percent_interval_covers_the_truth_in_95_percent_of_the_sweeps(repeats):
    dice = np.random.default_rng(repeats)
    estimates = [ratio(*sweep) for sweep in sweeps(dice, SWEEPS, (1.1, 1.0), repeats)]
    assert 0.93 <= np.mean([estimate.low <= 1.1 <= estimate.high for estimate in estimates]) <= 0.97


@pytest.mark.parametrize("repeats", REPEATS)
def test_sweeps_without_a_difference_have_a_verdict_in_at_most_5_percent(repeats):
    dice = np.random.default_rng(repeats)
    equal = sweeps(dice, SWEEPS, (1.0, 1.0, 1.0, 1.0), repeats)
    wrong = [set(verdicts(sweep).values()) != {"not distinguishable"} for sweep in equal]
    assert np.mean(wrong) <= 0.05


def test_without_the_correction_it_would_be_more():
    dice = np.random.default_rng(5)
    equal = sweeps(dice, 500, (1.0, 1.0, 1.0, 1.0), 5)
    pairs = list(itertools.combinations(range(4), 2))
    wrong = [min(ratio(cell[i], cell[j]).p_value() for i, j in pairs) < 0.05 for cell in equal]
    assert np.mean(wrong) > 0.10


def is_found(sweep):
    """Whether the first cell, planted slower, is found so against all others."""
    verdict_list = verdicts(sweep)
    return all(verdict_list[0, number] == "slower" for number in range(1, len(sweep)))


@pytest.mark.parametrize("deviation", [0.02, 0.05])
def test_a_planted_5_percent_is_found_by_the_repeats_for_a_noise_that_is_known(deviation):
    need = repeats_needed(assumed_noise(deviation), 0.05, num_comparisons=3)
    dice = np.random.default_rng(1)
    planted = sweeps(dice, 400, (0.95, 1.0, 1.0), need.repeats, deviation, slow_share=0)
    assert np.mean([is_found(sweep) for sweep in planted]) >= 0.93


def asked_until_enough(sweep, repeats):
    """What is on record when the records ask for no more repeats than they hold."""
    most = len(sweep[0])
    while True:
        records = [{number: cell[number] for number in range(1, repeats + 1)} for cell in sweep]
        variance, freedom = block_noise(records)
        noise = Noise(deviation=variance**0.5, freedom=freedom, source="records")
        need = repeats_needed(noise, 0.05, num_comparisons=3).repeats or most
        if min(need, most) <= repeats:
            return records
        repeats = min(need, most)


@pytest.mark.parametrize("repeats", [3, 5])
def test_a_planted_5_percent_is_found_by_the_repeats_that_records_ask_for(repeats):
    dice = np.random.default_rng(2)
    planted = sweeps(dice, 100, (0.95, 1.0, 1.0), 1000)
    detected = [is_found(asked_until_enough(sweep, repeats)) for sweep in planted]
    assert np.mean(detected) >= 0.95
