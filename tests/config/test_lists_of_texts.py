"""A text in the place of a list is one entry, or refused: it is never taken letter by letter."""

from dataclasses import replace

import pytest

import tfunet
from tfunet.config.run import RunConfig
from tfunet.data.source import open_source
from tfunet.prediction.options import Options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"metrics": "hd95"},
            r'a list of texts, .* got the text .hd95.. Write it as a list: metrics = \["hd95"\]',
        ),
        ({"validation_groups": "ab"}, "a list of texts"),
        ({"track": "wandb"}, "a list of texts"),
        (
            {"callbacks": "EarlyStopping"},
            r"a list of tables, .*: callbacks = \[{ name = .EarlyStopping. }\]$",
        ),
        ({"decay_epochs": "12"}, "a list of whole numbers"),
        ({"patch": "32"}, "a list of whole numbers"),
        ({"epochs": "3"}, "a whole number, got the text '3'. Write it without quotes: epochs = 3"),
        ({"data_options": "root"}, "a table, { key = value }"),
    ],
)
def test_keys_of_a_run(given, words):
    (key,) = given
    with pytest.raises(ValueError, match=f"^{key} must be {words}"):
        RunConfig(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ensemble": "logs/b"}, "a list of values, got the text 'logs/b'"),
        ({"window": "64"}, "a list of whole numbers, such as .*, got the text '64'"),
        ({"window": 64}, "a list of whole numbers, such as .*, got 64"),
        ({"window": ["64", "64"]}, "a list of whole numbers"),
        ({"pixel_size": "0.5"}, "a list of numbers"),
        ({"batch": "2"}, "a whole number"),
    ],
)
def test_options_of_a_prediction(given, words):
    (option,) = given
    with pytest.raises(ValueError, match=f"^{option} must be {words}"):
        Options(**given)


@pytest.mark.parametrize("name", ["case_ids", "groups", "files", "class_names", "patch"])
def test_facts_of_a_data_set(name):
    cells = open_source("cells", {"num_cases": 4, "size": 32})
    with pytest.raises(ValueError, match=f"has {name}='abcd': give a tuple, such as"):
        replace(cells, **{name: "abcd"})


def test_options_of_a_data_set():
    options = {"root": ".", "images": "{case}.png", "masks": "{case}_m.png"}
    with pytest.raises(ValueError, match=r"must be a table, { key = a list of texts }, got"):
        open_source("folder", {**options, "regions": {"all": "core"}})
    with pytest.raises(ValueError, match=r"exclude must be a list of texts.* \[\"a\", \"b\"\]"):
        open_source("folder", {**options, "exclude": "old"})


def test_one_backend_and_one_number_of_replicas_may_be_compared(tmp_path):
    with pytest.raises(ValueError, match="Unknown backend 'singel'"):
        tfunet.compare("unet", "cells", backends="singel", folder=tmp_path / "study")
    with pytest.raises(ValueError, match="num_replicas must be at least 1, got 0"):
        tfunet.compare("unet", "cells", num_replicas=0, folder=tmp_path / "study")


def test_one_way_may_be_allowed():
    from tfunet.swap import LargeModelSupport

    assert LargeModelSupport(0, allowed="recompute").allowed == ("recompute",)
