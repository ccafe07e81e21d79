"""Data sets of arrays: what a data function may return, and what is said of what it may not."""

import numpy as np
import pytest
import tensorflow as tf

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.data.arrays import read_samples
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.pipeline import TrainingPipeline, truth_of
from tfunet.data.source import open_source
from tfunet.data.split import split_of
from tfunet.data.task import open_task

X = np.arange(24).reshape(8, 3) / 7
Y = np.arange(8) % 3


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays)


@pytest.mark.parametrize(
    ("given", "num_train"),
    [
        ((X, Y), 0),
        ([X.tolist(), Y.tolist()], 0),
        (dataset(X, Y), 0),  # Single samples, of one number each.
        (dataset(X, Y).batch(3), 0),
        (((X[:5], Y[:5]), (X[5:], Y[5:])), 5),
        ({"validation": (X[5:], Y[5:]), "train": (X[:5], Y[:5])}, 5),
        ((dataset(X[:5], Y[:5]).batch(2), dataset(X[5:], Y[5:]).batch(2)), 5),
    ],
)
def test_all_forms_give_the_same_samples(given, num_train):
    samples = read_samples(given, "mine")
    np.testing.assert_array_equal(samples.x, X.astype(np.float32))
    np.testing.assert_array_equal(samples.y, Y)
    assert samples.num_train == num_train
    assert samples.content == read_samples((X, Y), "mine").content


@pytest.mark.parametrize(
    ("array", "dtype"),
    [(X, "float32"), (Y, "int64"), (Y > 1, "int32"), (Y.astype("uint16"), "int32")],
)
def test_whole_numbers_stay_whole(array, dtype):
    assert read_samples((X, array), "mine").y.dtype == dtype


@pytest.mark.parametrize(
    ("y", "outputs"),
    [(Y, 3), (Y.reshape(4, 2).repeat(2, 0), 3), (X, 3), (X[:, 0], 1), (Y > 1, 2)],
)
def test_a_model_is_told_of_classes_or_values(y, outputs):
    assert read_samples((X, y), "mine").num_outputs == outputs


RAGGED = [[1, 2, 3], [1]] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, Y[:5]), "has 8 samples x and 5 of y. Give one y for each x"),
        (X, "returned ndarray. The truth y is missing"),
        ("digits", "returned str. Return .x, y."),
        ((X, Y, Y), "weights of samples, which are not built for comparisons"),
        ({"train": (X, Y)}, "returned a dict with .'train'.. Return .x, y."),
        (((X, Y), (X[:, :2], Y)), "Give both the same shape and type"),
        ((RAGGED, Y), "samples of different shapes. Give all the same shape"),
        ((["a text"] * 8, Y), "is text. Text cannot be trained on. Encode it"),
        ((np.array(["a", "b"] * 4, object), Y), "Text cannot be trained on. Encode it"),
        ((X[:0], Y[:0]), "has no samples"),
        ((np.where(X > 1, np.nan, X), Y), "x of train .* NaN or infinite values"),
        ((X, Y + 2**25), "whole numbers beyond 16777216"),
        (((X, X), Y), "x must be an array|is a tuple of several|y of validation|must be a pair"),
        (dataset(X, Y).batch(2).repeat(), "is infinite, so that no epoch ends. Leave out repeat"),
        (dataset(X).batch(2), "they must be .x, y."),
        (tf.data.Dataset.from_tensor_slices(X), "y is missing"),
        (dataset({"a": X, "b": X}, Y).batch(2), "elements with dict"),
        (dataset(tf.ragged.constant(RAGGED), Y).batch(2), "samples of different shapes"),
        (dataset(np.array(["a", "b"] * 4), Y).batch(2), "Text cannot be trained on"),
        (dataset(X, Y).batch(2).take(0), "has no samples"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        read_samples(given, "mine")


def both_sides():
    return (X[:5], Y[:5]), (X[5:], Y[5:])


def one_side() -> tuple[np.ndarray, np.ndarray]:
    return X, Y


def volumes():
    return np.zeros((8, 4, 4, 1)), Y


CONFIG = {"data": f"{__name__}:both_sides", "loss": "mse", "global_batch": 2}


def test_validation_samples_of_its_own_are_held_out():
    source = open_source(f"{__name__}:both_sides", {})
    assert split_of(RunConfig(**CONFIG), source).validation == (5, 6, 7)
    folds = RunConfig(**CONFIG, folds=2)
    with pytest.raises(ValueError, match=r"has validation samples of its own\. Leave out folds"):
        split_of(folds, source)
    drawn = open_source(f"{__name__}:one_side", {})
    assert len(split_of(folds, drawn).validation) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augmentation": {"flips": True}}, "is for images of cases, .* belongs in the model"),
        ({"patches_per_case": 2}, "patches_per_case = 2 is for images of cases"),
        ({"patch": (4, 4)}, r"patch = \[4, 4\] is for images of cases"),
        ({"pipeline": "device"}, "pipeline = .device. is for images"),
        ({"evaluation_halo": 1}, "evaluation_halo = 1 is for images"),
        ({"foreground_share": 0.5}, "needs masks, and the data set .* has arrays instead"),
        ({"outputs": "regions"}, "needs masks"),
        ({"metrics": ("dice",)}, "'dice', which measures masks"),
        ({"split": (2, 1), "backend": "mirrored"}, r"2 numbers, and a sample of shape \(\) has 0"),
        (
            {
                "metrics": ("accuracy",),
                "callbacks": ({"name": "EarlyStopping", "monitor": "val_acuracy"},),
            },
            "val_acuracy., which no epoch has.* Known: loss, learning_rate, val_loss, accuracy",
        ),
    ],
)
def test_keys_of_images_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        open_task(RunConfig(**CONFIG, **settings))


