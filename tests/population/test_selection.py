import math

import pytest

from tfunet.population.selection import pairwise, truncation

NAN = math.nan


@pytest.mark.parametrize(
    ("own", "other", "takes", "why"),
    [
        (0.5, 0.6, True, "the partner's model is better"),
        (0.6, 0.5, False, "the own model is better"),
        (0.5, 0.5, False, "a tie"),
        # NaN and a missing score lose to anything, also to the lowest number.
        (NAN, -math.inf, True, "the partner's model is better"),
        (None, 0.0, True, "the partner's model is better"),
        (0.0, NAN, False, "the own model is better"),
        (-math.inf, None, False, "the own model is better"),
        (NAN, NAN, False, "neither model has a score"),
        (None, NAN, False, "neither model has a score"),
    ],
)
def test_the_better_model_wins_and_a_tie_changes_nothing(own, other, takes, why):
    assert pairwise(own, other) == (takes, why)


@pytest.mark.parametrize(
    ("scores", "kept", "source"),
    [
        # The one in place i takes the model in place i mod 2.
        ([0.1, 0.9, 0.5, 0.7], 2, {1: 1, 3: 3, 2: 1, 0: 3}),
        ([0.1, 0.9, 0.5, 0.7, 0.2], 2, {1: 1, 3: 3, 2: 1, 4: 3, 0: 1}),
        ([0.5, 0.5, 0.5], 1, {0: 0, 1: 1, 2: 2}),
        ([NAN, 0.1, None, 0.2], 1, {3: 3, 1: 3, 0: 3, 2: 3}),
        # There is only one score: nobody takes the model without one in place 1.
        ([NAN, 0.1, None, NAN], 2, {1: 1, 0: 0, 2: 1, 3: 3}),
        ([NAN, NAN], 1, {0: 0, 1: 1}),
    ],
)
def test_the_last_take_the_models_of_the_first(scores, kept, source):
    found = truncation(dict(enumerate(scores)), kept)
    assert found == source
    for trainer, giver in found.items():
        # LBANN's own test asserts this of every pair.
        assert giver == trainer or scores[giver] is not None
        assert found[giver] == giver  # A sender receives nothing.
