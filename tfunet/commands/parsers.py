"""What the groups of commands share: how a command is added, and how its arguments are read."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfunet.config.run import RunConfig

LOGS = Path("logs")


def add_command(
    commands: argparse._SubParsersAction,
    name: str,
    function: Callable[[argparse.Namespace], int],
    help_text: str,
    *,
    help_: bool = True,
    takes_keys: bool = False,
) -> argparse.ArgumentParser:
    """Add a command; with `takes_keys` what it does not know is left to it, in `options.rest`."""
    parser = commands.add_parser(name, help=help_text, description=help_text, add_help=help_)
    parser.set_defaults(command=function, takes_keys=takes_keys)
    return parser


def add_config(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the configuration of a run to a command that takes keys."""
    help_text = "TOML file of a run; further keys: --KEY VALUE"
    parser.add_argument("config", type=Path, nargs=nargs, help=help_text)


def config_of(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that the file, if there is one, and the further keys say."""
    from tfunet.arguments import parse

    given = ["--config", str(options.config)] if options.config else []
    return parse([*given, *options.rest])


def share(text: str) -> float:
    """Return 0.02 for "2%" and for "0.02"."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write it as 2% or 0.02, got {text!r}") from error


def sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write it as 512,512, got {text!r}") from error


def numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write it as 0.1,0.1, got {text!r}") from error


def toml_options(pairs: Sequence[str]) -> dict[str, Any]:
    try:
        return tomllib.loads("\n".join(pairs))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"Options are KEY=VALUE with a value as in TOML (a text in quotes), got {pairs}: "
            f"{error}."
        ) from error
