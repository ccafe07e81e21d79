"""How a command is added, and how its arguments are read."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tfunet.config.words import near_match
from tfunet.files.typed import parse_toml
from tfunet.files.urls import is_url, without_secrets

if TYPE_CHECKING:
    from tfunet.config.run import RunConfig

LOGS = Path("logs")


class Parser(argparse.ArgumentParser):
    """Names the command, action or choice that a wrong one is closest to."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and end the process."""
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = near_match(choice[1], re.findall(r"[\w-]+", choice[2])) if choice else ""
        super().error(f"{message}.{near}" if near else message)


def add_command(
    commands: argparse._SubParsersAction,
    name: str,
    function: Callable[[argparse.Namespace], int],
    help_text: str,
    *,
    has_help: bool = True,
    takes_keys: bool = False,
) -> argparse.ArgumentParser:
    """Add a command. With `takes_keys` it reads unknown options itself, from `options.rest`."""
    parser = commands.add_parser(name, help=help_text, description=help_text, add_help=has_help)
    parser.set_defaults(command=function, takes_keys=takes_keys)
    return parser


def add_config(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument for a run's configuration to a command that takes keys."""
    help_text = "TOML file that describes a run; change keys of it with --KEY VALUE"
    parser.add_argument("config", type=path, nargs=nargs, help=help_text)
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option to run programs that a file of somebody else names."""
    help_text = "run the programs (FILE.py:NAME) that a file names, even if it may not be yours"
    parser.add_argument("--trust", action="store_true", help=help_text)


def keys_apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command, and the keys of a run with their values.

    argparse would take the value of an option that it does not know for the configuration.
    """
    from tfunet.config.keys import KEYS

    own: list[str] = []
    keys: list[str] = []
    awaits_value = False
    for word in words:
        is_option = word.startswith("--")
        is_key = is_option and re.split(r"[.=]", word[2:])[0] in KEYS
        (keys if is_key or (awaits_value and not is_option) else own).append(word)
        awaits_value = is_key and "=" not in word
    return own, keys


def config_of(options: argparse.Namespace) -> RunConfig:
    """Return the configuration from the file, if there is one, and the keys on the command line."""
    from tfunet.arguments import parse

    given = ["--config", str(options.config)] if options.config else []
    return parse([*given, *options.rest])


def documented(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of each of its arguments."""
    listed = (inspect.getdoc(kind) or "").partition("Args:\n")[2]
    _, *parts = re.split(r"^ {4}(\w+): ", listed, flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def path(text: str) -> Path:
    """Return a path on this machine; an empty text, as of a variable that is not set, is none."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty. Give a name, or . for the current folder")
    if is_url(text):
        raise argparse.ArgumentTypeError(
            f"{without_secrets(text)} is on a server, and this is read and written on a disk. Name "
            "a local folder, and copy it with the server's own tool, such as aws s3 sync, gcloud "
            "storage rsync, azcopy sync or rclone sync; a copied run can be resumed"
        )
    return Path(text)


def share(text: str) -> float:
    """Return 0.02 for "2%" and for "0.02"."""
    with _form("2% or 0.02", text):
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def sizes(text: str) -> tuple[int, ...]:
    """Return (512, 512) for "512,512"."""
    with _form("512,512", text):
        return tuple(map(int, text.split(",")))


def numbers(text: str) -> tuple[float, ...]:
    """Return (0.1, 0.1) for "0.1,0.1"."""
    with _form("0.1,0.1", text):
        return tuple(map(float, text.split(",")))


@contextlib.contextmanager
def _form(example: str, text: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write it as {example}, got {text!r}") from error


def toml_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Return {"filters": 8} for ["filters=8"]."""
    try:
        return parse_toml("\n".join(pairs))
    except ValueError as error:
        raise ValueError(
            f"Options must be KEY=VALUE with a TOML value (text in quotes), got {pairs}: {error}."
        ) from error
