"""Reads a RunConfig from a command line, a TOML file or a mapping. Imports no TensorFlow."""

import contextlib
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from tfunet.backend import BACKENDS
from tfunet.config.keys import (
    KEYS,
    OPTIONS,
    STUDY,
    beside,
    flat,
    keys_by_heading,
    nested,
    unknown_key,
)
from tfunet.config.kinds import refuse_standard
from tfunet.config.refs import expand
from tfunet.config.run import RunConfig
from tfunet.config.trust import KEYS as PROGRAM_KEYS
from tfunet.config.trust import check_own, programs
from tfunet.config.typed_values import allowed, entries, is_table, kinds_of, parts
from tfunet.config.words import check_reference, descriptions, near_match
from tfunet.data import DATASETS
from tfunet.data.description_file import described
from tfunet.files.home import expand_home
from tfunet.files.typed import parse_toml, toml_text
from tfunet.models import MODELS
from tfunet.models.files import is_file

KINDS = kinds_of(RunConfig)
FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Numbers that JSON does not know: .5, 1. and +3.
NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+|[1-9]\d*)([eE][+-]?\d+)?")
# Options of data sets that are texts: a folder called 2024 is no number.
TEXTS = ("root", "file", "name", "key", "group", "images", "masks")
HELP_WIDTH, HELP_INDENT = 100, 26


def help_of_keys() -> str:
    """Return the help of a run with every key, by the headings of docs/configuration.md."""
    lines = [
        "usage: tfunet train [FILE.toml] [--KEY VALUE ...]",
        "",
        *textwrap.wrap(
            "Train one model with one backend and write its record. All processes that mpirun or "
            "srun starts take part in one run. A list is written as 256,256 or '[256, 256]', an "
            "entry of a table as --model_options.filters 8, and a whole table as JSON or TOML.",
            HELP_WIDTH,
        ),
    ]
    for heading, keys in keys_by_heading().items():
        lines += ["", f"{heading}:", *key_lines(keys)]
    return "\n".join(lines) + "\n"


def key_lines(keys: Sequence[str]) -> list[str]:
    """Return the lines of a help that say what keys of a run mean."""
    words = {
        name: text for section in RunConfig.__mro__ for name, text in descriptions(section).items()
    }
    defaults = {key.name: key.default for key in fields(RunConfig)}
    lines = []
    for key in keys:
        default = defaults[key]
        usual = "" if default in (None, MISSING) else f" (default: {json.dumps(default)})"
        about = textwrap.wrap(
            f"{words.get(key, '')} ({allowed(KINDS[key])}){usual}", HELP_WIDTH - HELP_INDENT
        )
        lines += [f"  --{key} ".ljust(HELP_INDENT) + about[0]]
        lines += [" " * HELP_INDENT + line for line in about[1:]]
    return lines


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration for a mapping such as a TOML table.

    Raises ValueError for an unknown key (with the near match) and for a value of the wrong type.
    """
    _check_table(values)
    return of_study(values)


def of_study(settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration for settings whose keys were checked when they were read.

    Raises ValueError for a value of the wrong type, and for settings that do not fit together.
    """
    data, options = settings.get("data", RunConfig.data), settings.get("data_options", {})
    if isinstance(data, str) and isinstance(options, Mapping):
        # The record holds the whole description of the data, even if its file changes later.
        data, options = described(data, options)
    return RunConfig(**{**settings, "data": data, "data_options": options})


def parse(arguments: Sequence[str]) -> RunConfig:
    """Return the configuration for command-line arguments."""
    table: dict[str, Any] = {}
    files: list[Path] = []
    for key, text in list(_pairs(arguments)):  # Their names first, then what files hold.
        if key == "config":
            table |= read_table(Path(text))
            files += file_and_bases(Path(text))
        else:
            _put(table, key, text)
    # What is written on the command line is the user's own word.
    own = programs(table)
    return _trusted(table, [ref for ref in own if any(ref in word for word in arguments)], files)


def parse_keys(arguments: Sequence[str]) -> dict[str, Any]:
    """Return keys of a run on a command line and their values, in their types as far as they fit.

    Raises ValueError for what is no key, and for a key without a value.
    """
    table: dict[str, Any] = {}
    for key, text in _pairs(arguments):
        if key == "config":
            raise ValueError(_unknown_key(key))
        _put(table, key, text)
    return table


