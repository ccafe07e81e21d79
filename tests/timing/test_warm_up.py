import random

import pytest

from tfunet.timing.warm_up import steady_seconds, warm_up_steps

FLAT = [0.1] * 40


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], 0),
        ([0.1] * 9, 0),  # Too few to tell.
        ([0.1] * 5 + [0.1001] * 5, 0),
        ([0.3] * 5 + [0.1, 0.11, 0.1, 0.12] * 6, 0),
        ([0.3] * 5 + [0.1, 0.11, 0.1, 0.12] * 7, 5),
        (FLAT, 0),
        ([0.3, 0.2, 0.15, 0.12, 0.11, *FLAT], 5),
        ([0.2] * 13 + FLAT, 15),  # By fives.
        ([*FLAT, 0.3, 0.3, 0.3, 0.3, 0.3], 0),  # What comes late is no warm-up.
        ([0.1, 0.9, *FLAT], 0),  # A neighbour's.
        ([0.3] * 16 + [0.1] * 16, 15),  # Half of the fives.
        ([0.3] * 30 + [0.1] * 10, 0),  # Most are not warm-up, whatever comes after.
    ],
)
def test_first_steps_that_differ_are_warm_up(seconds, expected):
    assert warm_up_steps(seconds) == expected


def test_noise_alone_moves_the_median_little():
    draw = random.Random(1)
    for _ in range(50):
        seconds = [0.1 * draw.lognormvariate(0, 0.05) for _ in range(100)]
        steady, _ = steady_seconds(seconds, ())
        assert len(steady) >= 50
        assert sorted(steady)[len(steady) // 2] == pytest.approx(0.1, rel=0.03)


def test_traced_steps_and_those_of_other_replicas_do_not_count():
    step_seconds = [9.0, *[5.0] * 20, 8.0, *[0.2] * 5, *[0.1] * 30]
    steady, warm_up = steady_seconds(step_seconds, [1, 22], first=22)
    assert steady == [0.1] * 30
    assert warm_up == 5
