"""The rounds of a tournament inside the loop. Trainers run here one after the other."""

import json
import shutil

import keras
import numpy as np
import pytest

from tfunet.backend import Launch
from tfunet.config.keys import MAY_CHANGE
from tfunet.config.run import RunConfig
from tfunet.config.tournament import meeting_name
from tfunet.exit_codes import StoppedError
from tfunet.files.table import read_rows
from tfunet.population.meeting import Meeting
from tfunet.record import MEETINGS, RunFolder
from tfunet.single_device import SingleDevice
from tfunet.train import run

TOURNAMENT = {
    "trainers": 2,
    "round_steps": 2,
    "wait_seconds": 0.05,
    "mutate": {"learning_rate": {"factors": [0.5], "low": 1e-9, "high": 1.0}},
}


@pytest.fixture(autouse=True)
def precision():
    yield
    keras.config.set_dtype_policy("float32")  # A run leaves its own.


def build(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = keras.layers.Conv2D(2, 3, padding="same", activation="relu")(image)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.5)(x)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1, dtype="float32")(x))


class Keep(keras.callbacks.Callback):
    """Keeps the model, to look at it after the run."""


def config(seed, tmp_path, tournament=TOURNAMENT, **settings):
    return RunConfig(
        **{
            "model": f"{__file__}:build",
            "data_options": {"num_cases": 10, "size": 32},
            "optimizer_options": {"use_ema": True},
            "precision": "mixed_float16",
            "learning_rate": 0.01,
            "replica_batch": 1,
            "steps": 5,
            "seed": seed,
            "deterministic": True,
            "cache_dir": str(tmp_path / "cache"),
            "tournament": tournament,
            **settings,
        }
    )


def train(config, folder, *, until=None):
    """Run until a step, or to the end; return the model and the rows of the rounds."""
    keep = Keep()
    try:
        run(
            config,
            SingleDevice(Launch()),
            folder,
            callbacks=[keep],
            stops_after=lambda step: step == until,
        )
    except StoppedError:
        assert until is not None
    return keep.model, read_rows(folder / "rounds.csv")


def meeting(config, folder, trainer=0):
    population = config.seed // config.tournament["trainers"]
    name = meeting_name(config.values(), MAY_CHANGE, population)
    return Meeting(folder / MEETINGS / name, trainer)


def values(model):
    """Return what changes hands."""
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    own = ("iteration", "learning_rate")
    optimizer = [one for one in model.optimizer.variables if one.name not in own]
    others = [one for one in model.variables if id(one) not in metrics]
    return [one.numpy() for one in (*others, *optimizer)]


