"""docs/data.md, On a server: its commands run, and its table has every scheme."""

import re

import object_store
import pytest
from pages import blocks, run_commands
from paths import ROOT

from tfunet.files.transports import PACKAGES
from tfunet.files.urls import SCHEMES

PAGE = (ROOT / "docs/data.md").read_text()
SECTION = PAGE[PAGE.index("## On a server") :].partition("\n## ")[0]


@pytest.fixture
def store():
    with object_store.serving() as running:
        object_store.fill(running, 10)
        yield running


def test_the_commands_work(store, tmp_path, monkeypatch, capsys):
    for name, value in store.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    run_commands(SECTION)
    assert "no defects" in capsys.readouterr().out
    assert len(blocks(SECTION, "sh")) == 1


def test_the_table_has_every_scheme_and_its_package():
    rows = [line for line in SECTION.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"(\w+)://", "".join(row.split("|")[1] for row in rows))) == set(SCHEMES)
    for scheme, package in PACKAGES.items():
        (row,) = (row for row in rows if f"{scheme}://" in row.split("|")[1])
        assert package in row
