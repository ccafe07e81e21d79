"""`tfunet export`: writes networks and records in the formats of other programs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_trust, path, sizes
from tfunet.prediction.best_file import check_run
from tfunet.process.terminal import lines_of

if TYPE_CHECKING:
    from tfunet.bench.records.sweep_record import TrialRecord

FORMATS = {
    "perfetto": "what each process did when (runs with trace = true), for ui.perfetto.dev",
    "tensorboard": "losses, step times, scores and swap traffic, for tensorboard --logdir",
    "mlperf": "MLPerf log lines",
}
TRACKERS = {
    "mlflow": "settings, losses and scores, for MLflow: a file store, or $MLFLOW_TRACKING_URI",
    "wandb": "the same for Weights & Biases, offline unless $WANDB_MODE says otherwise",
}
NETWORKS = {
    "savedmodel": "the network of a run, for TensorFlow and TensorFlow Serving, without tfunet",
    "onnx": "the network of a run, for onnxruntime and others",
}


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    export = add_command(
        commands,
        "export",
        _export,
        "write a network as a SavedModel or in ONNX, or runs for Perfetto, TensorBoard, MLPerf, "
        "MLflow or Weights & Biases",
    )
    export.add_argument("folder", type=path, help="folder of a run, or of a sweep")
    formats = {**NETWORKS, **FORMATS, **TRACKERS}
    export.add_argument(
        "--to",
        choices=formats,
        required=True,
        help="; ".join(f"{name}: {about}" for name, about in formats.items()),
    )
    export.add_argument("--out", type=path, help="folder to write to; by default FOLDER/FORMAT")
    export.add_argument(
        "--images",
        nargs="+",
        default=[],
        metavar="IMAGE",
        help="of a network: images on which it is compared with the run; by default validation "
        "cases",
    )
    export.add_argument(
        "--window",
        type=sizes,
        metavar="512,512",
        help="of a network: size of its input; by default the patch of the training",
    )
    export.add_argument(
        "--weights",
        metavar="best.keras",
        help="of a network: a file of weights in the run's folder; by default the last epoch's",
    )
    add_trust(export)


def _export(options: argparse.Namespace) -> int:
    if options.to in NETWORKS:
        return _export_network(options)
    for name in ("images", "window", "weights"):
        if getattr(options, name):
            raise ValueError(f"--{name} is for --to {' and --to '.join(NETWORKS)}. Leave it out.")
    from tfunet.bench.records.sweep_record import read_sweep

    trials = [
        trial
        for trial in read_sweep(options.folder).readable
        if _can_be_exported(trial, options.to)
    ]
    if not trials and options.to == "perfetto":
        raise ValueError(
            f"{options.folder} holds no traced run. Train with --trace true, or put trace = true "
            "into [base] of the study."
        )
    if not trials:
        raise ValueError(f"{options.folder} holds no run with a finished epoch.")
    if options.to in TRACKERS:
        return _tell(options, trials)
    out = options.out or options.folder / options.to
    code = exit_codes.OK
    for trial in trials:
        try:
            print(lines_of(_write(trial, options.to, out)))
        except ValueError as error:  # The other runs are written all the same.
            print(lines_of(f"error: {error}"), file=sys.stderr)
            code = exit_codes.BAD_INPUT
    if options.to == "tensorboard":
        print(lines_of(f"To look at them: tensorboard --logdir {out}"))
    return code


def _tell(options: argparse.Namespace, trials: Iterable[TrialRecord]) -> int:
    """Tell a tracker of the runs that have ended."""
    from tfunet.export.trackers import export_run

    code = exit_codes.OK
    for trial in trials:
        if trial.state == "running":
            print(lines_of(f"{trial.id} still runs, and is left out."))
            continue
        try:
            place = export_run(options.to, trial.folder, out=options.out, default=options.folder)
            print(lines_of(f"{trial.id}: {place}"))
        except ValueError as error:  # The other runs are told all the same.
            print(lines_of(f"error: {error}"), file=sys.stderr)
            code = exit_codes.BAD_INPUT
    return code


def _export_network(options: argparse.Namespace) -> int:
    check_run(options.folder, options.weights)
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As in training.
    # The file is compared on the CPU: GPUs multiply with fewer bits.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from tfunet.export.network_file import export_network

    try:
        exported = export_network(
            options.folder,
            options.to,
            options.out or options.folder / options.to,
            images=options.images,
            window=options.window,
            weights=options.weights,
        )
    except exit_codes.CheckFailedError as error:
        print(f"error: {lines_of(error)}", file=sys.stderr)
        return exit_codes.CHECK_FAILED
    print(lines_of(exported.summary()))
    return exit_codes.OK


def _can_be_exported(trial: TrialRecord, file_format: str) -> bool:
    from tfunet.files.table import read_rows
    from tfunet.files.typed import RecordError
    from tfunet.record import RunFolder

    try:
        if file_format == "perfetto":
            return any(RunFolder(trial.folder).read_spans().values())
        return bool(read_rows(trial.folder / "epochs.csv"))
    except RecordError:
        return True  # To say what is wrong.


def _write(trial: TrialRecord, file_format: str, out: Path) -> Path:
    from tfunet.files.atomic import write_atomic
    from tfunet.record import RunFolder

    name = trial.folder.resolve().name
    if file_format == "tensorboard":
        from tfunet.export.tensorboard import write_events

        return write_events(trial.folder, out / name)
    RunFolder(out).create()
    if file_format == "mlperf":
        from tfunet.export.mlperf import mlperf_lines

        path = out / f"{name}.log"
        write_atomic(path, "".join(f"{line}\n" for line in mlperf_lines(trial)))
        return path
    from tfunet.export.perfetto import trace

    path = out / f"{name}.json"
    ops = None
    if any(trial.folder.glob("profile/process-*/plugins")):
        from tfunet.timing.xplane import read_ops

        ops = read_ops(trial.folder)
    write_atomic(path, json.dumps(trace(trial.folder, ops)))
    return path