def test_the_loser_goes_on_with_the_winners_model_and_its_own_steps(tmp_path):
    first, second = (config(seed, tmp_path) for seed in (0, 1))
    train(second, tmp_path / "alone", until=2)
    (alone,) = read_rows(tmp_path / "alone/rounds.csv")
    assert alone["reason"] == "trainer 0 is missing or late: it plays alone"
    assert alone["model_of"] == "1"
    models, rows = {}, {}
    models[0], (rows[0],) = train(first, tmp_path / "first", until=2)
    models[1], (rows[1],) = train(second, tmp_path / "second", until=2)

    # All decide on the same cases: each sees the score that the other one has seen.
    assert rows[0]["own_score"] == rows[1]["partner_score"]
    assert rows[1]["own_score"] == rows[0]["partner_score"] == alone["own_score"]
    winner = max((0, 1), key=lambda trainer: float(rows[trainer]["own_score"]))
    assert [row["model_of"] for row in rows.values()] == [str(winner)] * 2
    assert rows[winner]["reason"] == "the own model is better"
    assert rows[1 - winner]["reason"] == "the partner's model is better"

    kept, taken = values(models[winner]), values(models[1 - winner])
    assert len(kept) > 20  # Weights, seeds of dropout, slots, averages, the loss scale.
    assert any(value.shape == (2,) and value.dtype.kind in "iu" for value in kept)
    assert all(np.array_equal(one, other) for one, other in zip(kept, taken, strict=True))
    assert int(models[1 - winner].optimizer.inner_optimizer.iterations) == 2
    rates = [float(models[one].optimizer.learning_rate) for one in (winner, 1 - winner)]
    assert rates == pytest.approx([0.01, 0.005])
    assert float(rows[1 - winner]["learning_rate"]) == pytest.approx(0.005)

    # Both go on. The samples are those of a run that meets nobody, and so is the loss before.
    # In round 2 the other one offers a model whose weights are not numbers.
    place = meeting(first, tmp_path).folder
    with np.load(place / f"round-00001/trainer-{winner}.npz") as file:
        broken = {
            name: np.full_like(value, np.nan) if value.dtype == np.float32 else value
            for name, value in file.items()
        }
    (place / "round-00002").mkdir()
    np.savez(place / f"round-00002/trainer-{winner}.npz", **broken)
    loser = (first, second)[1 - winner]
    folder = tmp_path / ("first", "second")[1 - winner]
    _, after = train(loser, folder)
    assert [row["round"] for row in after] == ["1", "2"]
    assert after[0] == rows[1 - winner]
    assert (after[1]["partner_score"], after[1]["model_of"]) == ("nan", str(1 - winner))
    assert after[1]["reason"] == "the own model is better"
    # A run that was not stopped after the round plays the same rounds, to the same weights.
    _, whole = train(loser, tmp_path / "whole")
    clocks = ("training_seconds", "round_seconds", "waited_seconds")
    assert [{**row, **dict.fromkeys(clocks)} for row in whole] == [
        {**row, **dict.fromkeys(clocks)} for row in after
    ]
    assert (
        read_rows(tmp_path / "whole/epochs.csv")[-1]["weights_hash"]
        == (read_rows(folder / "epochs.csv")[-1]["weights_hash"])
    )
    independent = config(1 - winner, tmp_path, {**TOURNAMENT, "selection": "none"})
    train(independent, tmp_path / "none/run")
    tables = [
        {
            name: [row[column] for row in read_rows(path / f"{name}.csv")]
            for name, column in (("epochs", "samples_hash"), ("steps", "loss"))
        }
        for path in (folder, tmp_path / "none/run")
    ]
    assert tables[0]["epochs"] == tables[1]["epochs"]
    assert tables[0]["steps"][:2] == tables[1]["steps"][:2]
    assert tables[0]["steps"][2:] != tables[1]["steps"][2:]
    assert not (tmp_path / "none/run/rounds.csv").exists()
    sides = json.loads((folder / "tournament.json").read_text())
    split = json.loads((folder / "split.json").read_text())
    assert sorted(sides["train"] + sides["deciding"]) == sorted(split["train"])


def test_ranks_pass_over_models_that_are_missing_damaged_or_without_a_score(tmp_path):
    ranked = {**TOURNAMENT, "trainers": 5, "selection": "truncation", "keep": 2, "mutate": {}}
    own = config(5, tmp_path, ranked)
    # It has made more steps, at another rate: both stay with it, for nothing is mutated.
    other = config(6, tmp_path, {**ranked, "round_steps": 3}, learning_rate=0.02)
    train(other, tmp_path / "other", until=3)
    place = meeting(own, tmp_path).folder / "round-00001"
    place.mkdir(parents=True)
    facts = {"hyperparameters": {"learning_rate": 0.02}, "is_rounded": False}
    with np.load(meeting(other, tmp_path).folder / "round-00001/trainer-1.npz") as file:
        arrays = dict(file)

    def offer(trainer, score, **changed):
        text = json.dumps({**facts, "score": score}).encode()
        all_arrays = {**arrays, **changed, "facts": np.frombuffer(text, np.uint8)}
        np.savez(place / f"trainer-{trainer}.npz", **all_arrays)

    offer(1, None)
    offer(2, 2.0)
    offer(3, 3.0, variable_00000=np.zeros(3, np.float32))
    model, (row,) = train(own, tmp_path / "own", until=2)
    # The first of the ranks, 3, is given to the one in place 2: it is of another model.
    assert row["model_of"] == "0"
    assert row["reason"] == ("the model of trainer 3 cannot be used; missing or late: 4")
    shutil.rmtree(tmp_path / "own")
    offer(3, 1.5)
    model, (row,) = train(own, tmp_path / "own", until=2)
    assert (row["partner"], row["model_of"], row["partner_score"]) == ("2", "2", "2.0")
    assert float(row["learning_rate"]) == pytest.approx(0.01)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    assert int(model.optimizer.inner_optimizer.iterations) == 2
    taken = values(model)
    # An offer has the variables in the order of a checkpoint.
    names = sorted(name for name in arrays if name != "facts")
    assert len(names) == len(taken)
    total = sum(float(np.sum(arrays[name], dtype=np.float64)) for name in names)
    assert total == pytest.approx(sum(float(np.sum(value, dtype=np.float64)) for value in taken))
    assert RunFolder(tmp_path / "own").path.exists()
