"""docs/api.md is what docs/api_page.py writes from the docstrings."""

import runpy

from paths import ROOT

SCRIPT = runpy.run_path(str(ROOT / "docs/api_page.py"))


def test_the_page_is_what_the_script_writes():
    written = SCRIPT["PAGE"].read_text() == SCRIPT["page"]()
    assert written, "Write it anew: python docs/api_page.py"


def test_every_public_name_says_what_it_is_and_takes():
    page = SCRIPT["page"]()
    for names in SCRIPT["PUBLIC"].values():
        for name in names:
            text = page.partition(f"### {name}\n")[2].partition("\n### ")[0]
            assert len(text.split()) > 10, name
    # Signatures have types and defaults, and stars are no Markdown.
    assert "    num_replicas: int | Sequence[int] = (1, 2),\n" in page
    assert "2\\*\\*levels" in page
    assert "| `scope()` | Return the context" in page
