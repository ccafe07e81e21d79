"""Reads a RunConfig from a command line, a TOML file or a mapping. Imports no TensorFlow."""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from tfunet.backend import BACKENDS
from tfunet.config import RunConfig
from tfunet.data import DATASETS
from tfunet.data.description import described
from tfunet.models import MODELS
from tfunet.refs import expand, near_match

KEYS = tuple(one.name for one in fields(RunConfig))


class _Parser(ArgumentParser):
    """Raises ValueError, with the near match, where argparse would end the process."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ValueError(_with_near_match(message)) from ex


def run_parser(prog: str = "tfunet train") -> ArgumentParser:
    """Return the parser of one run: `--config file.toml`, and every key of RunConfig."""
    parser = _Parser(
        prog=prog,
        parser_mode="toml",
        exit_on_error=True,
        description="Train one model with one backend and write its record.",
    )
    parser.add_argument("--config", action="config", help="TOML file with any of the keys below.")
    parser.add_class_arguments(RunConfig, None)
    return parser


def to_config(namespace: Namespace) -> RunConfig:
    """Return the configuration that a parsed namespace stands for."""
    values = namespace.as_dict()
    # So that a record has the whole description, whatever becomes of its file.
    values["data"], values["data_options"] = described(values["data"], values["data_options"])
    return RunConfig(**{key: _tuples(values[key]) for key in KEYS if key in values})


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration for a mapping such as a TOML table, its types checked.

    Raises ValueError for an unknown key (with the near match) or a value of a wrong type.
    """
    check_keys(values)
    return to_config(_parser().parse_object(dict(values)))


def from_toml(path: str | Path) -> RunConfig:
    """Return the configuration in a TOML file."""
    return parse(["--config", str(path)])


def parse(arguments: Sequence[str]) -> RunConfig:
    """Return the configuration for command-line arguments."""
    for flag, path in itertools.pairwise(arguments):
        if flag == "--config" and not Path(path).is_file():
            raise ValueError(f"There is no configuration file {path!r}.")
    return to_config(_parser().parse_args(list(arguments)))


@functools.cache
def _parser() -> ArgumentParser:
    return run_parser()


def check_keys(values: Mapping[str, Any], where: str = "") -> None:
    """Raise ValueError for the first key that RunConfig does not have."""
    for key in values:
        if key not in KEYS:
            raise ValueError(
                f"Unknown key {key!r}{where}.{near_match(key, KEYS)} Known: {', '.join(KEYS)}."
            )


def check_names(config: RunConfig) -> None:
    """Raise ValueError for a model, data set or backend that does not exist; imports none."""
    if not config.model.endswith(".keras"):
        expand("model", config.model, MODELS)
    expand("data set", config.data, DATASETS)
    expand("backend", config.backend, BACKENDS)


def _with_near_match(message: str) -> str:
    found = re.search(r"Option '([^']+)' is not accepted|unrecognized arguments: --(\S+)", message)
    if found is None:
        return message
    key = re.split(r"[.=]", found[1] or found[2])[0]
    return f"Unknown key {key!r}.{near_match(key, KEYS)} Known: {', '.join(KEYS)}."


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
