"""The site of the docs: every page is in its contents, and its tools are pinned.

`make site`, a part of `make test`, builds it in an environment of its own, with warnings as errors.
"""

import re
import runpy

from paths import ROOT

CONF = runpy.run_path(str(ROOT / "docs/conf.py"))


def test_every_page_is_in_the_contents_once():
    named = [name for names in CONF["CONTENTS"].values() for name in names]
    assert len(named) == len(set(named))
    inside = {name for name in named if not name.startswith("../")}
    assert inside == {path.stem for path in ROOT.glob("docs/*.md")}
    for name in set(named) - inside:
        path = (ROOT / "docs" / f"{name}.md").resolve()
        assert path.exists()
        assert str(path.relative_to(ROOT)) in CONF["include_patterns"]


def test_contents_are_added_to_the_first_page_and_links_to_folders_taken_out():
    read = CONF["_with_contents"]
    source = ["See [the suite](tests/contract/), [data](docs/data.md), [web](https://a.org/b/)."]
    read(None, "docs/faq", source)
    assert source == ["See the suite, [data](docs/data.md), [web](https://a.org/b/)."]
    read(None, "README", source)
    assert "\ndocs/install\n" in source[0]
    assert "\nlogs/reference/README\n" in source[0]


def test_the_suite_builds_the_site_with_warnings_as_errors():
    makefile = (ROOT / "Makefile").read_text()
    assert "site" in re.search(r"^test: (.*)$", makefile, re.MULTILINE)[1].split()
    site = re.search(r"^site: env\n((?:[\t#].*\n)+)", makefile, re.MULTILINE)[1]
    assert " -m sphinx -W " in site
