"""The command line. Loads no TensorFlow before a command that needs it runs."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence

from tfunet import __version__, exit_codes
from tfunet.commands import (
    auto,
    best,
    completion,
    data,
    export,
    init,
    models,
    plan,
    predict,
    rate,
    report,
    run,
    swap,
    sweep,
    train,
)
from tfunet.commands.os_errors import has_working_folder, of_os_error
from tfunet.commands.parsers import Parser, add_command, keys_apart
from tfunet.config import trust
from tfunet.files.server import RemoteError
from tfunet.process.terminal import lines_of, show_messages_safely


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (tfunet.exit_codes)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    given, script = run.script_apart(given)
    parser = _parser()
    options, rest = parser.parse_known_args(given)
    keys: list[str] = []
    if rest and options.takes_keys:
        own, keys = keys_apart(given)
        options, rest = parser.parse_known_args(own)
    if rest and not options.takes_keys:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest, options.script = [*rest, *keys], script
    if not options.starts_runs:  # The processes of a run set it themselves.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # Otherwise TensorFlow takes all memory of a GPU, which others may use.
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if options.trust:
        os.environ[trust.VARIABLE] = "1"
    show_messages_safely()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # A file's name may not be UTF-8.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = options.command(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # A full disk is told here, not when Python ends.
        return code
    except BrokenPipeError:
        _drop_output()  # The reader of the pipe (head, less) has ended.
        return exit_codes.OK
    except (ValueError, OSError, RemoteError, KeyboardInterrupt) as error:
        code, words = exit_codes.of_error(error), str(error)
        if isinstance(error, OSError) and (code is None or not has_working_folder()):
            code, words = of_os_error(error)
        if code is None:
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
            _drop_output()
        print(f"error: {lines_of(words)}" if words else "interrupted", file=sys.stderr)
        return code


def _drop_output() -> None:
    """Let what standard output still holds go nowhere: Python writes it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tfunet",
        description="Train Keras segmentation models on many devices, and compare backends.",
        epilog="Exit codes: 0 done, 2 bad usage, configuration or data, 3 a process died, 4 a "
        "check of correctness failed, 5 a file could not be written, 6 compare: a cell is slower, "
        "7 compare: too few repeats to tell, 8 swap diff: the plans differ, 130 Ctrl-C, 143 "
        "terminated.",
    )
    parser.set_defaults(takes_keys=False, starts_runs=False, trust=False)
    parser.add_argument("--version", action="version", version=f"tfunet {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    init.add(commands)
    auto.add(commands)
    plan.add(commands)
    train.add(commands)
    run.add(commands)
    predict.add(commands)
    sweep.add(commands)
    report.add(commands)
    best.add(commands)
    export.add(commands)
    models.add(commands)
    data.add(commands)
    rate.add(commands)
    swap.add(commands)
    doctor = add_command(commands, "doctor", _doctor, "show what works here and what is missing")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    completion.add(commands, parser)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from tfunet.machine import doctor

    return doctor.run(as_json=options.json)
