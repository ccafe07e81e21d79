import math

import pytest

from tfunet.config.tournament import Mutation
from tfunet.population.mutation import mutated
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


@pytest.mark.parametrize(("begin", "end"), [((10, 20, 40), 43), ((30, 20, 10), 33)])
def test_the_values_of_the_best_reach_all(begin, end):
    """As Ray Tune's own test of a synchronous population: the score is the round plus a value."""
    rule = {"learning_rate": Mutation(factors=(1.0,), low=1.0, high=100.0)}
    held = dict(enumerate(begin))
    for round in (1, 2, 3):
        scores = {trainer: value + round for trainer, value in held.items()}
        source = truncation(scores, 1)
        held = {
            trainer: held[trainer]
            if giver == trainer
            # The winner's value with the winner's model, never one without the other.
            else mutated(
                {"learning_rate": held[giver]}, rule, seed=0, round=round, trainer=trainer
            )["learning_rate"]
            for trainer, giver in source.items()
        }
    assert [value + 3 for value in held.values()] == [end] * 3
