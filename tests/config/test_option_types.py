"""Options of the wrong type are refused in words, most of them before TensorFlow is loaded."""

import subprocess
import sys

import keras
import pytest

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.config.option_types import check_option_types, types_in_source, types_of
from tfunet.config.refs import call, resolve
from tfunet.config.run import RunConfig
from tfunet.data import DATASETS
from tfunet.data.early_checks import check_early
from tfunet.learning import LOSSES
from tfunet.models import MODELS


@pytest.mark.parametrize(
    ("type_", "value", "words"),
    [
        ("float", "a", "a number"),
        ("float", True, "a number"),
        ("float", float("nan"), "a number"),
        ("int", 2.5, "a whole number"),
        ("int", False, "a whole number"),
        # The text "false" would count as true.
        ("bool", "false", "true or false"),
        ("bool", 0, "true or false"),
        ("str | None", 3, "a text"),
        ("Sequence[float]", "0.5,2.0", r"a list of numbers, got '0.5,2.0'. Write a list in br"),
        ("Sequence[float]", 2, "a list of numbers"),
        ("Sequence[float]", [1, "a"], "a list of numbers"),
        ("tuple[int, ...]", [1.5], "a list of whole numbers"),
        ("Sequence[Sequence[int]] | None", [1], "a list of lists"),
        ("str | Sequence[str]", {}, "a text or a list of texts"),
        ("Mapping[str, str]", {"a": 1}, "a table"),
        ("float | Sequence[float] | Mapping[str, str] | None", "x", "a number or a list of number"),
    ],
)
def test_a_wrong_type_is_refused(type_, value, words):
    with pytest.raises(ValueError, match=f"loss_options.some must be {words}"):
        check_option_types("loss", "dice", {"some": value}, {"some": type_})


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("float", 1),
        ("int | None", None),
        ("Sequence[float]", ()),
        ("Sequence[float]", [1, 2.5]),
        ("Mapping[str, Any] | None", {"a": [1]}),
        ("options.Shape", "what is not spelt out"),
        ("Any", object()),
    ],
)
def test_a_right_type_is_taken(type_, value):
    check_option_types("loss", "dice", {"some": value}, {"some": type_})


@pytest.mark.parametrize("loss", LOSSES)
def test_every_option_of_a_loss_has_a_type(loss):
    made = resolve("loss", loss, LOSSES)(name="x")
    types = types_in_source(LOSSES[loss])
    assert set(made.get_config()) - {"reduction", "dtype"} <= set(types)
    for option in types:
        with pytest.raises(ValueError, match=f"loss_options.{option} must be "):
            check_early(RunConfig(loss=loss, loss_options={option: {"a": "b"}}))


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


def test_a_function_of_a_user_may_take_more_than_it_says():
    assert types_of(test_a_wrong_type_is_refused) == {}

    def own(width: int = 3):
        return width

    assert call("model", own, {"width": "wide"}) == "wide"


@pytest.mark.parametrize("table", [MODELS, DATASETS])
def test_types_are_found_in_the_source(table):
    for place in table.values():
        assert types_in_source(place)


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
