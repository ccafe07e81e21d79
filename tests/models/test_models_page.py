"""docs/models.md says what the code does."""

import re

import pytest
from paths import ROOT

from tfunet.models import MODELS
from tfunet.models.describe import describe

PAGE = (ROOT / "docs" / "models.md").read_text()
ROW = r"^\| `(\w+)` \| ([\d x]+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d x]+|all) \|$"
ROWS = re.findall(ROW, PAGE, re.MULTILINE)
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(" x ")))


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_table_has_every_model():
    assert [row[0] for row in ROWS] == list(MODELS)


@pytest.mark.parametrize(("name", "images", "classes", "parameters", "trained", "field"), ROWS)
def test_the_table_says_what_the_model_has(name, images, classes, parameters, trained, field):
    described = describe(name, image_shape=_sizes(images), num_classes=int(classes))
    assert described.num_trainable == _count(trained)
    assert described.num_trainable + described.num_non_trainable == _count(parameters)
    assert described.receptive_field == (None if field == "all" else _sizes(field))


def test_the_first_snippet_runs():
    names: dict[str, object] = {}
    exec(SNIPPETS[0], names)
    assert names["logits"].shape == (2, 64, 64, 3)
    assert names["smaller"].output.shape == (None, 32, 32, 32, 2)


def test_the_printed_description_is_the_one_shown(capsys):
    exec(SNIPPETS[1], {})
    shown = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == shown[1]
