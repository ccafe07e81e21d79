"""Reads a RunConfig from a command line, a TOML file or a mapping. Imports no TensorFlow."""

import contextlib
import copy
import functools
import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from tfunet.backend import BACKENDS
from tfunet.config.case_metrics import own_metrics
from tfunet.config.keras_names import check_keras_names
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
from tfunet.config.optimizer_options import check_optimizer_options
from tfunet.config.own_signature import check_source
from tfunet.config.refs import check_reference, expand, near_match, not_an_option
from tfunet.config.run import RunConfig
from tfunet.config.trust import KEYS as PROGRAM_KEYS
from tfunet.config.trust import check_own, programs
from tfunet.data import DATASETS
from tfunet.data.description_file import described
from tfunet.files.home import expand_home
from tfunet.files.typed import parse_toml, toml_text
from tfunet.learning import LOSSES
from tfunet.models import MODELS
from tfunet.models.files import is_file

TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    dict[str, Any]: "a table, { key = value }",
    tuple[int, ...]: "a list of whole numbers, such as [1, 2]",
    tuple[str, ...]: 'a list of texts, such as ["a", "b"]',
    tuple[str, ...] | str: 'a text, or a list of texts, such as ["a", "b"]',
    tuple[dict[str, Any], ...]: 'a list of tables, such as [{ name = "..." }]',
}


# Options of data sets that are texts. The parser takes "2024" for a number, in quotes too.
TEXTS = ("root", "file", "name", "key", "group", "images", "masks")


class _Parser(ArgumentParser):
    """Raises ValueError, in words that users know, where argparse would end the process."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ValueError(_reworded(message)) from ex


def run_parser(prog: str = "tfunet train") -> ArgumentParser:
    """Return the parser of one run: `--config file.toml` and every key of RunConfig."""
    parser = _Parser(
        prog=prog,
        parser_mode="toml",
        exit_on_error=True,
        description="Train one model with one backend and write its record. All processes that "
        "mpirun or srun starts take part in one run. A list is written as 256,256 or '[256, 256]', "
        "an entry of a table as --model_options.filters 8, and a whole table as JSON.",
    )
    parser.add_argument("--config", action="config", help="TOML file with any of the keys below.")
    parser.add_class_arguments(RunConfig, None)
    return parser


def help_of_keys() -> str:
    """Return the help of a run with every key, by the headings of docs/configuration.md."""
    parser = run_parser()
    actions = {action.dest: action for action in parser._actions}
    grouped = [actions[key] for keys in keys_by_heading().values() for key in keys]
    for group in parser._action_groups:
        group._group_actions = [action for action in group._group_actions if action not in grouped]
    for heading, keys in keys_by_heading().items():
        group = parser.add_argument_group(heading)
        group._group_actions.extend(actions[key] for key in keys)
    return parser.format_help()


def to_config(namespace: Namespace, texts: Mapping[str, str]) -> RunConfig:
    """Return the configuration that a parsed namespace stands for; `texts` are as written."""
    values = namespace.as_dict()
    for key, text in texts.items():
        *outer, last = key.split(".")
        table = functools.reduce(lambda its, name: its[name], outer, values["data_options"])
        read = table.get(last, "")
        if read == {} or not isinstance(read, str | list | dict):
            table[last] = text
    # The record holds the whole description of the data, even if its file changes later.
    values["data"], values["data_options"] = described(values["data"], values["data_options"])
    return RunConfig(**{key: _tuples(values[key]) for key in KEYS if key in values})


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration for a mapping such as a TOML table.

    Raises ValueError for an unknown key (with the near match) and for a value of the wrong type.
    """
    _check_table(values)
    # The parser changes the tables that it is given.
    return to_config(_parser().parse_object(copy.deepcopy(dict(values))), _texts(values))


