"""The table of models: complete, and readable without TensorFlow."""

import re
import subprocess
import sys

import pytest
from paths import ROOT

from tfunet.config.refs import resolve
from tfunet.models import CARDS, EXAMPLES, MODELS, list_models


def test_every_model_has_a_card_and_a_line_in_the_list():
    lines = list_models().splitlines()
    assert list(CARDS) == list(MODELS)
    assert [line.split()[0] for line in lines] == list(MODELS)
    for line, card in zip(lines, CARDS.values(), strict=True):
        assert card.dimensions in line
        assert card.summary in line
        assert card.citation in line


@pytest.mark.parametrize("name", MODELS)
def test_every_string_names_a_function(name):
    assert callable(resolve("model", name, MODELS))


def test_listing_the_models_imports_no_tensorflow():
    code = (
        "import sys; from tfunet.models import list_models; print(list_models()); "
        "print([name for name in ('tensorflow', 'keras', 'numpy') if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
    ).stdout
    assert printed.splitlines()[-1] == "[]"


def test_examples_are_those_of_the_page():
    page = (ROOT / "docs/models.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\dx ]+) \| (\d+) \|", page, re.MULTILINE)
    assert len(rows) > 10
    for name, sizes, classes in rows:
        assert EXAMPLES[name] == (tuple(map(int, sizes.split(" x "))), int(classes))
