"""`tfunet completion`: a script with which a shell completes commands, options and keys."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, path

SHELLS = ("bash", "zsh", "tcsh")
# Arguments that are paths, though not by their type.
FILES = ("config", "data", "folder")


def add(commands: argparse._SubParsersAction, parser: argparse.ArgumentParser) -> None:
    """Add the command of this module; `parser` is that of all commands."""
    about = "print a script with which a shell completes tfunet's commands, options and keys"
    completion = add_command(commands, "completion", functools.partial(_print, parser), about)
    completion.add_argument("shell", choices=SHELLS)


def _print(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ValueError(
            "Completion needs shtab, which is not installed. Install it with: "
            "pip install 'tfunet[completion]'"
        ) from error
    from tfunet.models import MODELS
    from tfunet.performance.devices import DEVICES

    names = {"name": list(MODELS), "device": list(DEVICES)}
    for command in _commands(parser):
        if command.get_default("takes_keys"):
            _add_keys(command)
        for action in command._actions:
            if action.dest in names and action.choices is None:
                action.choices = names[action.dest]
            if action.type is path or action.dest in FILES:
                vars(action)["complete"] = shtab.FILE  # Which shtab looks for.
    print(shtab.complete(parser, options.shell))
    return exit_codes.OK


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _commands(command)


def _add_keys(command: argparse.ArgumentParser) -> None:
    """Add the keys of a run, which the command reads itself."""
    from tfunet.backend import BACKENDS
    from tfunet.config.data_keys import BAD_SAMPLES, PIPELINES, STORES
    from tfunet.config.keys import KEYS
    from tfunet.config.placement_keys import SCHEDULES
    from tfunet.config.run_keys import PRECISIONS, RATE_SCHEDULES
    from tfunet.data import DATASETS
    from tfunet.models import MODELS

    known = {
        "backend": BACKENDS,
        "data": DATASETS,
        "learning_rate_schedule": RATE_SCHEDULES,
        "model": MODELS,
        "on_bad_sample": BAD_SAMPLES,
        "pipeline": PIPELINES,
        "precision": PRECISIONS,
        "schedule": SCHEDULES,
        "store": STORES,
    }
    if all(action.option_strings for action in command._actions):
        command.add_argument("config", nargs="?")  # A file, as the script of `tfunet run`.
    taken = {word for action in command._actions for word in action.option_strings}
    for key in command.get_default("keys") or KEYS:
        if f"--{key}" not in taken:
            command.add_argument(f"--{key}", choices=list(known.get(key, ())) or None)
