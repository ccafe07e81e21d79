import math

import pytest

from tfunet.config.run import RunConfig, from_json
from tfunet.config.tournament import read_tournament

GOOD = {"trainers": 4, "round_steps": 50}
RULE = {"factors": [0.8, 1.2], "low": 1e-5, "high": 1e-1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selection": "pairwize"}, "Unknown selection 'pairwize'. Did you mean 'pairwise'"),
        ({"exchange": "weight"}, "Unknown exchange 'weight'"),
        ({"trainers": 1}, "needs 2 to 1000 trainers, got trainers=1"),
        ({"trainers": True}, "trainers in .tournament. must be a whole number, got True"),
        ({"trainers": 2.0}, "must be a whole number, got 2.0"),
        ({"partition": 1}, "partition in .tournament. must be true or false, got 1"),
        ({"trainer": 4}, "Unknown key 'trainer' in .tournament.. Did you mean 'trainers'"),
        ({"round_epochs": 1}, "give one of round_steps and round_epochs"),
        ({"round_steps": 0}, "round_steps must be at least 1, got 0"),
        ({"share": 1.0}, "share must lie between 0 and 1"),
        ({"share": math.nan}, "share in .tournament. must be a number, got nan"),
        ({"wait_seconds": 0}, "wait_seconds must be positive"),
        ({"keep": 2}, 'a meaning with selection = "truncation" only'),
        ({"keep": 4, "selection": "truncation"}, "keep must lie between 1 and 3"),
        ({"mutate": 3}, "mutate in .tournament. must be a table"),
        ({"mutate": {"filters": RULE}}, "'filters', which is no hyperparameter that can change"),
        ({"mutate": {"learning_rates": RULE}}, "Did you mean 'learning_rate'"),
        ({"mutate": {"learning_rate": {"factors": [2]}}}, "mutate in .tournament. needs"),
        ({"mutate": {"learning_rate": {**RULE, "factors": []}}}, "with positive numbers"),
        ({"mutate": {"learning_rate": {**RULE, "low": 1}}}, "low at most high"),
        ({"mutate": {"learning_rate": {**RULE, "high": "x"}}}, "with positive numbers"),
    ],
)
def test_a_wrong_tournament_is_refused_with_what_is_allowed(change, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(tournament={**GOOD, **change})


def test_a_tournament_needs_trainers_and_rounds():
    with pytest.raises(ValueError, match="needs trainers"):
        RunConfig(tournament={"round_steps": 2})
    with pytest.raises(ValueError, match="give one of round_steps"):
        RunConfig(tournament={"trainers": 2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"elastic": True}, "elastic and tournament exclude each other"),
        ({"seed": -1}, "seed says which trainer"),
        ({"decay_epochs": (1,)}, "a schedule sets the learning rate"),
    ],
)
def test_settings_that_do_not_fit_a_tournament_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(tournament={**GOOD, "mutate": {"learning_rate": RULE}}, **settings)


def test_the_seed_says_which_trainer_of_which_population_a_run_is():
    tournament = read_tournament(GOOD)
    assert [tournament.trainer_of(seed) for seed in (4, 5, 7, 8)] == [0, 1, 3, 0]
    assert [tournament.population_of(seed) for seed in (4, 5, 7, 8)] == [1, 1, 1, 2]
    assert tournament.seed_of(2, 3) == 11


def test_the_record_of_a_run_outside_a_tournament_has_its_old_keys():
    assert "tournament" not in RunConfig().values()
    config = RunConfig(tournament={**GOOD, "mutate": {"learning_rate": RULE}})
    assert from_json(config.to_json()) == config
