"""`tfunet run`: a script of the user's own, in one process or in several."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, path
from tfunet.config.words import near_match
from tfunet.files.regular import read_bytes
from tfunet.fit.placement import KEYS, SCRIPTS, VARIABLE, Placement, to_text

if TYPE_CHECKING:
    from tfunet.process.launcher_variables import Place

# Options without a value. Every other one has one, which is not the script.
FLAGS = ("--verbose", "--help")
USAGE = "tfunet run [--KEY VALUE ...] SCRIPT.py [ARGUMENT ...]"
HELP = f"""usage: {USAGE}

Run a script that calls tfunet.distribute(), in one process or in as many as its backend needs. What
follows its name are its own arguments. Under srun, mpirun, torchrun and others each process that
they start runs the script, and --num_replicas is the number of them:

  srun tfunet run --backend horovod SCRIPT.py
  torchrun --no-python --nproc-per-node 2 tfunet run --backend horovod SCRIPT.py

options:
  --out OUT               Folder for the output of each process, log-0.txt and so on. By default one
                          of its own in logs/scripts.
  --verbose               Show the output of all processes, not only of the first.

keys:
"""


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    about = "run a script of your own, whose fit trains on many devices"
    run = add_command(commands, "run", _run, about, has_help=False, takes_keys=True)
    run.set_defaults(starts_runs=True, keys=KEYS)
    run.add_argument("-h", "--help", action="store_true")
    run.add_argument("--out", type=path)
    run.add_argument("--verbose", action="store_true")


def script_apart(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words that are tfunet's, and a script with its arguments, which are its own."""
    awaits_value = False
    for at, word in enumerate(words if words[:1] == ["run"] else ()):
        if at and not awaits_value and not word.startswith("-"):
            return words[:at], words[at:]
        is_option = not awaits_value and word.startswith("--")
        awaits_value = is_option and "=" not in word and word not in FLAGS
    return words, []


def _run(options: argparse.Namespace) -> int:
    from tfunet.arguments import key_lines
    from tfunet.bench.launch.launch_script import launch_script
    from tfunet.bench.launch.start_run import new_folder
    from tfunet.connection import own_place
    from tfunet.fit.keras_choice import check_keras
    from tfunet.machine.doctor import check_installed

    if options.help:
        print(HELP + "\n".join(key_lines(KEYS)))
        return exit_codes.OK
    given = _keys(options.rest)
    check_script(options.script)
    check_keras(os.environ, Path.home())
    place = own_place()
    if place is not None and place.count > 1:
        _take_part(given, place, options)
    placement = Placement(**given)
    check_installed(placement.backend)
    os.environ[VARIABLE] = to_text(given)
    folder = options.out or new_folder(SCRIPTS)
    return launch_script(placement, options.script, folder, verbose=options.verbose).exit_code


def check_script(words: Sequence[str]) -> None:
    """Raise ValueError unless the first word names a file with a Python program."""
    if not words:
        raise ValueError(f"Name the script, after the keys: {USAGE}")
    script = Path(words[0])
    if script.is_dir():
        raise ValueError(f"{words[0]!r} is a folder. Name the Python file in it.")
    if not script.is_file():
        others = [file.name for file in script.parent.glob("*.py")]
        raise ValueError(f"There is no script {words[0]!r}.{near_match(script.name, others)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns when it runs the script.
            compile(read_bytes(script), words[0], "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f" at line {error.lineno}" if error.lineno else ""
        raise ValueError(f"{words[0]!r} is not a Python program: {error.msg}{line}.") from error
    except ValueError as error:  # As of a null byte, in older versions of Python.
        raise ValueError(f"{words[0]!r} is not a Python program: {error}.") from error


def _keys(words: Sequence[str]) -> dict[str, Any]:
    """Return the keys before the script; ValueError for wrong values, and keys of train alone."""
    from tfunet.arguments import parse_keys

    given = parse_keys(words)
    if others := [key for key in given if key not in KEYS]:
        raise ValueError(
            f"{others[0]} is a key of `tfunet train`: what a script trains, its code says. Keys of "
            f"`tfunet run`: {', '.join(KEYS)}. Arguments of the script stand after its name."
        )
    Placement(**given)  # Before the script is looked for: a key without a value takes its name.
    return given


def _take_part(given: dict[str, Any], place: Place, options: argparse.Namespace) -> NoReturn:
    """Become one of the processes that a launcher started: it knows this one, and ends with it."""
    from tfunet.backend import facts_of
    from tfunet.connection import check_count
    from tfunet.machine.doctor import check_installed

    if "backend" not in given:
        raise ValueError(
            f"A launcher started {place.count} processes, and nothing says what connects them. "
            "Give --backend horovod or --backend multiworker."
        )
    if options.out is not None:
        raise ValueError(
            "--out is the folder for the output of processes that tfunet starts. Here the launcher "
            "has their output. Leave it out."
        )
    if not facts_of(given["backend"]).one_process:
        given = {"num_replicas": place.count, **given}
    placement = Placement(**given)
    check_count(placement, place.count)
    check_installed(placement.backend)
    os.environ[VARIABLE] = to_text(given)
    command = [sys.executable, "-m", "tfunet.fit.script", *options.script]
    os.execv(command[0], command)
