"""`tfunet predict` and `tfunet evaluate`: whole images with a trained network."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_trust, numbers, path, sizes
from tfunet.config.case_metrics import check_case_metrics
from tfunet.prediction.best_file import check_run, say_best


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
    predict.add_argument(
        "--out",
        type=path,
        help="folder to write to, which is needed; the same command resumes there",
    )
    predict.add_argument(
        "--on_bad_sample",
        choices=("refuse", "skip"),
        default="refuse",
        help="skip: leave out images that cannot be predicted, and say why; by default all are "
        "refused if there is one",
    )
    _add_options(predict, "also draw the labels over the image, NAME_overlay.png")
    add_trust(predict)
    evaluate = add_command(
        commands, "evaluate", _evaluate, "score a run's predictions against given masks"
    )
    evaluate.add_argument("run", type=path, help="folder of a finished run")
    evaluate.add_argument(
        "data",
        help="TOML file that describes a data set, or a folder that is laid out as the run's own",
    )
    evaluate.add_argument(
        "--out", type=path, help="folder for the predictions and scores.csv, which is needed"
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
    evaluate.add_argument(
        "--on_bad_sample",
        choices=("refuse", "skip"),
        default="refuse",
        help="skip: leave out cases that cannot be used, such as an image without its mask, and "
        "say why; by default they are refused",
    )
    _add_options(evaluate, "then draw cases with their errors, errors/NAME.png")
    add_trust(evaluate)


def _add_options(parser: argparse.ArgumentParser, drawn: str) -> None:
    """Add how to predict; `drawn` says what pictures there are."""
    parser.add_argument(
        "--tiles",
        default="gaussian",
        metavar="WAY",
        help="gaussian (the default): tiles overlap by half and are blended; halo: each tile has "
        "context around it, so the result is that of the whole image at once",
    )
    parser.add_argument("--window", type=sizes, metavar="512,512", help="size of a tile")
    parser.add_argument(
        "--halo",
        type=int,
        metavar="N",
        help="width of the context in voxels; by default as far as the network reaches",
    )
    parser.add_argument("--batch", type=int, default=1, help="number of tiles predicted at once")
    parser.add_argument(
        "--format", help="tiff, nifti, zarr or png; by default the image's format, PNG for JPEG"
    )
    parser.add_argument(
        "--values",
        choices=("labels", "masks"),
        default="labels",
        help="labels (the default): write 0, 1, 2 and so on; masks: write the values, or colours, "
        "of the masks that the run was trained on",
    )
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="write the probability of each class or region too",
    )
    parser.add_argument(
        "--pixel_size",
        type=numbers,
        metavar="0.1,0.1",
        help="pixel size of the images; needed if the run resampled its images and these files do "
        "not state their pixel size",
    )
    parser.add_argument(
        "--weights",
        metavar="best.keras",
        help="a file of weights in the run's folder; by default those that it ended with",
    )
    parser.add_argument(
        "--ensemble",
        type=path,
        nargs="+",
        default=(),
        metavar="RUN",
        help="further runs: the prediction is the mean of the probabilities of all",
    )
    parser.add_argument(
        "--mirror",
        action="store_true",
        help="predict mirrored images, too, and take the mean (test-time augmentation)",
    )
    parser.add_argument(
        "--overlay",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=drawn,
    )


def _values(options: argparse.Namespace, keys: Iterable[Field]) -> dict[str, Any]:
    values = {key.name: getattr(options, key.name) for key in keys}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _check_places(options: argparse.Namespace) -> None:
    """Refuse a run that is not there, and then a missing --out, before TensorFlow is imported."""
    check_run(options.run, options.weights, options.ensemble)
    if options.out is None:
        raise ValueError("Say where to write to: --out FOLDER.")


def _predict(options: argparse.Namespace) -> int:
    say_best(options.run)
    _check_places(options)
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As in training.
    from tfunet.prediction.run import Options, predict

    try:
        given = Options(**_values(options, fields(Options)))
        predict(
            options.run,
            options.images,
            options.out,
            given,
            skip_bad=options.on_bad_sample == "skip",
        )
    except KeyboardInterrupt:
        print("The same command goes on from here.", file=sys.stderr)
        raise
    return exit_codes.OK


def _evaluate(options: argparse.Namespace) -> int:
    # Before TensorFlow is imported, which takes many seconds.
    check_case_metrics(options.metrics or ())
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        say_best(options.run)
    _check_places(options)
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As in training.
    from tfunet.prediction.evaluate import as_json, draw_errors, evaluate, summary
    from tfunet.prediction.run import Options

    given = Options(**_values(options, fields(Options)))
    # With --json nothing else is on standard output.
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        scored = evaluate(
            options.run,
            options.data,
            options.out,
            given,
            metrics=options.metrics,
            with_training_cases=options.training_cases,
            skip_bad=options.on_bad_sample == "skip",
        )
    print(as_json(scored) if options.json else summary(scored), flush=True)
    if given.overlay:
        with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
            draw_errors(scored, every=options.pictures == "all")
    return exit_codes.OK
