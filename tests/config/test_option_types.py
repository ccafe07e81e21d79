"""Options of the wrong type are refused in words, most of them before TensorFlow is loaded."""

import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import pytest

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.config.option_types import KERAS, OFF, kinds_of_options
from tfunet.config.refs import call, resolve
from tfunet.config.run import RunConfig
from tfunet.config.typed_values import convert
from tfunet.data import DATASETS
from tfunet.data.early_checks import check_early
from tfunet.learning import LOSSES, losses, optimizers
from tfunet.models.options import Shape


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (float, "a", "a number"),
        (float, True, "a number"),
        (float, float("nan"), "a number"),
        (int, 2.5, "a whole number"),
        (int, False, "a whole number"),
        # The text "false" would count as true.
        (
            bool,
            "false",
            "true or false, got the text .* without quotes: some = false",
        ),
        (bool, 0, "true or false"),
        (str | None, 3, "a text"),
        (Sequence[float], "0.5,2.0", r"a list of numbers, .* Write it as a list: some = \[0.5,2.0"),
        (Sequence[float], 2, "a list of numbers"),
        (Sequence[float], [1, "a"], "a list of numbers"),
        (tuple[int, ...], [1.5], "a list of whole numbers"),
        (Sequence[Sequence[int]] | None, [1], "a list of lists"),
        (str | Sequence[str], {}, "a text or a list of texts"),
        (Mapping[str, str], {"a": 1}, "a table"),
        (float | Sequence[float] | Mapping[str, str] | None, "x", "a number or a list of number"),
    ],
)
def test_a_wrong_type_is_refused(kind, value, words):
    with pytest.raises(ValueError, match=f"^some must be {words}"):
        convert("some", kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (float, 1),
        (int | None, None),
        (Sequence[float], []),
        (Sequence[float], [1, 2.5]),
        (Mapping[str, Any] | None, {"a": [1]}),
        (Shape, (64, None, 1)),
        (Any, 3),
    ],
)
def test_a_right_type_is_taken(kind, value):
    assert (
        list(value) == list(taken)
        if isinstance(taken := convert("some", kind, value), list)
        else (taken == value)
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_every_option_of_a_loss_has_a_type(loss):
    kinds = kinds_of_options(resolve("loss", loss, LOSSES))
    assert set(losses.make(loss, {}).get_config()) - {"reduction", "dtype"} <= set(kinds)
    for option in kinds:
        with pytest.raises(ValueError, match=f"loss_options.{option} must be "):
            losses.make(loss, {option: {"a": "b"}})


@pytest.mark.parametrize(
    "options",
    [
        {"loss_options": {"class_weights": "0.5,2.0"}},
        {"model_options": {"deep_supervision": "no"}},
        {"model_options": {"filters": "8"}},
        {"model_options": {"dropout": [0.1]}},
        {"model_options": {"activation": 3}},
        {"model": "cicek3d", "model_options": {"groups": "a"}},
        {"model": "cosmoflow2018", "model_options": {"dropout": "a"}},
        {"data_options": {"num_cases": "many"}},
        {"data_options": {"border": "no"}},
        {"data": "folder", "data_options": {"root": ".", "images": 3, "masks": "b"}},
    ],
)
def test_runs_are_refused_early(options):
    given = {"data": "cells", "data_options": {"size": 32}, "steps": 1} | options
    key = next(key for key in ("loss_options", "model_options", "data_options") if key in options)
    with pytest.raises(ValueError, match=rf"{key}\.\w+ must be ") as refused:
        check_early(RunConfig(**given))
    assert "\n" not in str(refused.value)


def test_augmentation_of_the_wrong_type_is_refused_early():
    for table in ({"noise": "much"}, {"flips": "yes"}, {"rotation": {"probability": "half"}}):
        with pytest.raises(ValueError, match=f"The augmentation {next(iter(table))}"):
            check_early(RunConfig(data="cells", augmentation=table))


def test_keras_is_asked_for_its_defaults():
    for name, options in (
        ("EarlyStopping", {"patience": "5"}),
        ("EarlyStopping", {"restore_best_weights": "no"}),
        ("ReduceLROnPlateau", {"factor": [0.5]}),
        ("ReduceLROnPlateau", {"monitor": 5}),
    ):
        kind, option = getattr(keras.callbacks, name), next(iter(options))
        with pytest.raises(ValueError, match=f"{option} of the callback '{name}' must be "):
            call("callback", kind, options)
    call("callback", keras.callbacks.EarlyStopping, {"patience": 5, "monitor": "loss"})
    call("callback", keras.callbacks.ModelCheckpoint, {"filepath": "a.keras", "save_freq": 10})
    call("callback", keras.callbacks.EarlyStopping, {"restore_best_weights": 1})
    call("callback", keras.callbacks.TensorBoard, {"profile_batch": [10, 20]})
    with pytest.raises(ValueError, match=r"loss_options\.label_smoothing must be a number"):
        call("loss", keras.losses.BinaryCrossentropy, {"label_smoothing": "a"})
    with pytest.raises(ValueError, match="alpha of the encoder 'MobileNetV2' must be a number"):
        call("encoder", keras.applications.MobileNetV2, {"alpha": "wide"})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("momentum", "a", "a number, got the text 'a'"),
        ("momentum", True, "a number, got True"),
        ("clipnorm", [1], r"a number, got \[1\]"),
        ("weight_decay", {}, "a number, got {}"),
        ("weight_decay", float("nan"), "a number, got nan"),
        (
            "global_clipnorm",
            "1.0",
            "a number.* quotes: optimizer_options.global_clipnorm = 1",
        ),
        ("ema_overwrite_frequency", 2.5, "a whole number, got 2.5"),
        ("nesterov", "yes", "true or false or a whole number, got the text 'yes'"),
        ("name", 3, None),
        ("clipnorm", True, "a number, got True"),
        ("momentun", 0.9, None),  # Keras names it.
    ],
)
def test_an_option_of_an_optimizer_of_the_wrong_type_is_refused(name, value, allowed):
    words = rf"^optimizer_options\.{name} must be {allowed}" if allowed else f"{name}"
    with pytest.raises(ValueError, match=words):
        optimizers.make(RunConfig(optimizer="sgd", optimizer_options={name: value}), 1, 1)


