"""`tfunet models`: list the models, or describe one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, sizes, toml_options
from tfunet.process.terminal import lines_of


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    models = add_command(commands, "models", _models, "list the models, or describe one")
    actions = models.add_subparsers(metavar="ACTION")
    add_command(actions, "list", _models, "list the models, as `tfunet models` does")
    show = add_command(
        actions, "show", _models_show, "print the levels, shapes, parameters and memory of a model"
    )
    show.add_argument("name", help="a name that `tfunet models` lists, or 'package.module:build'")
    show.add_argument(
        "--shape",
        type=sizes,
        help="spatial sizes and channels, such as 128,128,1; by default those of docs/models.md",
    )
    show.add_argument("--classes", type=int, help="classes, with the background; by default 2")
    show.add_argument(
        "--batch", type=int, default=1, help="samples in a batch, for the memory; by default 1"
    )
    show.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the builder, with a TOML value: filters=8; can be repeated",
    )
    for name in ("--stages", "--image"):
        show.add_argument(name, help=argparse.SUPPRESS)


def _models(options: argparse.Namespace) -> int:
    from tfunet.models import list_models

    print(list_models())
    return exit_codes.OK


def _models_show(options: argparse.Namespace) -> int:
    from tfunet.models.describe import describe

    if options.stages is not None or options.image is not None:
        raise ValueError("Stages and tiles are planned by: tfunet plan RUN.toml")
    shape, classes = _shape_and_classes(options)
    text = describe(
        options.name,
        batch=options.batch,
        image_shape=shape,
        num_classes=classes,
        options=toml_options(options.option),
    )
    print(lines_of(text))
    return exit_codes.OK


def _shape_and_classes(options: argparse.Namespace) -> tuple[Sequence[int], int]:
    from tfunet.models import EXAMPLES

    shape, classes = options.shape, 2
    if shape is None:
        if options.name not in EXAMPLES:
            raise ValueError(
                f"The size of an image for {options.name!r} is not known: give --shape, such as "
                "--shape 128,128,1."
            )
        shape, classes = EXAMPLES[options.name]
    return shape, classes if options.classes is None else options.classes
