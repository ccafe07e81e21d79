"""`tfunet best`: which runs of a study to predict with, and how."""

from __future__ import annotations

import argparse
import os

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_trust, path
from tfunet.process.terminal import lines_of


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    best = add_command(
        commands,
        "best",
        _best,
        "find the best configuration or ensemble of a study by its held-out cases, for predict",
    )
    best.add_argument("study", type=path, help="folder of a study, such as logs/STUDY")
    best.add_argument(
        "--mirror", action="store_true", help="try predictions of mirrored images, too"
    )
    add_trust(best)


def _best(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As in training.
    from tfunet.bench.best_configuration import find_best

    comparison, path = find_best(options.study, mirror=options.mirror)
    print(lines_of(comparison.text()))
    print(lines_of(f"{path}: to follow it, tfunet predict {options.study} IMAGE --out FOLDER"))
    return exit_codes.OK