@pytest.mark.parametrize("name", OFF)
@pytest.mark.parametrize("value", [None, False])
def test_an_option_of_an_optimizer_can_be_switched_off(name, value):
    options = {name: value, "momentum": 0.9, "nesterov": 1}
    assert optimizers.make(RunConfig(optimizer="sgd", optimizer_options=options), 1, 1)


def test_each_option_of_an_optimizer_has_a_type():
    holders = ("LossScaleOptimizer", "MultiOptimizer", "OptimizerMap")  # They hold others.
    kinds = [value for value in vars(keras.optimizers).values() if inspect.isclass(value)]
    for kind in (candidate for candidate in kinds if candidate.__name__ not in holders):
        untold = {*inspect.signature(kind).parameters} - {*kinds_of_options(kind)}
        assert untold <= {"args", "kwargs", "name", "exclude_layers"}, kind
    assert {*OFF} <= {*KERAS}


def test_a_function_of_a_user_may_take_more_than_it_says():
    assert kinds_of_options(test_a_wrong_type_is_refused) == {}

    def own(width: int = 3):
        return width

    assert call("model", own, {"width": "wide"}) == "wide"


@pytest.mark.parametrize("name", DATASETS)
def test_every_option_of_a_data_set_has_a_type(name):
    function = resolve("data set", name, DATASETS)
    named = inspect.signature(function).parameters.items()
    options = {name for name, value in named if value.kind is not value.VAR_KEYWORD}
    assert options <= {*kinds_of_options(function)}


def test_the_command_ends_with_one_line_and_without_tensorflow(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--data", "cells", "--steps", "1", "--loss_options.class_weights", "0.5,2.0"]
    assert main(words) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert "loss_options.class_weights must be a list of numbers that are not negative" in said
    assert "got '0.5,2.0'" in said
    code = "import sys; from tfunet.cli import main; main(sys.argv[1:])\n"
    code += "print(sorted({'keras', 'tensorflow'} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "[]\n"
