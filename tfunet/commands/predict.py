"""tfunet predict: whole images with a trained network."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, numbers, sizes


def add(commands: argparse._SubParsersAction) -> None:
    predict = add_command(
        commands, "predict", _predict, "predict whole images with a trained network"
    )
    predict.add_argument("run", type=Path, help="folder of a finished run")
    predict.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files; those of one image joined by commas"
    )
    predict.add_argument(
        "--out", type=Path, required=True, help="folder; started again, it resumes"
    )
    predict.add_argument(
        "--tiles",
        default="gaussian",
        metavar="WAY",
        help="gaussian: overlap by half and blend (the default); halo: context around each, the "
        "prediction of the whole image",
    )
    predict.add_argument("--window", type=sizes, metavar="512,512", help="size of the tiles")
    predict.add_argument(
        "--halo", type=int, metavar="N", help="voxels of context; by default as far as it looks"
    )
    predict.add_argument("--batch", type=int, default=1, help="tiles at once on the device")
    predict.add_argument("--format", help="tiff, nifti or zarr; by default as the image")
    predict.add_argument(
        "--probabilities", action="store_true", help="write those of each class too"
    )
    predict.add_argument(
        "--pixel_size",
        type=numbers,
        metavar="0.1,0.1",
        help="of the images, if the run resampled its own and these do not state it",
    )


def _predict(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As in training.
    from tfunet.predict.run import Options, predict

    try:
        predict(
            options.run,
            options.images,
            options.out,
            Options(
                tiles=options.tiles,
                window=options.window,
                halo=options.halo,
                batch=options.batch,
                format=options.format,
                probabilities=options.probabilities,
                pixel_size=options.pixel_size,
            ),
        )
    except KeyboardInterrupt:
        print("The same command goes on from here.", file=sys.stderr)
        raise
    return exit_codes.OK
