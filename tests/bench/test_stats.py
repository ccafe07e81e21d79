import math

import numpy as np
import pytest

from tfunet.bench.stats import (
    difference,
    efficiency,
    ratio,
    speed_verdict,
    spread,
    t_quantile,
)


def repeats(values):
    return dict(enumerate(values, 1))


def test_spread_keeps_every_value():
    found = spread([4, 1, 2, 3])
    assert (found.median, found.low, found.high) == (2.5, 1, 4)
    assert (found.lower_quartile, found.upper_quartile) == (1.75, 3.25)
    assert found.values == (4, 1, 2, 3)
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_efficiency_is_speed_up_per_replica():
    assert efficiency(3.2, 4) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="num_replicas must be at least 1, got 0"):
        efficiency(1.0, 0)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    # Tables of Student's t.
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 3, 3.18245),
        (0.975, 4, 2.77645),
        (0.95, 5, 2.01505),
        (0.995, 9, 3.24984),
        (0.975, 30, 2.04227),
        (0.5, 7, 0.0),
    ],
)
def test_t_quantile(probability, freedom, value):
    assert t_quantile(probability, freedom) == pytest.approx(value, abs=1e-4)


def test_what_a_repeat_shares_cancels():
    # The machine halves its speed in repeat 2; the ratio is 1.1 in every repeat.
    bottom = {1: 10.0, 2: 5.0, 3: 9.0}
    found = ratio({key: 1.1 * value for key, value in bottom.items()}, bottom)
    assert found.paired
    assert (found.value, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))
    assert speed_verdict(found) == "faster"


def test_pairs_are_by_repeat_not_by_order():
    found = ratio({3: 9.9, 1: 11.0, 2: 5.5}, {1: 10.0, 2: 5.0, 3: 9.0})
    assert found.value == pytest.approx(1.1)
    assert found.high == pytest.approx(1.1)


def test_a_repeat_that_one_side_lost_is_left_out_of_the_pairs():
    found = ratio({1: 11.0, 3: 9.9}, {1: 10.0, 2: 1.0, 3: 9.0})
    assert (found.paired, found.repeats) == (True, 2)
    assert found.value == pytest.approx(1.1)


def test_without_common_repeats_medians_are_compared():
    found = ratio({1: 10.0, 2: 20.0, 3: 30.0}, {4: 10.0, 5: 10.0, 6: 10.0})
    assert (found.paired, found.repeats, found.method) == (False, 3, "t")
    assert found.value == pytest.approx(2.0)
    assert found.low < 2 < found.high


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_repeats_have_no_interval_and_no_verdict(count):
    found = ratio(dict.fromkeys(range(count), 20.0), dict.fromkeys(range(count), 10.0))
    assert (found.value, found.repeats, found.method) == (pytest.approx(2.0), count, "none")
    assert math.isnan(found.low)
    assert speed_verdict(found) == "unknown"


def test_paired_t_interval_is_students():
    # Mean 2, standard deviation 1, three pairs: 2 +- 4.30265 / sqrt(3).
    found = difference(repeats([1.0, 2.0, 3.0]), repeats([0.0, 0.0, 0.0]))
    assert found.method == "t"
    assert found.low == pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-4)
    assert found.high == pytest.approx(2 + 4.30265 / math.sqrt(3), abs=1e-4)


def test_the_interval_holds_its_estimate():
    # The mean is far from the median, and t's interval lies around the mean.
    top, bottom = {1: 0.0, 2: 0.0, 3: 90.0}, {4: 0.0, 5: 0.0, 6: -90.0}
    for found in (difference(top, bottom), difference(top, dict.fromkeys(top, 0.0))):
        assert found.low <= found.value <= found.high


@pytest.mark.parametrize(
    ("top", "verdict"),
    [([1.2, 1.21, 1.19], "faster"), ([0.8, 0.81, 0.79], "slower"), ([0.9, 1.1, 1.0], None)],
)
def test_verdicts(top, verdict):
    found = ratio(repeats(top), repeats([1.0, 1.0, 1.0]))
    assert speed_verdict(found) == (verdict or "not distinguishable")
    assert found.excludes(1.0) == (verdict is not None)


def test_empty_and_impossible_values_are_refused():
    with pytest.raises(ValueError, match="at least one value on each side"):
        ratio({}, {1: 1.0})
    with pytest.raises(ValueError, match="positive"):
        ratio({1: 0.0}, {1: 1.0})


def test_the_bootstrap_gives_the_same_interval_every_time():
    top, bottom = repeats([1.1, 1.3, 1.2, 1.25, 1.15]), repeats([1.0] * 5)
    assert ratio(top, bottom) == ratio(top, bottom)
    assert ratio(top, bottom).method == "bootstrap"


@pytest.mark.parametrize("count", [3, 5, 8])
def test_95_percent_intervals_cover_the_truth(count):
    """Pairs that share a drift of 10 %, with 3 % of noise each and a true ratio of 1.1."""
    dice = np.random.default_rng(count)
    sweeps = 200
    covered = 0
    for seed in range(sweeps):
        drift = np.exp(dice.normal(0, 0.1, count))
        top = 1.1 * drift * np.exp(dice.normal(0, 0.03, count))
        bottom = drift * np.exp(dice.normal(0, 0.03, count))
        found = ratio(repeats(top), repeats(bottom), seed=seed)
        covered += found.low <= 1.1 <= found.high
    # With 5 pairs no such interval covers more than 94 %; a standard error is 1.7 %.
    assert covered / sweeps > 0.89


def test_a_difference_of_20_percent_is_found_in_3_repeats():
    dice = np.random.default_rng(5)
    found = 0
    for _ in range(200):
        drift = np.exp(dice.normal(0, 0.1, 3))
        top = 1.2 * drift * np.exp(dice.normal(0, 0.02, 3))
        bottom = drift * np.exp(dice.normal(0, 0.02, 3))
        found += speed_verdict(ratio(repeats(top), repeats(bottom))) == "faster"
    assert found > 160
