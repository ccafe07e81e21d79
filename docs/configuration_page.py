"""Writes docs/configuration.md from the dataclasses of the configuration, and from the functions
that open data sets: python docs/configuration_page.py
"""

import importlib
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from docstring_parser import parse

from tfunet.arguments import TYPE_WORDS
from tfunet.bench.study.slurm_settings import Slurm
from tfunet.config.augmentation import Amount, Augmentation
from tfunet.config.run import RunConfig
from tfunet.data import DATASETS

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
        title = (parse(section.__doc__ or "").short_description or "").rstrip(".")
        parts += [f"## {title}\n", _keys(section, with_resume=True)]
    parts += ["## augmentation\n", _intro(Augmentation), _keys(Augmentation)]
    for name, reference in DATASETS.items():
        parts += [f"## data = {name!r}\n".replace("'", '"'), *_function(_load(reference))]
    parts += ["## slurm\n", _intro(Slurm), _keys(Slurm)]
    return "\n".join(parts)


def _intro(table: type) -> str:
    return f"{_cell(parse(table.__doc__ or '').short_description or '')}\n"


def _keys(table: type, *, with_resume: bool = False) -> str:
    """Return a table of the fields that a dataclass itself has."""
    own = vars(table)["__annotations__"]
    words = {item.arg_name: item.description for item in parse(table.__doc__ or "").params}
    head = ["key", "type", "default", *(["resume"] if with_resume else []), "meaning"]
    rows = []
    for key in fields(table):
        if key.name in own:
            free = "free" if key.metadata.get("may_change") else ""
            rows.append(
                [
                    f"`{key.name}`",
                    _type_words(key.type),
                    _default(key),
                    *([free] if with_resume else []),
                    words.get(key.name) or "",
                ]
            )
    return _table(head, rows)


def _function(function: Any) -> Iterator[str]:
    """Yield what a function does, and a table of its arguments."""
    text = parse(inspect.getdoc(function) or "")
    yield f"{_cell(text.short_description or '')}\n"
    if text.long_description:
        yield f"{_cell(text.long_description)}\n"
    rows = []
    arguments = inspect.signature(function).parameters
    for item in text.params:
        default = inspect.Parameter.empty
        if item.arg_name in arguments:
            default = arguments[item.arg_name].default
        shown = "" if default in (inspect.Parameter.empty, None) else f"`{_toml(default)}`"
        rows.append([f"`{item.arg_name}`", shown, item.description or ""])
    yield _table(["option", "default", "meaning"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type_words(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_words(part) for part in get_args(kind) if part is not type(None))
    if kind in TYPE_WORDS:
        return TYPE_WORDS[kind]
    words = {Mapping: "a table", Amount: "an amount: a number, [low, high] or a table"}
    return words.get(get_origin(kind) or kind, TYPE_WORDS.get(kind, str(kind)))


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
