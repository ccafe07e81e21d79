"""`tfunet predict`: predict whole images with a trained network."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_trust, numbers, sizes


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    predict = add_command(
        commands, "predict", _predict, "predict whole images with a trained network"
    )
    predict.add_argument("run", type=Path, help="folder of a finished run")
    predict.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files; join those of one image by commas"
    )
    predict.add_argument(
        "--out", type=Path, required=True, help="folder to write to; the same command resumes there"
    )
    predict.add_argument(
        "--tiles",
        default="gaussian",
        metavar="WAY",
        help="gaussian (the default): tiles overlap by half and are blended; halo: each tile has "
        "context around it, so the result is that of the whole image at once",
    )
    predict.add_argument("--window", type=sizes, metavar="512,512", help="size of a tile")
    predict.add_argument(
        "--halo",
        type=int,
        metavar="N",
        help="width of the context in voxels; by default as far as the network reaches",
    )
    predict.add_argument("--batch", type=int, default=1, help="number of tiles predicted at once")
    predict.add_argument("--format", help="tiff, nifti or zarr; by default the image's format")
    predict.add_argument(
        "--probabilities", action="store_true", help="write the probability of each class too"
    )
    predict.add_argument(
        "--pixel_size",
        type=numbers,
        metavar="0.1,0.1",
        help="pixel size of the images; needed if the run resampled its images and these files do "
        "not state their pixel size",
    )
    add_trust(predict)


def _predict(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As in training.
    from tfunet.predict.run import Options, predict

    try:
        given = Options(**{field.name: getattr(options, field.name) for field in fields(Options)})
        predict(options.run, options.images, options.out, given)
    except KeyboardInterrupt:
        print("The same command goes on from here.", file=sys.stderr)
        raise
    return exit_codes.OK
