"""Names of Keras are known without Keras, and no name that it takes is refused."""

import keras
import pytest

from tfunet.arguments import check_names, from_dict
from tfunet.config.keras_names import classes


@pytest.mark.parametrize("part", ["optimizers", "losses", "callbacks"])
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
