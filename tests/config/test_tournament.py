import math

import pytest

from tfunet.config.run import RunConfig, from_json
from tfunet.config.tournament import first_values, read_tournament, with_values

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
        # Settings that make another network, other variables, or another loss.
        ({"mutate": {"model_options.filters": RULE}}, "'model_options.filters', which is no hyper"),
        ({"mutate": {"replica_batch": RULE}}, "'replica_batch', which is no hyperparameter"),
        ({"mutate": {"loss_options": {"gamma": RULE}}}, "'loss_options', which is no hyper"),
        ({"mutate": {"momentum": RULE}}, "Did you mean 'optimizer_options.momentum'"),
        ({"mutate": {"noise": RULE}}, "Did you mean 'augmentation.noise'"),
        ({"mutate": {"augmentation": {"flips": RULE}}}, "'augmentation.flips', which is no hyper"),
        (
            {"mutate": {"optimizer_options": {"beta_1": {**RULE, "high": 1}}}},
            "must be below 1, got 1",
        ),
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
        ({"decay_epochs": (1,)}, "a schedule sets the learning rate"),
    ],
)
def test_settings_that_do_not_fit_a_tournament_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(tournament={**GOOD, "mutate": {"learning_rate": RULE}}, **settings)


WEIGHT_DECAY, NOISE = "optimizer_options.weight_decay", "augmentation.noise"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (WEIGHT_DECAY, {}, r"a positive number to begin with, as .*decay = 0.1; got None"),
        (WEIGHT_DECAY, {"optimizer_options": {"weight_decay": 0}}, "got 0"),
        (NOISE, {"augmentation": {"noise": True}}, "got True"),
        (NOISE, {"augmentation": {"noise": [0.1, 0.2]}}, r"got \[0.1, 0.2\]"),
        (NOISE, {"augmentation": {"noise": 0.1}, "swap": "auto"}, "noise and swap exclude each"),
        # It folds the image above half of sigma.
        (
            "augmentation.elastic",
            {"augmentation": {"elastic": {"range": 1, "sigma": 2}}},
            "mutate.augmentation.elastic in .tournament.: An elastic displacement of 3 pixels",
        ),
    ],
)
def test_a_hyperparameter_needs_a_value_to_begin_with_and_bounds_that_it_can_have(
    name, settings, message
):
    rule = {"factors": [0.5], "low": 0.01, "high": 3}
    with pytest.raises(ValueError, match=message):
        RunConfig(tournament={**GOOD, "mutate": {name: rule}}, **settings)


def test_values_of_hyperparameters_replace_those_of_the_configuration():
    rule = {"factors": [0.5], "low": 0.01, "high": 3}
    config = RunConfig(
        # In TOML a key with a dot is a table.
        tournament={**GOOD, "mutate": {"augmentation": {"noise": rule, "blur": rule}}},
        augmentation={"noise": {"range": 2, "probability": 0.5}, "blur": 1, "gamma": True},
    )
    tournament = read_tournament(config.tournament)
    values = first_values(tournament, vars(config))
    assert values == {"augmentation.noise": 2.0, "augmentation.blur": 1.0}
    values["augmentation.noise"] = 0.25
    assert with_values(config.augmentation, "augmentation", values) == {
        "noise": {"range": 0.25, "probability": 0.5},
        "blur": 1.0,
        "gamma": True,
    }
    assert with_values(config.optimizer_options, "optimizer_options", values) == {}
    assert first_values(read_tournament(GOOD), vars(config)) == {}


def test_the_seed_says_which_trainer_of_which_population_a_run_is():
    tournament = read_tournament(GOOD)
    assert [tournament.trainer_of(seed) for seed in (4, 5, 7, 8)] == [0, 1, 3, 0]
    assert [tournament.population_of(seed) for seed in (4, 5, 7, 8)] == [1, 1, 1, 2]
    assert tournament.seed_of(2, 3) == 11


def test_the_record_of_a_run_outside_a_tournament_has_its_old_keys():
    assert "tournament" not in RunConfig().values()
    config = RunConfig(tournament={**GOOD, "mutate": {"learning_rate": RULE}})
    assert from_json(config.to_json()) == config
