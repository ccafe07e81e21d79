"""Writes docs/configuration.md from the dataclasses of the configuration, and from the functions
that open data sets: python docs/configuration_page.py
"""

import importlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from tfunet.bench.study.slurm_settings import Slurm
from tfunet.config.augmentation import Augmentation
from tfunet.config.run import RunConfig
from tfunet.config.typed_values import allowed
from tfunet.config.words import descriptions, title_of
from tfunet.data import DATASETS
from tfunet.data.layouts.options import FileOptions, MaskOptions
from tfunet.models.plans import PLANS

PAGE = Path(__file__).parent / "configuration.md"
HEAD = """# Configuration reference

`docs/configuration_page.py` writes this page from the code. `tfunet train --help-all` prints the \
same for the keys of a run.

Every key of a run can stand at the top of a TOML file, or be given on the command line as \
`--key value`. Entries of tables have a dot there: `--model_options.filters 8`. A list may be \
written with commas there: `--patch 256,256`, `--metrics hd95,assd`. Any key may be left \
out. `file = "base.toml"` takes all keys of that file that this one does not give, as in `[base]` \
of a study. An interrupted run may go on with other values of the keys marked *free*; the others \
stay as they were.

A study has `name`, `repeats` and `seed`, the tables `[base]` and `[grid]`, the lists `[[case]]` \
and `[[skip]]` with keys of a run, and the table \
[`[slurm]`](#slurm): [studies.md](studies.md).
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for section in reversed(RunConfig.__mro__):
        if not vars(section).get("__annotations__"):
            continue
        parts += [f"## {title_of(section)}\n", _keys(section, with_resume=True)]
    parts += ["## augmentation\n", _intro(Augmentation), _keys(Augmentation)]
    for options in dict.fromkeys(options for options, _ in PLANS.values()):
        name = next(name for name, (known, _) in PLANS.items() if known is options)
        parts += [f'## model = "{name}"\n', _intro(options), _keys(options)]
    for name, reference in DATASETS.items():
        parts += [f"## data = {name!r}\n".replace("'", '"'), *_function(_load(reference))]
    for title, table in (("every data set of files", FileOptions), ("folder and csv", MaskOptions)):
        parts += [f"## Options of {title}\n", _fields(table)]
    parts += ["## slurm\n", _intro(Slurm), _keys(Slurm)]
    return "\n".join(parts)


def _intro(table: type) -> str:
    return f"{_cell(title_of(table))}.\n"


def _keys(table: type, *, with_resume: bool = False) -> str:
    """Return a table of the fields of a dataclass; of a section of a run, those that it adds."""
    classes = table.__mro__[:1] if with_resume else reversed(table.__mro__)
    words: dict[str, str] = {}
    for each in classes:
        words |= descriptions(each)
    head = ["key", "type", "default", *(["resume"] if with_resume else []), "meaning"]
    rows = []
    for key in fields(table):
        if not with_resume or key.name in words:
            free = "free" if key.metadata.get("may_change") else ""
            rows.append(
                [
                    f"`{key.name}`",
                    _type_words(key.type),
                    _default(key),
                    *([free] if with_resume else []),
                    words.get(key.name, ""),
                ]
            )
    return _table(head, rows)


def _fields(table: type) -> str:
    """Return a table of the options that a dataclass itself has."""
    own = vars(table)["__annotations__"]
    words = descriptions(table)
    keys = [key for key in fields(table) if key.name in own]
    return _table(
        ["option", "default", "meaning"],
        [[f"`{key.name}`", _default(key), words[key.name]] for key in keys],
    )


def _function(function: Any) -> Iterator[str]:
    """Yield what a function does, and a table of its arguments."""
    about = (inspect.getdoc(function) or "").partition("\nArgs:\n")[0].partition("\n\n")[2]
    yield f"{_cell(title_of(function))}.\n"
    if about.strip():
        yield f"{_cell(about)}\n"
    rows = []
    arguments = inspect.signature(function).parameters
    for name, text in descriptions(function).items():
        if name not in arguments:  # Those of a dataclass, which have a table.
            yield f"{_cell(text)}\n"
            continue
        default = arguments[name].default
        shown = "" if default in (inspect.Parameter.empty, None) else f"`{_toml(default)}`"
        rows.append([f"`{name}`", shown, text])
    yield _table(["option", "default", "meaning"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type_words(kind: Any) -> str:
    return allowed(kind).replace("Amount", "an amount: a number, [low, high] or a table")


def _default(key: Field[Any]) -> str:
    if key.default_factory is not MISSING:
        return f"`{_toml(key.default_factory())}`"
    return "" if key.default in (None, MISSING) else f"`{_toml(key.default)}`"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    PAGE.write_text(page())
