"""The command line. Loads no TensorFlow before a command that needs it runs."""

from __future__ import annotations

import argparse
import os
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfunet import __version__, exit_codes
from tfunet.cluster import Place
from tfunet.commands import data, export, report, swap, sweep
from tfunet.commands.parsers import LOGS, add_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (tfunet.exit_codes)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options, rest = parser.parse_known_args(given)
    if rest and not options.takes_keys:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    try:
        return options.command(options)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except (ValueError, OSError, KeyboardInterrupt) as error:
        code = exit_codes.of_error(error)
        if code is None:
            raise
        print(f"error: {error}" if str(error) else "interrupted", file=sys.stderr)
        return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfunet",
        description="Train Keras segmentation models on many devices, and compare the ways.",
        epilog="Exit codes: 0 done, 2 bad usage, configuration or data, 3 a process died, 4 a "
        "check of correctness failed, 5 a file could not be written, 6 compare: a cell is slower, "
        "7 compare: it cannot tell, 8 swap diff: the plans differ, 130 Ctrl-C, 143 terminated.",
    )
    parser.add_argument("--version", action="version", version=f"tfunet {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    _add_train(commands)
    _add_predict(commands)
    sweep.add(commands)
    report.add(commands)
    export.add(commands)
    _add_models(commands)
    data.add(commands)
    swap.add(commands)
    doctor = add_command(commands, "doctor", _doctor, "say what works here and what is missing")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _add_train(commands: argparse._SubParsersAction) -> None:
    train = add_command(
        commands, "train", _train, "train one model with one backend", help_=False, takes_keys=True
    )
    train.add_argument("-h", "--help", action="store_true", help="show all keys of a run")
    train.add_argument("--out", type=Path, help="folder of the record; started again, it resumes")
    train.add_argument("--verbose", action="store_true", help="show the output of all processes")


def _add_predict(commands: argparse._SubParsersAction) -> None:
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
    predict.add_argument("--window", type=_sizes, metavar="512,512", help="size of the tiles")
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
        type=_numbers,
        metavar="0.1,0.1",
        help="of the images, if the run resampled its own and these do not state it",
    )


def _add_models(commands: argparse._SubParsersAction) -> None:
    models = commands.add_parser("models", help="list the models, or show one")
    models.set_defaults(command=_models, takes_keys=False)
    about = models.add_subparsers(metavar="ACTION")
    show = add_command(about, "show", _models_show, "levels, shapes, parameters, memory of a model")
    show.add_argument("name", help="a name of the list, or 'package.module:build'")
    show.add_argument(
        "--shape", type=_sizes, required=True, help="spatial sizes and channels, as 128,128,1"
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


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write it as 512,512, got {text!r}") from error


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write it as 0.1,0.1, got {text!r}") from error


def _toml(pairs: Sequence[str]) -> dict[str, Any]:
    try:
        return tomllib.loads("\n".join(pairs))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"Options are KEY=VALUE with a value as in TOML (a text in quotes), got {pairs}: "
            f"{error}."
        ) from error


def _train(options: argparse.Namespace) -> int:
    from tfunet.arguments import check_names, parse, run_parser
    from tfunet.backend import num_processes
    from tfunet.bench.launch import launch
    from tfunet.record import RunFolder
    from tfunet.worker import own_place, take_part

    if options.help:
        run_parser().print_help()
        print("\n  --out OUT             Folder of the record; started again, it resumes.")
        print("  --verbose             Show the output of all processes.")
        return exit_codes.OK
    given = options.rest
    if given and given[0].endswith(".toml"):  # As the other commands take it.
        given = ["--config", *given]
    config = parse(given)
    check_names(config)
    place = own_place()
    if place is not None and place.count > 1:
        _check_others(place, num_processes(config), options.out)
        if config.elastic:
            raise ValueError(
                "elastic needs processes that tfunet starts itself: srun and mpirun end all where "
                "one is lost. Leave it out; the same command resumes the run."
            )
        take_part(config, options.out, place)
    folder = options.out or LOGS / "runs" / time.strftime("%Y%m%d-%H%M%S")
    outcome = launch(config, folder, verbose=options.verbose)
    if outcome.exit_code != exit_codes.OK:
        return outcome.exit_code
    if not RunFolder(folder).is_done():
        print(f"error: the processes ended early, without a result; see {folder}", file=sys.stderr)
        return exit_codes.PROCESS_DIED
    print(f"Record: {folder}")
    return exit_codes.OK


def _check_others(place: Place, count: int, folder: Path | None) -> None:
    """Raise ValueError unless srun or mpirun started what the run needs."""
    if place.count != count:
        raise ValueError(
            f"The run takes {count} process{'es' if count > 1 else ''}, and srun or mpirun started "
            f"{place.count}. Start {count}, or let num_replicas be {place.count} with the backend "
            "horovod or multiworker."
        )
    if folder is None:
        raise ValueError("Under srun or mpirun, name the folder that all processes use: --out")


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


def _models(options: argparse.Namespace) -> int:
    from tfunet.models import list_models

    print(list_models())
    return exit_codes.OK


def _models_show(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfunet.models.show import describe

    print(
        describe(
            options.name,
            image_shape=options.shape,
            num_classes=options.classes,
            batch=options.batch,
            options=_toml(options.option),
        )
    )
    return exit_codes.OK


def _doctor(options: argparse.Namespace) -> int:
    from tfunet import doctor

    return doctor.run(as_json=options.json)
