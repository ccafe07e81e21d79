"""Sphinx's settings: `make site` makes HTML of README.md and docs/, with links checked."""

import re
from typing import Any

project = "tfunet"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "tfunet"
root_doc = "README"
include_patterns = ["README.md", "STYLE.md", "docs/*.md", "logs/reference/README.md"]
# As GitHub names headings, where the same pages are read.
myst_heading_anchors = 4
# No copies of the sources beside the pages.
html_copy_source = False
html_show_sourcelink = False

# In the order of use.
CONTENTS = {
    "Begin": (
        "install",
        "fit",
        "data",
        "example-data",
        "formats",
        "auto",
        "training",
        "metrics",
        "first-job",
        "models",
        "predict",
        "export",
        "faq",
    ),
    "Compare": (
        "studies",
        "comparing-models",
        "report",
        "comparison",
        "folds",
        "ensembles",
        "tournaments",
        "notebooks",
    ),
    "Larger": (
        "choosing",
        "large-models",
        "many-weights",
        "spatial-parallelism",
        "tiles",
        "pipeline",
        "slurm",
        "backends",
        "proof",
        "gpus",
        "security",
    ),
    "Look up": (
        "configuration",
        "api",
        "glossary",
        "design",
        "large-models-internals",
        "large-models-results",
        "layouts",
        "published",
        "check-ways",
        "check-fit",
        "../STYLE",
        "../logs/reference/README",
    ),
}


def _with_contents(app: Any, page: str, source: list[str]) -> None:
    """Add the contents to the first page, and take out links to folders, which are no pages."""
    source[0] = re.sub(r"\[([^\]]*)\]\((?!http)[^)#\s]*/\)", r"\1", source[0])
    if page != root_doc:
        return
    for caption, pages in CONTENTS.items():
        names = "\n".join(f"docs/{name}".replace("docs/../", "") for name in pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n"


def setup(app: Any) -> None:
    """Register what changes pages as they are read."""
    app.connect("source-read", _with_contents)
