"""Names of Keras are known without Keras, and no name that it takes is refused."""

import inspect

import keras
import pytest
from keras.src.metrics import ALL_OBJECTS_DICT

from tfunet.arguments import check_names, from_dict
from tfunet.config.keras_names import classes, options_of_callback


@pytest.mark.parametrize("part", ["optimizers", "losses", "callbacks", "metrics"])
def test_names_in_the_source_are_those_that_keras_has(part):
    there = {name for name in vars(getattr(keras, part)) if name[0].isupper()}
    assert set(classes(part)) == there


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adm"}, "Unknown optimizer 'adm'. Did you mean 'adam'"),
        ({"loss": "dic"}, "Unknown loss 'dic'. Did you mean 'dice'"),
        ({"callbacks": [{"name": "EarlyStoping"}]}, "Did you mean 'EarlyStopping'"),
        ({"callbacks": [{"patience": 3}]}, "A callback needs a name, such as"),
        ({"callbacks": [{"name": "BackupAndRestore"}]}, "resumes by itself"),
        ({"metrics": ["hd59"]}, "Unknown metric 'hd59'. Did you mean 'hd95'"),
        ({"metrics": ["dice", "AUCC"]}, "Unknown metric 'AUCC'. Did you mean 'AUC'"),
        (
            {"callbacks": [{"name": "EarlyStopping", "patienc": 3}]},
            "'EarlyStopping' has no option 'patienc'. Did you mean 'patience'",
        ),
        (
            {"callbacks": [{"name": "EarlyStopping", "patience": "a"}]},
            "patience of the callback 'EarlyStopping' must be a number, got 'a'",
        ),
        *(({key: ":build"}, "':build' names no module. Write") for key in ("model", "loss")),
        ({"data": "mine:"}, "'mine:' names nothing in a module. Write"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        check_names(from_dict(settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "AdamW", "loss": "MeanSquaredError"},
        {"optimizer": "SGD", "callbacks": [{"name": "TerminateOnNaN"}]},
    ],
)
def test_names_of_keras_are_taken(settings):
    check_names(from_dict(settings))


def test_every_metric_that_keras_knows_by_a_name_is_taken():
    names = [*ALL_OBJECTS_DICT, "accuracy", "acc", "ACC"]
    assert len(names) > 50
    check_names(from_dict({"metrics": names}))


@pytest.mark.parametrize("name", classes("callbacks"))
def test_the_options_of_a_callback_are_those_of_its_signature(name):
    parameters = inspect.signature(getattr(keras.callbacks, name).__init__).parameters.values()
    if any(value.kind is inspect.Parameter.VAR_KEYWORD for value in parameters):
        assert options_of_callback(name) == {}
        return
    named = [value.name for value in parameters if value.name not in ("self", "args", "kwargs")]
    assert list(options_of_callback(name)) in (named, [])
    if name in ("EarlyStopping", "ModelCheckpoint", "CSVLogger", "TensorBoard"):
        assert options_of_callback(name)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"def build(:\n", r"SyntaxError: invalid syntax, in mine\.py, line 1: def build\(:"),
        (b"def build(): ...\0\n", "null bytes"),
        (b"def other(): ...\n", "has no 'build'"),
        (b"# -*- coding: latin-1 -*-\ndef build(**all): '\xe9'\n", None),
    ],
)
@pytest.mark.parametrize("key", ["model", "data", "loss", "optimizer", "callbacks"])
def test_a_program_that_is_no_python_is_refused_before_it_runs(key, source, words, tmp_path):
    (tmp_path / "mine.py").write_bytes(source)
    ref = f"{tmp_path}/mine.py:build"
    config = from_dict({key: [{"name": ref}] if key == "callbacks" else ref})
    if words is None:
        check_names(config)
        return
    with pytest.raises(ValueError, match=words):
        check_names(config)
