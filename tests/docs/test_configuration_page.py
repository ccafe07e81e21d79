"""docs/configuration.md is what docs/configuration_page.py writes from the code."""

import re
import runpy
from dataclasses import fields

from paths import ROOT

from tfunet.bench.report.terms import WORDS
from tfunet.config.run import RunConfig

SCRIPT = runpy.run_path(str(ROOT / "docs/configuration_page.py"))


def test_the_page_is_what_the_script_writes():
    written = SCRIPT["PAGE"].read_text() == SCRIPT["page"]()
    assert written, "Write it anew: python docs/configuration_page.py"


def test_every_key_has_a_row_with_a_meaning():
    rows = [line for line in SCRIPT["page"]().splitlines() if line.startswith("| `")]
    named = {row.split("`")[1] for row in rows}
    assert {key.name for key in fields(RunConfig)} <= named
    assert {"root", "images", "masks", "classes", "num_cases", "partition"} <= named
    without = [row for row in rows if not re.split(r"(?<!\\)\|", row)[-2].strip()]
    assert [row.split("`")[1] for row in without] == []


def test_the_glossary_is_in_order_and_has_the_terms_of_reports():
    page = (ROOT / "docs/glossary.md").read_text()
    terms = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert terms[1:] == sorted(terms[1:], key=str.lower)
    assert set(WORDS) - {"95 % interval"} <= set(terms)
