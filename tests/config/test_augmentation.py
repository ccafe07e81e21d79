"""The table of augmentations: what it means, and what is refused."""

import pytest

from tfunet import arguments
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.config.augmentation import KINDS, Amount, Augmentation, read_augmentation
from tfunet.config.run import RunConfig, from_json


@pytest.mark.parametrize(
    ("name", "value", "amount"),
    [
        # A number is both directions, up to it, or a factor and its inverse.
        ("rotation", 15, Amount(low=-15, high=15)),
        ("translation", 0.2, Amount(low=-0.2, high=0.2)),
        ("brightness", -0.5, Amount(low=-0.5, high=0.5)),
        ("noise", 0.1, Amount(low=0, high=0.1)),
        ("elastic", 2, Amount(low=0, high=2)),
        ("scale", 1.25, Amount(low=0.8, high=1.25)),
        ("gamma", 0.5, Amount(low=0.5, high=2)),
        # A range is itself; of one number, always that.
        ("scale", [0.7, 1.4], Amount(low=0.7, high=1.4)),
        ("rotation", [90, 90], Amount(low=90, high=90)),
        ("contrast", True, Amount(low=0.75, high=1.25)),
        ("contrast", {"probability": 0.15}, Amount(low=0.75, high=1.25, probability=0.15)),
        ("rotation", {"range": 30, "axes": [2, 1]}, Amount(low=-30, high=30, axes=(1, 2))),
        ("elastic", {"range": [1, 2], "sigma": 8}, Amount(low=1, high=2, sigma=8)),
        # Ways to say no.
        ("rotation", 0, None),
        ("scale", 1, None),
        ("scale", [1.0, 1.0], None),
        ("noise", False, None),
        ("noise", {"range": 0.1, "probability": 0}, None),
    ],
)
def test_an_amount_is_a_number_a_range_or_a_table(name, value, amount):
    assert getattr(read_augmentation({name: value}), name) == amount


def test_without_a_table_samples_are_flipped_and_nothing_else():
    assert read_augmentation({}) == Augmentation(flips=True)
    off = read_augmentation({"flips": False})
    assert not any(getattr(off, name) for name in ("flips", "rotation90", *KINDS))


@pytest.mark.parametrize("name", KINDS)
def test_true_is_a_range_that_is_allowed(name):
    amount = getattr(read_augmentation({name: True}), name)
    assert read_augmentation({name: [amount.low, amount.high]}) == read_augmentation({name: True})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rotaton": 3}, r"Unknown augmentation 'rotaton'. Did you mean 'rotation'\? Known: flips"),
        ({"rotation": 200}, r"rotation takes .* between -180 and 180; got 200"),
        ({"rotation": [10, -10]}, r"a range \[low, high\].* got \[10, -10\]"),
        ({"rotation": [1, 2, 3]}, r"got \[1, 2, 3\]"),
        ({"rotation": "15"}, "takes a number, a range .* got '15'"),
        ({"rotation": [True, 3]}, "got True"),
        ({"rotation": float("nan")}, "got nan"),
        ({"noise": float("inf")}, "got inf"),
        ({"scale": 0}, r"scale takes .* between 0\.01 and 100; got 0"),
        ({"scale": [-1, 1]}, r"between 0\.01 and 100"),
        ({"gamma": -2}, r"between 0\.01 and 100"),
        ({"noise": -0.1}, r"between 0 and inf; got -0\.1"),
        ({"blur": [0.5, 100]}, "between 0 and 20"),
        ({"shear": 90}, "between -60 and 60"),
        ({"elastic": 6}, r"6 pixels folds the image .* sigma = 10 at most 5"),
        ({"elastic": {"sigma": 0.5}}, "sigma must be at least 1 pixel"),
        ({"noise": {"probability": 1.5}}, "probability must lie between 0 and 1, got 1.5"),
        ({"noise": {"propability": 1}}, "noise has no 'propability'. Did you mean 'probability'"),
        ({"noise": {"axes": [0]}}, "noise has no 'axes'"),
        ({"rotation": {"sigma": 3}}, "rotation has no 'sigma'"),
        ({"rotation": {"axes": [0]}}, "takes 2 or more different axes"),
        ({"rotation": {"axes": [0, 0]}}, "takes 2 or more different axes"),
        ({"rotation90": [1]}, "takes 2 or more different axes"),
        (
            {"flips": [0, 3]},
            r"numbers from 0 \(the first of the image\) to 1 in 2D, 2 in 3D; got \[0, 3\]",
        ),
        ({"flips": 1}, "takes axes as a list"),
        ({"flips": []}, "takes 1 or more different axes"),
        ({"flips": [True]}, "takes axes as a list"),
    ],
)
def test_a_wrong_table_is_refused_when_the_configuration_is_made(table, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(augmentation=table)


@pytest.mark.parametrize(
    ("table", "patch", "message"),
    [
        ({"flips": [2]}, (8, 8), r"flips names axis 2; samples of shape \(8, 8\) have axes 0 to 1"),
        ({"scale": {"axes": [2]}}, (8, 8), "scale names axis 2"),
        ({"rotation90": True}, (8, 8, 4), r"rotation90 turns axes \[0, 1, 2\], whose lengths"),
        ({"rotation90": [1, 2]}, (8, 8, 4), r"rotation90 turns axes \[1, 2\]"),
    ],
)
def test_axes_that_a_patch_does_not_have_are_refused(table, patch, message):
    with pytest.raises(ValueError, match=message):
        read_augmentation(table).check_patch(patch)


def test_axes_that_a_patch_has_are_accepted():
    for table in ({"flips": [2], "rotation90": [0, 1]}, {"rotation": True, "rotation90": False}):
        read_augmentation(table).check_patch((8, 8, 4))


def test_file_and_command_line_make_one_table(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        "[augmentation]\nflips = false\nrotation = 15\nelastic = { range = [0, 3], sigma = 8 }\n"
    )
    config = arguments.parse(
        [
            *("--config", str(file), "--augmentation.scale", "[0.9, 1.1]"),
            *("--augmentation.rotation", '{"range": 30, "probability": 0.5}'),
            *("--augmentation.noise", "true"),
        ]
    )
    assert read_augmentation(config.augmentation) == Augmentation(
        flips=False,
        rotation=Amount(low=-30, high=30, probability=0.5),
        elastic=Amount(low=0, high=3, sigma=8),
        scale=Amount(low=0.9, high=1.1),
        noise=Amount(low=0, high=0.1),
    )
    assert from_json(config.to_json()) == config


def test_a_study_varies_one_augmentation_and_checks_its_values():
    study = study_from_dict(
        {
            "base": {"augmentation": {"flips": False}},
            "grid": {"augmentation.rotation": [0, 15], "augmentation.scale": [[0.9, 1.1]]},
        }
    )
    tables = [trial.config.augmentation for trial in plan_trials(study, num_cores=1).trials]
    assert len(tables) == 2
    assert {"flips": False, "rotation": 15, "scale": [0.9, 1.1]} in tables
    for base in ({"augmentation": {"rotaton": 3}}, {"augmentation.rotation": 200}):
        with pytest.raises(ValueError, match=r"augmentation\.rotat.*in \[base\]: .*rotation"):
            study_from_dict({"base": base})
