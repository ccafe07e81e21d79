"""docs/large-models-results.md is what benchmarks/results_page.py writes from the records."""

import csv
import json
import runpy

from paths import ROOT

SCRIPT = runpy.run_path(str(ROOT / "benchmarks/results_page.py"))
RECORDS = ROOT / "logs/reference/large-models"


def test_the_page_is_what_the_script_writes():
    assert SCRIPT["PAGE"].read_text() == SCRIPT["page"]()


def test_the_guide_has_the_headline_figures_and_is_short():
    guide = (ROOT / "docs/large-models.md").read_text()
    assert SCRIPT["headline"]() in guide
    assert len(guide.split()) <= 1500


def test_every_record_is_on_the_page():
    sections = json.loads((RECORDS / "sections.json").read_text())
    keys = {section["key"] for section in sections}
    assert {path.stem for path in RECORDS.glob("*.csv")} <= {*keys, "figures"}
    with (RECORDS / "figures.csv").open() as lines:
        assert {row["section"] for row in csv.DictReader(lines)} <= keys
