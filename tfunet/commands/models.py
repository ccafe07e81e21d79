"""`tfunet models`: list the models, or describe one."""

from __future__ import annotations

import argparse

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, sizes, toml_options


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    models = add_command(commands, "models", _models, "list the models, or describe one")
    actions = models.add_subparsers(metavar="ACTION")
    show = add_command(
        actions, "show", _models_show, "print the levels, shapes, parameters and memory of a model"
    )
    show.add_argument("name", help="a name that `tfunet models` lists, or 'package.module:build'")
    show.add_argument(
        "--shape", type=sizes, required=True, help="spatial sizes and channels, such as 128,128,1"
    )
    show.add_argument("--classes", type=int, default=2, help="classes, with the background")
    show.add_argument("--batch", type=int, default=1, help="samples in a batch, for the memory")
    show.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the builder, with a TOML value: filters=8; can be repeated",
    )


def _models(options: argparse.Namespace) -> int:
    from tfunet.models import list_models

    print(list_models())
    return exit_codes.OK


def _models_show(options: argparse.Namespace) -> int:
    from tfunet.models.describe import describe

    print(
        describe(
            options.name,
            image_shape=options.shape,
            num_classes=options.classes,
            batch=options.batch,
            options=toml_options(options.option),
        )
    )
    return exit_codes.OK
