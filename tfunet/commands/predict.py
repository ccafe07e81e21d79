"""`tfunet predict` and `tfunet evaluate`: whole images with a trained network."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_trust, documented, numbers, path, sizes
from tfunet.config.case_metrics import check_case_metrics
from tfunet.prediction.options import EXAMPLES, VALUES, Options, checked_options

# How a word of the command line becomes a value of a type; all others are texts.
READERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    int | None: int,
    tuple[int, ...] | None: sizes,
    tuple[float, ...] | None: numbers,
    tuple[Path, ...]: path,
}


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    predict = add_command(
        commands, "predict", _predict, "predict whole images with a trained network"
    )
    predict.add_argument("run", type=path, help="folder of a finished run")
    predict.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="files, folders or quoted patterns ('test/*.png'); join those of one image by commas",
    )
    _add_options(predict)
    evaluate = add_command(
        commands, "evaluate", _evaluate, "score a run's predictions against given masks"
    )
    evaluate.add_argument("run", type=path, help="folder of a finished run")
    evaluate.add_argument(
        "data",
        help="TOML file that describes a data set, or a folder that is laid out as the run's own",
    )
    evaluate.add_argument(
        "--metrics",
        type=lambda text: text.split(","),
        metavar="hd95,nsd@1mm",
        help="metrics of whole cases; by default those of the run",
    )
    evaluate.add_argument(
        "--training_cases",
        action="store_true",
        help="score the cases that the run was trained on, too",
    )
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.add_argument(
        "--pictures",
        choices=("some", "all"),
        default="some",
        help="cases to draw: some from the worst over the median to the best (the default), or all",
    )
    _add_options(evaluate)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add what both take, and an option for each field of Options, which its docstring explains."""
    parser.add_argument(
        "--out",
        type=path,
        help="folder to write to, which is needed; the same command resumes there",
    )
    parser.add_argument(
        "--on_bad_sample",
        choices=("refuse", "skip"),
        default="refuse",
        help="skip: leave out what cannot be used, such as an image without its mask, and say why; "
        "by default all is refused if there is one",
    )
    add_trust(parser)
    for field in fields(Options):
        words = documented(Options)[field.name].replace("%", "%%")
        how: dict[str, Any] = {"default": field.default, "help": words}
        if field.type is bool:
            how["action"] = argparse.BooleanOptionalAction if field.default else "store_true"
        elif field.name == "values":
            how["choices"] = VALUES
        else:
            how |= {"type": READERS.get(field.type, str), "metavar": EXAMPLES.get(field.name)}
            how |= {"nargs": "+"} if field.type == tuple[Path, ...] else {}
        parser.add_argument(f"--{field.name}", **how)


def _checked(options: argparse.Namespace) -> Options:
    """Return the options of a prediction; ValueError for what is wrong, also a missing --out."""
    given = {field.name: getattr(options, field.name) for field in fields(Options)}
    checked = checked_options(options.run, given)
    if options.out is None:
        raise ValueError("Say where to write to: --out FOLDER.")
    return checked


def _predict(options: argparse.Namespace) -> int:
    how, skip_bad = _checked(options), options.on_bad_sample == "skip"
    from tfunet.prediction.run import predict

    try:
        predict(options.run, options.images, options.out, how, skip_bad=skip_bad)
    except KeyboardInterrupt:
        print("The same command goes on from here.", file=sys.stderr)
        raise
    return exit_codes.OK


def _evaluate(options: argparse.Namespace) -> int:
    check_case_metrics(options.metrics or ())
    # With --json nothing else is on standard output.
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        how = _checked(options)
        from tfunet.prediction.evaluate import as_json, draw_errors, evaluate, summary

        scored = evaluate(
            options.run,
            options.data,
            options.out,
            how,
            metrics=options.metrics,
            with_training_cases=options.training_cases,
            skip_bad=options.on_bad_sample == "skip",
        )
    print(as_json(scored) if options.json else summary(scored), flush=True)
    if how.overlay:
        with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
            draw_errors(scored, every=options.pictures == "all")
    return exit_codes.OK
