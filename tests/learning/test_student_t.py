"""The spread of a score over cases."""

import dataclasses
import math

import pytest

from tfunet.bench.analysis import confidence_intervals
from tfunet.config.case_metrics import possible_range
from tfunet.learning.student_t import case_spread

NAN = math.nan


@pytest.mark.parametrize(
    ("values", "bounds", "spread"),
    [
        ((), (), (0, NAN, NAN, NAN, NAN, NAN)),
        ((4.0,), (), (1, 4, NAN, 4, NAN, NAN)),
        ((1.0, 3.0), (), (2, 2, math.sqrt(2), 2, NAN, NAN)),  # An interval needs three cases.
        ((1.0, NAN, 2.0, 3.0, 6.0), (), (4, 3, 2.160247, 2.5, -0.437435, 6.437435)),
        ((1.0, NAN, 2.0, 3.0, 6.0), (0, 5), (4, 3, 2.160247, 2.5, 0, 5)),
        ((0.5, 0.5, 0.5), (0, 1), (3, 0.5, 0, 0.5, 0.5, 0.5)),
    ],
)
def test_the_spread_over_the_cases_that_have_a_score(values, bounds, spread):
    found = dataclasses.astuple(case_spread(values, *bounds))
    assert found == pytest.approx(spread, abs=1e-5, nan_ok=True)


def test_the_interval_is_that_of_the_reports():
    values = (0.31, 0.85, 0.9, 0.77, 0.6)
    spread, estimate = case_spread(values), confidence_intervals.mean(dict(enumerate(values)))
    assert (spread.low, spread.high) == pytest.approx((estimate.low, estimate.high))


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("dice", (0, 1)),
        ("nsd@2px", (0, 1)),
        ("instance_f1@0.7", (0, 1)),
        ("hd95", (0, math.inf)),
        ("vi_split", (0, math.inf)),
        ("volume_difference", (-math.inf, math.inf)),
        ("instance_difference", (-math.inf, math.inf)),
        ("missed", (-math.inf, math.inf)),  # A function of the user's own.
    ],
)
def test_what_a_score_can_be(name, ends):
    assert possible_range(name) == ends
