"""`tfunet export`: records in the forms that other programs read."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.parsers import add_command

if TYPE_CHECKING:
    from tfunet.bench.records.sweep_record import TrialRecord

FORMS = {
    "perfetto": "what each process did when (runs with trace = true); open it in ui.perfetto.dev",
    "tensorboard": "losses, step times, scores and swap traffic, for tensorboard --logdir",
    "mlperf": "log lines of MLPerf's form",
}


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    export = add_command(
        commands, "export", _export, "write runs as Perfetto, TensorBoard or MLPerf read them"
    )
    export.add_argument("folder", type=Path, help="folder of a run or of a sweep")
    export.add_argument(
        "--to",
        choices=FORMS,
        required=True,
        help="; ".join(f"{name}: {about}" for name, about in FORMS.items()),
    )
    export.add_argument("--out", type=Path, help="folder to write in; by default FOLDER/FORM")


def _export(options: argparse.Namespace) -> int:
    from tfunet.bench.records.sweep_record import read_sweep

    begun = [one for one in read_sweep(options.folder).trials if _has_begun(one, options.to)]
    if not begun:
        what = {
            "perfetto": "a run that tells what its processes did. Train with --trace true, or in "
            "a study with trace = true in [base]",
        }.get(options.to, "a run with a finished epoch")
        raise ValueError(f"{options.folder} holds no such thing as {what}.")
    out = options.out or options.folder / options.to
    for trial in begun:
        print(_write(trial, options.to, out))
    if options.to == "tensorboard":
        print(f"Look at them: tensorboard --logdir {out}")
    return exit_codes.OK


def _has_begun(trial: TrialRecord, form: str) -> bool:
    from tfunet.files.table import read_rows
    from tfunet.record import RunFolder

    if form == "perfetto":
        return any(RunFolder(trial.folder).read_spans().values())
    return bool(read_rows(trial.folder / "epochs.csv"))


def _write(trial: TrialRecord, form: str, out: Path) -> Path:
    from tfunet.files.atomic import write_atomic
    from tfunet.record import RunFolder

    name = trial.folder.resolve().name
    if form == "tensorboard":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from tfunet.export.tensorboard import write_events

        return write_events(trial.folder, out / name)
    RunFolder(out).create()
    if form == "mlperf":
        from tfunet.export.mlperf import mlperf_lines

        path = out / f"{name}.log"
        write_atomic(path, "".join(f"{line}\n" for line in mlperf_lines(trial)))
        return path
    from tfunet.export.perfetto import trace

    path = out / f"{name}.json"
    ops = None
    if any(trial.folder.glob("profile/process-*/plugins")):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from tfunet.timing.xplane import read_ops

        ops = read_ops(trial.folder)
    write_atomic(path, json.dumps(trace(trial.folder, ops)))
    return path
