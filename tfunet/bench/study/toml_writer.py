"""Writes configurations and studies as TOML; the standard library only reads it."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tfunet.bench.study.slurm_settings import Slurm
from tfunet.bench.study.study_file import Study
from tfunet.config.run import RunConfig


def config_toml(config: RunConfig) -> str:
    """Return the configuration of a run as a file for `tfunet train --config`."""
    return "".join(_line(key, value) for key, value in config.values().items())


def study_toml(study: Study) -> str:
    """Return a study as a file for `read_study`."""
    lines = [_line(key, getattr(study, key)) for key in ("name", "repeats", "seed")]
    for title, table in (("base", study.base), ("grid", study.grid)):
        lines += [f"\n[{title}]\n", *(_line(key, value) for key, value in table.items())]
    for case in study.cases:
        lines += ["\n[[case]]\n", *(_line(key, value) for key, value in case.items())]
    if study.samples is not None:
        lines += [
            "\n[samples]\n",
            *(_line(key, value) for key, value in study.samples.table.items()),
        ]
    if study.search is not None:
        lines += ["\n[search]\n", *(_line(key, value) for key, value in vars(study.search).items())]
        space = {key: entry.table() for key, entry in study.space.items()}
        lines += ["\n[search.space]\n", *(_line(key, value) for key, value in space.items())]
    if study.slurm != Slurm():
        lines += ["\n[slurm]\n", *(_line(key, value) for key, value in vars(study.slurm).items())]
    for rule in study.skips:
        lines += ["\n[[skip]]\n", _line("when", rule.when), _line("reason", rule.reason)]
    return "".join(lines)


def _line(key: str, value: Any) -> str:
    # TOML has no null. None is the default wherever it is allowed, so the key is left out.
    return "" if value is None else f"{_key(key)} = {value_toml(value)}\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def value_toml(value: Any) -> str:
    """Return a value as it stands behind a key."""
    if isinstance(value, Mapping):
        entries = (
            f"{_key(key)} = {value_toml(entry)}"
            for key, entry in value.items()
            if entry is not None
        )
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_toml(entry) for entry in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)
    raise ValueError(
        f"The settings of a study are texts, numbers, lists and tables, got {value!r}."
    )


def _text(value: str) -> str:
    # The escapes of JSON are those of TOML, except for DEL, which JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
