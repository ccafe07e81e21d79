"""docs/data.md and docs/example-data.md: their descriptions are the ones that work."""

import inspect
import re
import tomllib

import numpy as np
from paths import ROOT

from tfunet.config.augmentation import KINDS, NAMES, read_augmentation
from tfunet.config.run import RunConfig
from tfunet.data.check import check
from tfunet.data.layouts.folder import open_folder
from tfunet.data.preprocess import check_intensity, normalise

PAGE = (ROOT / "docs" / "data.md").read_text()
EXAMPLES = (ROOT / "docs" / "example-data.md").read_text()


def blocks(language, page=PAGE):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def rows(heading):
    section = PAGE[PAGE.index(heading) :]
    return re.findall(r"^\| `(\w+)` \|", section[: section.index("\n\n", section.index("|"))], re.M)


def test_the_options_that_the_page_explains_are_those_of_a_folder():
    assert set(rows("### Options")) < set(inspect.signature(open_folder).parameters)


def test_every_intensity_of_the_table_is_read():
    section = PAGE[PAGE.index("### Intensity") :].partition("\n### ")[0]
    _, *shown = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(shown) == 7
    image = np.eye(4)[..., np.newaxis]
    for value in shown:
        intensity = tomllib.loads(f"x = {value.replace('LOW', '0').replace('HIGH', '255')}")["x"]
        assert normalise(image, check_intensity(intensity)).shape == image.shape


def test_the_descriptions_are_those_of_the_studies():
    described = [tomllib.loads(text) for text in blocks("toml", EXAMPLES)]
    assert len(described) == 3
    for example in described:
        inspect.signature(open_folder).bind(**example["data_options"])
        RunConfig(**example)
    for example, name in zip(described[:2], ("sem", "hippocampus"), strict=True):
        base = tomllib.loads((ROOT / "studies" / f"{name}.toml").read_text())["base"]
        assert {"intensity": "zscore", **example["data_options"]} == base["data_options"]


def test_every_augmentation_is_in_the_table_and_in_the_pictures():
    assert rows("## Augmentation") == list(NAMES)
    (shown,) = (
        table for text in blocks("toml") if (table := tomllib.loads(text))["data"] == "cells"
    )
    augmentation = read_augmentation(shown["augmentation"])
    assert all(getattr(augmentation, name) for name in NAMES)
    pictures = re.findall(r"\((figures/augmentation-\S+\.png)\)", PAGE)
    assert len(pictures) == 2
    assert sum((ROOT / "docs" / picture).stat().st_size for picture in pictures) < 500_000


def test_the_table_says_what_true_stands_for():
    section = PAGE[PAGE.index("## Augmentation") :]
    for name, amount in re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|", section, re.MULTILINE):
        if name in KINDS:
            assert read_augmentation({name: tomllib.loads(f"x = {amount}")["x"]}) == (
                read_augmentation({name: True})
            )


def test_ones_own_data_set_works_as_shown():
    code, _ = blocks("python")
    scope = {}
    exec(code, scope)
    source = scope["open"](path="x")
    assert check(source).defects == ()
    assert np.unique(source.read(3)[1]).tolist() == [0, 1]
