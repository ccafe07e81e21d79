from tfunet.config.tournament import Mutation
from tfunet.population.mutation import mutated


def test_a_value_changes_by_one_of_the_factors_and_keeps_its_bounds():
    rules = {"learning_rate": Mutation(factors=(0.5, 2.0), low=0.01, high=0.03)}
    drawn = {
        mutated({"learning_rate": 0.01}, rules, seed=0, round=round, trainer=trainer)[
            "learning_rate"
        ]
        for round in range(10)
        for trainer in range(3)
    }
    assert drawn == {0.01, 0.02}
    assert mutated({"learning_rate": 9.0}, rules, seed=0, round=1, trainer=0) == {
        "learning_rate": 0.03
    }


def test_without_a_rule_nothing_is_taken_over():
    assert mutated({"learning_rate": 0.01}, {}, seed=0, round=1, trainer=0) == {}
