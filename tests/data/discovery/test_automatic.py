"""`tfunet auto` keeps all of a configuration that it does not choose itself."""

import tomllib
from pathlib import Path

import pytest

from tfunet.arguments import from_dict
from tfunet.data.discovery.automatic import BELONGING, CHOSEN, Settings, not_taken, of_config
from tfunet.data.discovery.fingerprint import fingerprint
from tfunet.data.source import open_source

CELLS = {"data": "cells", "data_options": {"num_cases": 6, "size": 32}}
KEPT = {
    "loss": "focal_crossentropy",
    "metrics": ["hd95", "nsd@2px"],
    "callbacks": [{"name": "TerminateOnNaN"}],
    "optimizer_options": {"clipnorm": 1.0},
    "track": ["mlflow"],
    "epoch_score": "iou",
    "precision": "mixed_bfloat16",
    "validation_share": 0.5,
    "split_seed": 3,
    "checkpoint_steps": 7,
}


def settings_of(table, steps=40):
    config = from_dict(table)
    source = open_source(config.data, config.data_options)
    run = of_config(config, source, Path("mine.toml"))
    return Settings.of(run, fingerprint(source, range(6)), steps)


def written(table, **given):
    """Return the configuration that is written for one, as far as no memory is needed."""
    return settings_of(table, **given).complete(patch=(32, 32), levels=2, filters=8, batch=2)


def test_what_is_not_chosen_is_as_in_the_file():
    given = {**CELLS, **KEPT, "patch": [16, 16], "epochs": 3, "global_batch": 3, "model": "isensee"}
    run = written(given)
    text = run.text([])
    table = tomllib.loads(text)
    assert {key: table[key] for key in KEPT} == KEPT
    assert all(run.keys[key][1] == "As in mine.toml." for key in KEPT)
    # The rules chose these.
    assert (table["patch"], table["steps"], table["model"]) == ([32, 32], 40, "nnunet2d")
    assert table["learning_rate"] == 2e-3
    assert not {"epochs", "global_batch"} & set(table)
    assert from_dict(table).metrics == ("hd95", "nsd@2px")
    # Nothing is written that is the default.
    assert set(tomllib.loads(written(CELLS).text([]))) - {"data", "data_options", "model"} <= {
        *CHOSEN,
        "validation_share",
    }


def test_the_learning_rate_of_another_optimizer_and_axes_of_flips_are_kept():
    table = {**CELLS, "optimizer": "sgd", "learning_rate": 0.03}
    table["augmentation"] = {"flips": [1], "gamma": 0.3}
    run = written(table)
    assert run.keys["learning_rate"] == (0.03, "As in mine.toml. The rule is one for Adam.")
    assert run.augmentation["flips"] == ([1], "As in mine.toml.")
    # Half a turn would reverse the other axis.
    assert run.augmentation["rotation"][0]["range"] == 15
    assert "gamma" in run.augmentation
    assert run.augmentation["gamma"][0] != 0.3


def test_what_belongs_to_another_network_batch_or_schedule_is_named():
    given = {"evaluate_every": 2, "accumulation": 2, "warmup_epochs": 1.0}
    config = from_dict({**CELLS, **given, "epochs": 9})
    assert sorted(not_taken(config)) == sorted(given)
    assert not set(given) & set(written({**CELLS, **given}).keys)
    assert not set(BELONGING) & set(CHOSEN)


def test_a_step_of_several_replicas_covers_as_many_voxels():
    several = {**CELLS, "num_replicas": 2, "backend": "mirrored"}
    # As many evaluations in as many steps.
    runs = [written(table, steps=450) for table in (CELLS, several)]
    assert [run.keys["patches_per_case"][0] for run in runs] == [15, 30]
    assert runs[1].keys["num_replicas"][0] == 2
    most = [settings_of(table).most_batch((4, 4)) for table in (CELLS, several)]
    assert most == [19, 9]


@pytest.mark.parametrize(("key", "value"), [("split", [2, 1]), ("tiling", [2, 2]), ("stages", 2)])
def test_steps_whose_memory_is_not_predicted_are_refused(key, value):
    with pytest.raises(ValueError, match=f"mine.toml has {key}, and only"):
        written({**CELLS, key: value})
