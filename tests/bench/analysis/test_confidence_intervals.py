import math

import numpy as np
import pytest

from tfunet.bench.analysis.confidence_intervals import (
    adjusted_p_values,
    difference,
    efficiency,
    holm,
    mean,
    ratio,
    speed_verdict,
    spread,
)
from tfunet.learning.student_t import t_quantile


def repeats(values):
    return dict(enumerate(values, 1))


def verdict(found):
    """The verdict on a ratio that is the only one."""
    return speed_verdict(found, *adjusted_p_values([found]))


def test_spread_keeps_every_value():
    values = spread([4, 1, 2, 3])
    assert (values.median, values.low, values.high) == (2.5, 1, 4)
    assert (values.lower_quartile, values.upper_quartile) == (1.75, 3.25)
    assert values.values == (4, 1, 2, 3)
    with pytest.raises(ValueError, match="at least one value"):
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
    estimate = ratio({key: 1.1 * value for key, value in bottom.items()}, bottom)
    assert estimate.paired
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((1.1, 1.1, 1.1))
    assert verdict(estimate) == "faster"


def test_pairs_are_by_repeat_not_by_order():
    estimate = ratio({3: 9.9, 1: 11.0, 2: 5.5}, {1: 10.0, 2: 5.0, 3: 9.0})
    assert estimate.value == pytest.approx(1.1)
    assert estimate.high == pytest.approx(1.1)


def test_a_repeat_that_one_side_lost_is_left_out_of_the_pairs():
    estimate = ratio({1: 11.0, 3: 9.9}, {1: 10.0, 2: 1.0, 3: 9.0})
    assert (estimate.paired, estimate.repeats) == (True, 2)
    assert estimate.value == pytest.approx(1.1)


def test_without_common_repeats_means_are_compared():
    estimate = ratio({1: 10.0, 2: 20.0, 3: 40.0}, {4: 10.0, 5: 10.0, 6: 10.0})
    assert (estimate.paired, estimate.repeats, estimate.has_interval) == (False, 3, True)
    assert estimate.value == pytest.approx(2.0)
    assert estimate.low < 2 < estimate.high


def test_a_ratio_is_a_geometric_mean_and_turned_over_it_is_one_over():
    top, bottom = repeats([1.0, 4.0, 2.0]), repeats([1.0, 1.0, 1.0])
    found, turned = ratio(top, bottom), ratio(bottom, top)
    assert found.value == pytest.approx(2.0)
    ends = (1 / found.value, 1 / found.high, 1 / found.low)
    assert (turned.value, turned.low, turned.high) == pytest.approx(ends)
    assert turned.p_value() == pytest.approx(found.p_value())


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_repeats_have_no_interval_and_no_verdict(count):
    estimate = ratio(dict.fromkeys(range(count), 20.0), dict.fromkeys(range(count), 10.0))
    assert (estimate.value, estimate.repeats, estimate.has_interval) == (
        pytest.approx(2.0),
        count,
        False,
    )
    assert math.isnan(estimate.low)
    assert verdict(estimate) == "unknown"
    with pytest.raises(ValueError, match=f"3 or more repeats, got {count}"):
        estimate.p_value()


def test_paired_t_interval_is_students():
    # Mean 2, standard deviation 1, three pairs: 2 +- 4.30265 / sqrt(3).
    estimate = difference(repeats([1.0, 2.0, 3.0]), repeats([0.0, 0.0, 0.0]))
    assert estimate.low == pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-4)
    assert estimate.high == pytest.approx(2 + 4.30265 / math.sqrt(3), abs=1e-4)


def test_the_interval_holds_its_estimate():
    # The mean is far from the median, and t's interval lies around the mean.
    top, bottom = {1: 0.0, 2: 0.0, 3: 90.0}, {4: 0.0, 5: 0.0, 6: -90.0}
    for found in (difference(top, bottom), difference(top, dict.fromkeys(top, 0.0))):
        assert found.low <= found.value <= found.high


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ([1.2, 1.21, 1.19], "faster"),
        ([0.8, 0.81, 0.79], "slower"),
        ([0.9, 1.1, 1.0], "not distinguishable"),
        ([1.0, 1.0, 1.0], "not distinguishable"),  # no error at all, and no effect
    ],
)
def test_verdicts(top, expected):
    estimate = ratio(repeats(top), repeats([1.0, 1.0, 1.0]))
    assert verdict(estimate) == expected
    assert (estimate.p_value() < 0.05) == (expected != "not distinguishable")


def test_the_p_value_is_students():
    # Mean 2, standard deviation 1, three pairs: t = 2 sqrt(3) with 2 degrees of freedom.
    estimate = difference(repeats([1.0, 2.0, 3.0]), repeats([0.0, 0.0, 0.0]))
    assert estimate.p_value() == pytest.approx(0.0742, abs=1e-4)
    assert estimate.p_value(slack=2.0) == 1.0
    assert estimate.p_value() < estimate.p_value(slack=0.5) < 1.0


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([], []),
        ([0.04], [0.04]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # a larger p-value never gets a smaller one
        ([0.5, 0.6], [1.0, 1.0]),  # no probability above 1
        ([0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_holm(p_values, adjusted):
    assert holm(p_values) == pytest.approx(adjusted)


def test_what_has_no_interval_counts_for_nothing():
    clear = ratio(repeats([1.2, 1.21, 1.19]), repeats([1.0, 1.0, 1.0]))
    short = ratio(repeats([1.2]), repeats([1.0]))
    assert adjusted_p_values([short, clear, None]) == [None, clear.p_value(), None]
    assert adjusted_p_values([clear, clear])[0] == pytest.approx(2 * clear.p_value())


def test_empty_and_impossible_values_are_refused():
    with pytest.raises(ValueError, match="at least one value on each side"):
        ratio({}, {1: 1.0})
    with pytest.raises(ValueError, match="positive"):
        ratio({1: 0.0}, {1: 1.0})


def test_a_difference_of_20_percent_is_found_in_3_repeats():
    dice = np.random.default_rng(5)
    detected = 0
    for _ in range(200):
        drift = np.exp(dice.normal(0, 0.1, 3))
        top = 1.2 * drift * np.exp(dice.normal(0, 0.02, 3))
        bottom = drift * np.exp(dice.normal(0, 0.02, 3))
        detected += verdict(ratio(repeats(top), repeats(bottom))) == "faster"
    assert detected > 160


def test_an_interval_is_cut_at_what_is_possible():
    estimate = mean(repeats([0.0, 0.1, 0.9]))
    cut = estimate.within(0, 1)
    assert (estimate.low < 0, estimate.high > 1) == (True, True)
    assert (cut.low, cut.high, cut.value) == (0, 1, estimate.value)
    assert cut.p_value() == estimate.p_value()
    assert mean(repeats([0.5, 0.6, 0.5])).within(0, 1) == mean(repeats([0.5, 0.6, 0.5]))
    assert math.isnan(mean(repeats([0.5])).within(0, 1).low)