def of_file(file: Path | None, changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration in a file, with changed keys.

    Entries of a table are added to those of the file.

    Raises ValueError as `parse` does.
    """
    table = {} if file is None else read_table(file)
    for key, value in changes.items():
        is_added = isinstance(value, Mapping) and isinstance(table.get(key), Mapping)
        table[key] = {**table[key], **value} if is_added else value
    # What the caller writes is the user's own word.
    return _trusted(table, programs(changes), [] if file is None else file_and_bases(file))


def _trusted(table: Mapping[str, Any], own: Sequence[str], files: list[Path]) -> RunConfig:
    """Return the configuration; ValueError for programs in files of another user but `own` ones."""
    config = from_dict(table)
    data = str(table.get("data", ""))
    included = [*files, Path(data)] if data.endswith(".toml") else files
    check_own([ref for ref in programs(vars(config)) if ref not in own], included)
    return config


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys on a command line, with dots, and what is written for each."""
    waiting = list(words)
    before = ""
    while waiting:
        word = waiting.pop(0)
        flag, has_value, text = word.removeprefix("--").partition("=")
        key = flag.partition(".")[0]
        if not word.startswith("--"):
            is_list = entries(parts(KINDS.get(before, str))[0]) is not None
            like = f"--{before} {text or 'a'},{flag}" if is_list else "--steps 100"
            raise ValueError(f"{word!r} follows no key. Write --KEY VALUE, such as {like}.")
        if key != "config" and (key not in KEYS or (key != flag and key not in OPTIONS)):
            raise ValueError(_unknown_key(flag))
        if not has_value:
            if not waiting or waiting[0].startswith("--"):
                what = "the path of a file" if key == "config" else allowed(KINDS[key])
                must = f": it must be {what}" if key == flag else ""
                raise ValueError(f"{word} has no value{must}.")
            text = waiting.pop(0)
        before = flag
        yield flag, text


def _put(table: dict[str, Any], dotted: str, text: str) -> None:
    """Put what a word of the command line says into a table of the run."""
    key, *inner = dotted.split(".")
    if not inner:
        table[key] = _typed(KINDS[key], text)
        return
    for name in (key, *inner[:-1]):
        outer = table.get(name)
        table[name] = {**outer} if isinstance(outer, Mapping) else {}
        table = table[name]
    is_text = key == "data_options" and not {*inner}.isdisjoint(TEXTS)
    table[inner[-1]] = text if is_text else _value(text)


def _typed(kind: Any, text: str) -> Any:
    """Return what a text stands for; as it is where it is nothing of the kind, which is refused."""
    if text in ("null", "None") and kind == kind | None:
        return None
    if not text or text[0] in "[{":
        return _value(text)
    if str in parts(kind) and ("," not in text or kind in (str, str | None)):
        return text
    (inner,) = {entries(part) for part in parts(kind)} - {None} or {None}
    if inner is not None:
        texts = [part.strip() for part in text.split(",")]
        given = [_typed(inner, part) for part in texts]
        is_list = all(texts) and (inner is str or not any(isinstance(one, str) for one in given))
        return given if is_list else text
    if is_table(kind):
        return _value(text)
    if bool in parts(kind):
        return FLAGS.get(text.lower(), _value(text))
    for number in (int, float):
        if number in parts(kind):
            with contextlib.suppress(ValueError):
                return number(text)
    return _value(text)


def _value(text: str) -> Any:
    """Return what a text stands for whose type nobody declares: JSON, a list of TOML, or itself."""
    with contextlib.suppress(ValueError):
        return json.loads(text, parse_constant=str)
    if NUMBER.fullmatch(text):
        return float(text) if any(mark in text for mark in ".eE") else int(text)
    if text[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            return parse_toml(f"value = {text}")["value"]
    return text


def check_names(config: RunConfig) -> None:
    """Raise ValueError for a name of ours, or a program's file, that does not exist.

    Imports none of them. What Keras or a program of the user's does not have, the process that
    makes it says.
    """
    if not is_file(config.model):
        expand("model", config.model, MODELS)
    expand("data set", config.data, DATASETS)
    expand("backend", config.backend, BACKENDS)
    for ref in programs({key: getattr(config, key) for key in PROGRAM_KEYS}):
        file, is_in_file, _ = ref.rpartition(".py:")
        check_reference("program", ref)
        if not is_in_file:
            refuse_standard("program", ref, ref.partition(":")[0])
        elif not Path(f"{file}.py").is_file():
            raise ValueError(
                f"The file {file}.py of the program {ref!r} does not exist. Give its path from the "
                "folder in which tfunet is started."
            )


def read_table(path: Path) -> dict[str, Any]:
    """Return the keys in the configuration file of a run.

    Raises ValueError for a file that is none, and for unknown keys.
    """
    if path.is_dir():
        raise ValueError(_no_file(path))
    if not path.is_file():
        others = [file.name for file in path.parent.glob("*.toml")]
        raise ValueError(
            f"There is no configuration file {str(path)!r}.{near_match(path.name, others)}"
        )
    try:
        table = parse_toml(toml_text(path))
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from error
    base = base_file(table)
    if base is not None:
        del table["file"]
        files = file_and_bases(path)  # Raises ValueError for a circle.
        table = nested({**beside(read_table(files[1]), flat(table)), **flat(table)})
    _check_table(table)
    return table


def base_file(table: Any, where: str = "") -> Path | None:
    """Return the file of another run on which a table is based; None without one.

    Raises ValueError for what is no path.
    """
    if not isinstance(table, Mapping) or "file" not in table:
        return None
    if not isinstance(table["file"], str):
        raise ValueError(
            f"file{where} must be the path of a run's configuration, got {table['file']!r}."
        )
    return expand_home(table["file"])


def file_and_bases(path: Path) -> list[Path]:
    """Return a configuration file and those on which it is based; ValueError for a circle."""
    files = [path]
    while files[-1].is_file():
        with contextlib.suppress(ValueError):  # It is said when the file is read.
            base = base_file(parse_toml(toml_text(files[-1])))
        if base is None:
            break
        if base.resolve() in [file.resolve() for file in files]:
            raise ValueError(f"{base} is based on itself: {' -> '.join(map(str, [*files, base]))}.")
        files.append(base)
    return files


def _no_file(folder: Path) -> str:
    """Return what to do with a folder in the place of a configuration."""
    files = sorted(file.name for file in folder.glob("*.toml"))
    if files:
        return f"{str(folder)!r} is a folder, not a configuration. It holds {', '.join(files[:8])}."
    return (
        f"{str(folder)!r} is a folder, not a configuration. If it holds images and masks, write a "
        f"configuration for it first: tfunet init {shlex.quote(str(folder))}"
    )


def _check_table(table: Mapping[str, Any]) -> None:
    """Raise ValueError for a key that no run has, and for a table in the place of a value."""
    if theirs := [key for key in STUDY if key in table]:
        raise ValueError(
            f"A run has no {theirs[0]}: this is a study of several runs. Start it with: tfunet "
            "sweep run FILE"
        )
    for key, value in table.items():
        if key not in KEYS:
            raise ValueError(_unknown_heading(key, value) or _unknown_key(key))
        if isinstance(value, Mapping) and key not in OPTIONS:
            raise ValueError(f"{key} must be {allowed(KINDS[key])}, got a table.{_options_of(key)}")


def _unknown_heading(key: str, value: Any) -> str:
    """Return what is wrong with a heading that holds keys of the run; "" if it is none."""
    if not isinstance(value, Mapping):
        return ""
    if near_match(key, KEYS) and not any(entry in KEYS for entry in value):
        return ""
    return (
        f"There is no heading [{key}]. Keys of the run stand above the first heading. Headings: "
        f"{', '.join(OPTIONS)}."
    )


def _options_of(key: str) -> str:
    """Return where the options of a key are, for messages."""
    if f"{key}_options" not in OPTIONS:
        return ""
    return f" Its options are in [{key}_options], or on the command line --{key}_options.NAME."


def _unknown_key(key: str) -> str:
    first, dot, rest = key.partition(".")
    if dot and first in OPTIONS:
        return f"Unknown key {key!r}. Write {rest} under the heading [{first}]."
    if first in KEYS and first not in OPTIONS:
        return (
            f"Unknown key {key!r}: {first} must be {allowed(KINDS[first])}, and has no keys of its "
            f"own.{_options_of(first)}"
        )
    return unknown_key(key)
