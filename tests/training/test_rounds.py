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
from tfunet.loop import run
from tfunet.population.meeting import PopulationFolder
from tfunet.population.offers import from_bfloat16, to_bfloat16
from tfunet.record import MEETINGS, RunFolder
from tfunet.single_device import SingleDevice

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


def train(config, folder, *, until=None, keep=None):
    """Run until a step, or to the end; return the model and the rows of the rounds."""
    keep = keep or Keep()
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
    return PopulationFolder(folder / MEETINGS / name, trainer)


def values(model):
    """Return what changes hands."""
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    own = ("iteration", "learning_rate")
    optimizer = [state for state in model.optimizer.variables if state.name not in own]
    others = [weight for weight in model.variables if id(weight) not in metrics]
    return [value.numpy() for value in (*others, *optimizer)]


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
    rates = [float(models[trainer].optimizer.learning_rate) for trainer in (winner, 1 - winner)]
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
    rule = {"factors": [0.25], "low": 1e-9, "high": 1.0}
    ranked = {**TOURNAMENT, "trainers": 5, "selection": "truncation", "keep": 2}
    ranked["mutate"] = {"learning_rate": rule}
    own = config(5, tmp_path, ranked)
    # It has made more steps: they stay with it.
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
    # Never the hyperparameters of one model with the weights of another.
    assert float(row["learning_rate"]) == pytest.approx(0.01)
    shutil.rmtree(tmp_path / "own")
    offer(3, 1.5)
    model, (row,) = train(own, tmp_path / "own", until=2)
    assert (row["partner"], row["model_of"], row["partner_score"]) == ("2", "2", "2.0")
    assert float(row["learning_rate"]) == pytest.approx(0.005)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.005)
    assert int(model.optimizer.inner_optimizer.iterations) == 2
    taken = values(model)
    # An offer has the variables in the order of a checkpoint.
    names = sorted(name for name in arrays if name != "facts")
    assert len(names) == len(taken)
    total = sum(float(np.sum(arrays[name], dtype=np.float64)) for name in names)
    assert total == pytest.approx(sum(float(np.sum(value, dtype=np.float64)) for value in taken))
    assert RunFolder(tmp_path / "own").path.exists()