def of_study(settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration for settings of a study, whose types were checked when it was read.

    Raises ValueError for settings that do not fit together.
    """
    data, options = described(
        settings.get("data", RunConfig.data), settings.get("data_options", {})
    )
    return RunConfig(**{**settings, "data": data, "data_options": options})


def parse(arguments: Sequence[str]) -> RunConfig:
    """Return the configuration for command-line arguments."""
    arguments = _with_lists(arguments)
    for word in arguments:
        key = re.split(r"[.=]", word.removeprefix("--"))[0]
        if word.startswith("--") and key not in (*KEYS, "config"):
            raise ValueError(_unknown_key(key))
    files = [Path(path) for flag, path in itertools.pairwise(arguments) if flag == "--config"]
    files += [Path(word[9:]) for word in arguments if word.startswith("--config=")]
    texts: dict[str, str] = {}
    for file in files:
        texts |= _texts(read_table(file))
    words = _with_bases(arguments)
    included = [each for file in files for each in file_and_bases(file)]
    for word in arguments:
        key, dot, _ = word.removeprefix("--").partition("=")[0].partition(".")
        if word.startswith("--") and dot and key in KEYS and key not in OPTIONS:
            raise ValueError(_unknown_key(word.removeprefix("--").partition("=")[0]))
    for word, value in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        flag, is_whole, text = word.partition("=")
        key = flag.removeprefix("--data_options.")
        text = text if is_whole else value
        if key != flag and _stays(key, text):
            texts[key] = text
    namespace = _parser().parse_args(words)
    config = to_config(namespace, texts)
    description = [Path(namespace.data)] if namespace.data.endswith(".toml") else []
    # What is written on the command line is the user's own word.
    named = [ref for ref in programs(vars(config)) if not any(ref in word for word in arguments)]
    check_own(named, [*included, *description])
    return config


def of_file(file: Path | None, changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration in a file, with changed keys.

    Entries of a table are added to those of the file.

    Raises ValueError as `parse` does.
    """
    table = {} if file is None else read_table(file)
    for key, value in changes.items():
        is_added = isinstance(value, Mapping) and isinstance(table.get(key), Mapping)
        table[key] = {**table[key], **value} if is_added else value
    config = from_dict(table)
    files = [] if file is None else file_and_bases(file)
    files += [Path(str(table["data"]))] if str(table.get("data", "")).endswith(".toml") else []
    # What the caller writes is the user's own word.
    named = set(programs(vars(config))) - set(programs(changes))
    check_own(sorted(named), files)
    return config


def _with_lists(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which a list that was written as 256,256 or hd95,assd is one in TOML."""
    words: list[str] = []
    awaited = ""
    for word in arguments:
        flag, is_whole, text = word.partition("=")
        key = flag.removeprefix("--")
        if not word.startswith("--"):
            words.append(_as_list(awaited, word))
        elif is_whole and key in KEYS:
            words.append(f"{flag}={_as_list(key, text)}")
        else:
            words.append(word)
        awaited = key if word.startswith("--") and not is_whole and key in KEYS else ""
    return words


def _as_list(key: str, text: str) -> str:
    """Return the value of a key, as TOML where it is a list of numbers or texts with commas."""
    kind = _kind(key) if key else None
    parts = [part.strip() for part in text.split(",")]
    if kind in (tuple[int, ...], tuple[int, ...] | None):
        return f"[{', '.join(parts)}]" if all(map(str.isdecimal, parts)) else text
    if kind == tuple[str, ...] | str and len(parts) == 1:
        return text
    if kind not in (tuple[str, ...], tuple[str, ...] | str):
        return text
    is_other = len(parts) == 1 and (parts[0] in ("null", "true", "false") or _is_number(parts[0]))
    if is_other or not all(parts) or text.strip()[0] in "[{\"'":
        return text
    return json.dumps(parts, ensure_ascii=False)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _texts(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts among the options of a data set, as they were written."""
    options = table.get("data_options")
    if not isinstance(options, Mapping):
        return {}
    return {key: text for key, text in options.items() if _stays(key, text)}


def _stays(key: str, text: Any) -> bool:
    """Whether an option of a data set is a text, whatever the parser takes it for.

    A colour (#000000) would be a comment, and so an empty table.
    """
    return isinstance(text, str) and (key in TEXTS or text.startswith("#"))


@functools.cache
def _parser() -> ArgumentParser:
    return run_parser()


def check_names(config: RunConfig) -> None:
    """Raise ValueError for a name of a model, data set and so on, or a file, that does not exist.

    Also for options of an optimizer that are of the wrong type. Imports none.
    """
    check_optimizer_options(config.optimizer, config.optimizer_options)
    check_keras_names(config.optimizer, config.loss, config.callbacks, config.metrics, LOSSES)
    if not is_file(config.model):
        expand("model", config.model, MODELS)
    expand("data set", config.data, DATASETS)
    expand("backend", config.backend, BACKENDS)
    for kind, ref, options, fixed in (
        ("model", config.model, config.model_options, ("image_shape", "num_classes")),
        ("data set", config.data, config.data_options, ()),
        ("loss", config.loss, config.loss_options, ()),
        ("optimizer", config.optimizer, config.optimizer_options, ("learning_rate",)),
        ("backend", config.backend, config.backend_options, ("launch",)),
        *(("callback", table["name"], (), ()) for table in config.callbacks),
        *(("metric", ref, (), ()) for ref in own_metrics(config.metrics)),
    ):
        check_source(kind, ref, options, fixed)
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


def _with_bases(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the keys of each file that is based on another in the
    place of its name, since the parser knows no bases.
    """
    expanded: list[str] = []
    for word in words:
        follows = bool(expanded) and expanded[-1] == "--config"
        name = word if follows else word.removeprefix("--config=")
        if not (follows or name != word) or len(file_and_bases(Path(name))) == 1:
            expanded.append(word)
            continue
        if follows:
            expanded.pop()
        expanded += [
            f"--{key}={value if isinstance(value, str) else _json(value)}"
            for key, value in flat(read_table(Path(name))).items()
        ]
    return expanded


def _json(value: Any) -> str:
    """Return a value as the parser reads it: an infinite number is inf in TOML."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


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
    """Raise ValueError for what jsonargparse would take for something else, or explain badly."""
    if theirs := [key for key in STUDY if key in table]:
        raise ValueError(
            f"A run has no {theirs[0]}: this is a study of several runs. Start it with: tfunet "
            "sweep run FILE"
        )
    for key, value in table.items():
        if key not in KEYS:
            raise ValueError(_unknown_heading(key, value) or _unknown_key(key))
        kind = _kind(key)
        if isinstance(value, str) and kind not in (str, str | None, tuple[str, ...] | str):
            raise ValueError(
                f"{key} must be {_allowed(key)}, got the text {value!r}."
                + _instead(key, kind, value)
            )
        if isinstance(value, Mapping) and key not in OPTIONS:
            raise ValueError(f"{key} must be {_allowed(key)}, got a table.{_options_of(key)}")
    model, options = table.get("model", "unet"), table.get("model_options")
    if model in MODELS and isinstance(options, Mapping):
        for option in options:
            if option in KEYS:
                raise ValueError(
                    f"The model {model!r} has no option {option!r}.{not_an_option(option)}"
                )


def _instead(key: str, kind: Any, text: str) -> str:
    """Return how to write what was given as a text."""
    if kind == tuple[str, ...]:
        return f' Write it as a list: {key} = ["{text}"]'
    if kind == tuple[dict[str, Any], ...]:
        return f' Write it as a list of tables: {key} = [{{ name = "{text}" }}]'
    try:
        parse_toml(f"{key} = {text}")
    except ValueError:
        return ""
    return f" Write it without quotes: {key} = {text}"


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


def _reworded(message: str) -> str:
    option = re.search(r"Option '([^']+)' is not accepted|unrecognized arguments: --(\S+)", message)
    if option is not None:
        return _unknown_key((option[1] or option[2]).partition("=")[0])
    key = re.search(r'Parser key "(\w+)"', message)
    given = re.search(r"(?:Given|Got) value: (.*)", message)
    if key is None or given is None or key[1] not in KEYS:
        return message
    return f"{key[1]} must be {_allowed(key[1])}, got {given[1] or 'an empty value'}."


def _kind(key: str) -> Any:
    (kind,) = (field.type for field in fields(RunConfig) if field.name == key)
    return kind


def _allowed(key: str) -> str:
    kind = _kind(key)
    return next(words for type_, words in TYPE_WORDS.items() if kind in (type_, type_ | None))


def _unknown_key(key: str) -> str:
    first, dot, rest = key.partition(".")
    if dot and first in OPTIONS:
        return f"Unknown key {key!r}. Write {rest} under the heading [{first}]."
    if first in KEYS and first not in OPTIONS:
        return (
            f"Unknown key {key!r}: {first} must be {_allowed(first)}, and has no keys of its own."
            f"{_options_of(first)}"
        )
    return unknown_key(key)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