def test_callbacks_may_monitor_metrics_of_the_validation():
    callback = {"name": "EarlyStopping", "monitor": "val_accuracy"}
    open_task(RunConfig(**CONFIG, metrics=("accuracy",), callbacks=(callback,)))


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_are_those_samples_whatever_the_number_of_replicas(replicas):
    task = open_task(RunConfig(**CONFIG))
    cases = task.decode()
    options = {"replica_batch": 4 // replicas, "num_replicas": replicas}
    training = TrainingPipeline(
        cases=cases, train=(0, 1, 2, 3, 4), last_step=1, accumulation=2, **options
    )
    seen = [int(one) for batch in training(range(replicas)) for one in batch["sample"]]
    assert len(set(seen)) == 4
    for batch in training(range(replicas)):
        sample = batch["sample"].numpy()
        np.testing.assert_array_equal(truth_of(batch).numpy().ravel(), Y[sample])
        np.testing.assert_array_equal(
            batch["image"].numpy().reshape(-1, 3), X.astype(np.float32)[sample]
        )
    evaluation = EvaluationPipeline(cases=cases, validation=(5, 6, 7), **options)
    rows = list(evaluation(range(replicas)))
    assert sum(float(batch["valid"].numpy().sum()) for batch in rows) == 3


def test_images_in_arrays_can_be_split():
    task = open_task(RunConfig(**{**CONFIG, "data": f"{__name__}:volumes"}))
    assert (task.patch, task.source.channels, task.num_outputs) == ((4, 4), 1, 3)
    pipeline = TrainingPipeline(
        cases=task.decode(), train=(0, 1), last_step=1, replica_batch=2, split=(2, 1)
    )
    (part,) = pipeline(range(1, 2))
    assert part["image"].shape == (1, 2, 2, 4, 1)


@pytest.mark.parametrize("command", ["check", "show"])
def test_commands_on_images_refuse_arrays(command, tmp_path, capsys):
    config = tmp_path / "run.toml"
    config.write_text(f'data = "{__name__}:both_sides"\nloss = "mse"\n')
    out = ["--out", str(tmp_path / "shown.png")] if command == "show" else []
    assert main(["data", command, str(config), *out]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert f"has arrays, and tfunet data {command} is for images of cases" in said