def build_watching(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = keras.layers.Conv2D(num_classes, 1)(Watching(name="watching")(image))
    return keras.Model(image, x)


class Watching(keras.layers.Layer):
    """Has a weight that the loss does not depend on, and keeps the mean of the last batch."""

    def build(self, shape):
        self.idle = self.add_weight(name="idle", shape=(), initializer="random_uniform")
        self.seen = self.add_weight(name="seen", shape=(), trainable=False)

    def call(self, image, training=False):
        if training:
            self.seen.assign(keras.ops.mean(image))
        return image + 0.0 * self.idle


class Notes(Keep):
    """Notes (mean of the batch, idle weight) after each step."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def on_train_batch_end(self, batch, logs=None):
        watching = self.model.get_layer("watching")
        self.rows.append((float(watching.seen.numpy()), float(watching.idle.numpy())))


def test_the_next_step_uses_the_hyperparameters_that_were_taken_over(tmp_path):
    names = {
        "optimizer_options.weight_decay": 0.5,
        "optimizer_options.momentum": 0.8,
        "augmentation.brightness": 0.6,
    }
    rule = {"factors": [0.5], "low": 1e-6, "high": 0.9}
    ranked = {
        **TOURNAMENT,
        "selection": "truncation",
        "exchange": "weights_bfloat16",
        "mutate": {
            "optimizer_options": {"weight_decay": rule, "momentum": rule},
            "augmentation.brightness": rule,
        },
    }
    settings = {
        "model": f"{__file__}:build_watching",
        "precision": "float32",
        "optimizer": "sgd",
        "learning_rate": 0.1,
    }

    def one(seed, folder, scale=1.0, until=None, **tournament):
        options = {name: scale * value for name, value in names.items()}
        own = config(
            seed,
            tmp_path,
            {**ranked, **tournament},
            optimizer_options={
                "weight_decay": options["optimizer_options.weight_decay"],
                "momentum": options["optimizer_options.momentum"],
            },
            augmentation={"brightness": options["augmentation.brightness"]},
            **settings,
        )
        notes = Notes()
        _, rows = train(own, tmp_path / folder, until=until, keep=notes)
        return own, notes, rows

    first, winner, _ = one(0, "first", until=2)
    path = meeting(first, tmp_path).offer_path(1, 0)
    with np.load(path) as file:
        arrays = dict(file)
    facts = {**json.loads(arrays["facts"].tobytes()), "score": 2.0}
    assert facts["hyperparameters"] == {"learning_rate": pytest.approx(0.1), **names}
    np.savez(path, **{**arrays, "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)})

    _, before, _ = one(1, "second", until=3)
    _, after, rows = one(1, "second")
    assert [row["model_of"] for row in rows] == ["0", "1"]
    for name, value in names.items():
        assert [float(row[name]) for row in rows] == [value / 2] * 2
        option, _, entry = name.partition(".")
        if option == "optimizer_options":
            assert getattr(after.model.optimizer, entry) == value / 2
    assert float(rows[0]["learning_rate"]) == pytest.approx(0.1)  # Not mutated: its own.
    noted = [*before.rows, *after.rows]
    assert len(noted) == 5
    # The images of the later steps are those of a run with half the brightness from the start.
    _, usual, _ = one(1, "usual/run", selection="none")
    _, halved, _ = one(1, "halved/run", scale=0.5, selection="none")
    means = [[row[0] for row in notes] for notes in (noted, usual.rows, halved.rows)]
    assert means[0] == [*means[1][:2], *means[2][2:]]
    assert means[1][2:] != means[2][2:]
    # The idle weight follows the winner, and decays by half as much: step, model, step and so on.
    expected = float(from_bfloat16(to_bfloat16(np.float32(winner.rows[1][1])))[()])
    assert expected == pytest.approx(winner.rows[1][1], rel=2**-8)
    for _, idle in noted[2:]:
        expected *= 1 - 0.1 * 0.25
        assert idle == pytest.approx(expected, rel=1e-5)
    assert noted[1][1] != pytest.approx(winner.rows[1][1], rel=1e-3)


def test_a_partner_that_never_wins_changes_neither_samples_nor_losses(tmp_path):
    """As LBANN's test of its data readers: 31 and 13 samples, batches of 7, interval 3."""
    paired = {**TOURNAMENT, "round_steps": 3, "mutate": {}}
    settings = {"replica_batch": 7, "steps": None, "epochs": 3, "validation_share": 13 / 52}
    settings["data_options"] = {"num_cases": 52, "size": 32}
    other = config(0, tmp_path, paired, **settings)
    train(other, tmp_path / "other", until=3)
    place = meeting(other, tmp_path).folder
    with np.load(place / "round-00001/trainer-0.npz") as file:
        broken = {
            name: np.full_like(value, np.nan) if value.dtype == np.float32 else value
            for name, value in file.items()
        }
    for round in range(1, 4):
        (place / f"round-{round:05d}").mkdir(exist_ok=True)
        np.savez(place / f"round-{round:05d}/trainer-0.npz", **broken)
    _, rows = train(config(1, tmp_path, paired, **settings), tmp_path / "own")
    assert [row["partner_score"] for row in rows] == ["nan"] * 3
    train(config(1, tmp_path, {**paired, "selection": "none"}, **settings), tmp_path / "none/run")
    tables = [
        {name: read_rows(path / f"{name}.csv") for name in ("epochs", "steps", "cases")}
        for path in (tmp_path / "own", tmp_path / "none/run")
    ]
    split = json.loads((tmp_path / "own/split.json").read_text())
    sides = json.loads((tmp_path / "own/tournament.json").read_text())
    assert (len(sides["train"]), len(split["validation"])) == (31, 13)
    for name, columns in {
        "steps": ("step", "loss"),
        "epochs": ("samples_hash", "dropped_samples", "weights_hash", "val_loss"),
        "cases": ("epoch", "case", "true_positive"),
    }.items():
        own, alone = (
            [[row[column] for column in columns] for row in table[name]] for table in tables
        )
        assert own == alone
    assert len(tables[0]["steps"]) == 3 * (31 // 7)
    assert len(tables[0]["cases"]) % 13 == 0
