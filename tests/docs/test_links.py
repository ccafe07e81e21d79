"""What README, STYLE and docs/ name is there: links, headings, modules, files."""

import re

import pytest
from paths import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "logs/reference/README.md")
)
FOLDERS = "tfunet|tf_native|hvd|tests|benchmarks|studies|notebooks|constraints"


def text_of(page):
    return (ROOT / page).read_text()


def anchors(page):
    """Return what GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_module(name):
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def is_named(name):
    """Whether a dotted name is a module, or something that its module's text names."""
    if is_module(name):
        return True
    module, _, attribute = name.rpartition(".")
    if not is_module(module):
        return False
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return re.search(rf"\b{attribute}\b", path.read_text()) is not None


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text_of(page)):
        if not target.startswith("http"):
            linked = (ROOT / page).parent / target if target else ROOT / page
            assert linked.exists(), target
            if anchor:
                assert anchor in anchors(linked.resolve().relative_to(ROOT)), (target, anchor)


@pytest.mark.parametrize("page", PAGES)
def test_modules_and_files_that_a_page_names_are_there(page):
    text = text_of(page)
    for path in re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*\w", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"(?<![\w/.-])tfunet(?:\.[a-zA-Z_]\w*)+", text):
        assert is_named(name), name


def test_a_name_that_is_not_there_is_found():
    assert is_named("tfunet.backend.Backend")
    assert is_named("tfunet.config")
    assert not is_named("tfunet.no_such_room.module")
    assert not is_named("tfunet.backend.NoSuchName")
