"""tfunet models: the list, and one of them."""

from __future__ import annotations

import argparse
import os

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, sizes, toml_options


def add(commands: argparse._SubParsersAction) -> None:
    models = commands.add_parser("models", help="list the models, or show one")
    models.set_defaults(command=_models, takes_keys=False)
    about = models.add_subparsers(metavar="ACTION")
    show = add_command(about, "show", _models_show, "levels, shapes, parameters, memory of a model")
    show.add_argument("name", help="a name of the list, or 'package.module:build'")
    show.add_argument(
        "--shape", type=sizes, required=True, help="spatial sizes and channels, as 128,128,1"
    )
    show.add_argument("--classes", type=int, default=2, help="labels, with background")
    show.add_argument("--batch", type=int, default=1, help="samples, for the memory")
    show.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the builder, the value as in TOML: filters=8; may be given again",
    )


def _models(options: argparse.Namespace) -> int:
    from tfunet.models import list_models

    print(list_models())
    return exit_codes.OK


def _models_show(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
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
