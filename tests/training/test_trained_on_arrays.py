"""Any Keras model on arrays: classes, numbers, a label for each token."""

import csv
from dataclasses import replace

import keras
import numpy as np
import pytest

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.prediction.network import load_network
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice

RNG = np.random.default_rng(0)
CLASSES = RNG.integers(0, 3, 23)
VECTORS = RNG.normal(size=(23, 5)).astype(np.float32) + np.eye(3, 5)[CLASSES]
TOKENS = RNG.integers(0, 9, (23, 6))


def classes():
    return (VECTORS[:16], CLASSES[:16]), (VECTORS[16:], CLASSES[16:])


def numbers():
    return (VECTORS[:16], VECTORS[:16, :2]), (VECTORS[16:], VECTORS[16:, :2])


def tagged():
    return (TOKENS[:16], TOKENS[:16] % 3), (TOKENS[16:], TOKENS[16:] % 3)


def dense(outputs=3, activation=None):
    inputs = keras.Input((5,))
    return keras.Model(inputs, keras.layers.Dense(outputs, activation)(inputs))


def tagger(*, image_shape, num_classes):
    inputs = keras.Input(image_shape, dtype="int32")
    return keras.Model(
        inputs, keras.layers.Dense(num_classes)(keras.layers.Embedding(9, 4)(inputs))
    )


class Largest(keras.metrics.Mean):
    """The mean of the largest output: which way is better, nobody knows."""

    def __init__(self):
        super().__init__(name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.max(y_pred, axis=-1))


CONFIG = RunConfig(
    model=f"{__name__}:dense",
    data=f"{__name__}:classes",
    loss="sparse_categorical_crossentropy",
    loss_options={"from_logits": True},
    metrics=("accuracy", f"{__name__}:Largest"),
    # The last batch of the seven validation samples has two rows that count for nothing.
    replica_batch=3,
    epochs=2,
)
NUMBERS = replace(
    CONFIG,
    data=f"{__name__}:numbers",
    model_options={"outputs": 2},
    loss="MeanSquaredError",
    loss_options={},
    metrics=("mae", "R2Score"),
)
TAGGED = replace(
    CONFIG, model=f"{__name__}:tagger", data=f"{__name__}:tagged", metrics=("accuracy",)
)
PROBABILITIES = replace(
    CONFIG,
    model_options={"activation": "softmax"},
    loss_options={},
    metrics=("sparse_categorical_accuracy",),
)


@pytest.mark.parametrize(
    ("config", "loss", "metrics"),
    [
        (CONFIG, keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]),
        (NUMBERS, "mse", ["mae", keras.metrics.R2Score(name="R2Score")]),
        (TAGGED, keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]),
        (PROBABILITIES, "sparse_categorical_crossentropy", ["sparse_categorical_accuracy"]),
    ],
    ids=["classes", "numbers", "tokens", "probabilities"],
)
def test_scores_are_those_of_keras_over_all_validation_samples(config, loss, metrics, tmp_path):
    result = run(config, SingleDevice(Launch()), tmp_path)
    model = keras.models.load_model(tmp_path / "model.keras")
    model.compile(loss=loss, metrics=metrics)
    validation = globals()[config.data.partition(":")[2]]()[1]
    expected = model.evaluate(*validation, batch_size=7, verbose=0, return_dict=True)
    assert result["val_loss"] == pytest.approx(expected.pop("loss"), rel=1e-5)
    for name, value in expected.items():
        assert result["metrics"][f"val_{name}"] == pytest.approx(value, rel=1e-5), name
    with (tmp_path / "epochs.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    for name in ("val_loss", *result["metrics"]):
        known = {**result["metrics"], "val_loss": result["val_loss"]}
        assert float(last[name]) == pytest.approx(known[name])
    assert (result["dice"], result["iou"]) == ({}, {})
    assert not {"cases.csv", "errors.csv", "shown_cases.npz"} & set(map(str, tmp_path.iterdir()))
    with pytest.raises(ValueError, match=r"was trained on arrays.*Load model.keras with Keras"):
        load_network(RunFolder(tmp_path))


@pytest.mark.parametrize(
    ("config", "scores"),
    [
        (CONFIG, {"val_accuracy": "max", "val_largest": None, "val_loss": "min"}),
        (NUMBERS, {"val_mae": "min", "val_R2Score": "max", "val_loss": "min"}),
        (replace(CONFIG, metrics=(f"{__name__}:Largest",)), {"val_loss": "min"}),
    ],
    ids=["accuracy", "error", "unknown"],
)
def test_the_record_says_which_way_is_better(config, scores, tmp_path):
    found = run(replace(config, steps=1), SingleDevice(Launch()), tmp_path)["scores"]
    assert next(iter(found)) == next(iter(scores))
    assert {name: found[name] for name in scores} == scores


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(CONFIG, loss="dice_crossentropy", loss_options={}), "Name a loss of Keras, such"),
        (replace(CONFIG, loss="sparse_crossentropy"), "Unknown loss 'sparse_crossentropy'"),
        (replace(CONFIG, loss="CategoricalCrossentropy"), "cannot be computed for y_true"),
        (replace(CONFIG, metrics=("AUC", "dice")), "'dice', which measures masks"),
        (replace(CONFIG, metrics=("CosineSimilarities",)), "Unknown metric"),
        (
            replace(CONFIG, model=f"{__name__}:tagger"),
            r"cannot be computed for y_true \(1,\) and y_pred \(1, 5, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(config, SingleDevice(Launch()), tmp_path)
