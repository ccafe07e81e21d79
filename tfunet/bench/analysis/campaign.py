"""Reads the logs of the published campaign, tensorflow_unet_scaling, and reports on them.

One CSV file for each number of GPUs, `log_<N>.csv` (tf.distribute) and `log_hvd_<N>.csv` (Horovod),
a row an epoch. Its efficiencies come out as published; the warnings say what they are worth.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tfunet.bench.analysis.scaling import serial_share
from tfunet.bench.analysis.wording import NONE, csv_text, markdown_text, plain_text
from tfunet.files.atomic import write_atomic
from tfunet.record import RunFolder

LOG = re.compile(r"log_(hvd_)?(\d+)\.csv")
COLUMN = "time_per_epoch"
IOU = "iou"
CAMPAIGN_VERSION = 1
WARNINGS = (
    "Each number of GPUs is one run: there is no interval and no verdict. That its epochs differ "
    "little says nothing about how the next run would.",
    "An epoch is not the same work at every number of GPUs: incomplete global batches are "
    "dropped, and larger ones drop more images, which flatters efficiency by up to 10 %.",
    "The native runs are of two kinds, MirroredStrategy on 2 GPUs and MultiWorkerMirroredStrategy "
    "on more. They are listed apart; the publication draws one line through both.",
    "The times are of whole epochs, without the first; tracing, input and waiting are not told "
    "apart. A mean hides a stalled epoch, so the efficiency by medians stands beside it.",
    "The backends did not train on the same samples: Horovod shuffles anew in every epoch, native "
    "never does, and the learning rate grows with the GPUs. Equal losses are not to be expected.",
    "IoU is in no table: 94 % of the validation images are in the training set, the validation "
    "batch changes with the number of GPUs, Horovod's on 8 GPUs and more is of 16 images of one "
    "process, and masks are resized bilinearly.",
    "Every process wrote the same file, so a log is that of whichever process came last.",
)


@dataclass(frozen=True, kw_only=True)
class CampaignRun:
    """One log: a run on `num_gpus`.

    Args:
        way: What trained: "single", "mirrored", "multiworker" or "horovod".
        epoch_seconds: Of every epoch but the first, which traces.
        efficiency: Speed-up against one GPU over the GPUs, from the mean of the epochs.
        median_efficiency: The same from their median.
        iou: Of the last epoch; None in a log without it. The warnings say what it is worth.
    """

    way: str
    num_gpus: int
    epoch_seconds: tuple[float, ...]
    efficiency: float
    median_efficiency: float
    iou: float | None = None


def is_campaign(folder: str | Path) -> bool:
    """Whether a folder holds such logs, and no record of ours."""
    root = Path(folder)
    is_ours = (root / "plan.json").is_file() or (root / "config.json").is_file()
    return not is_ours and any(LOG.fullmatch(path.name) for path in root.glob("log_*.csv"))


def read_campaign(folder: str | Path) -> tuple[CampaignRun, ...]:
    """Return the runs of a folder: native first, each by number of GPUs.

    Raises ValueError for a log that cannot be read, or without one on one GPU to measure by.
    """
    logs: dict[tuple[bool, int], tuple[float, ...]] = {}
    ious: dict[tuple[bool, int], float | None] = {}
    for path in Path(folder).glob("log_*.csv"):
        if match := LOG.fullmatch(path.name):
            key = match[1] is not None, int(match[2])
            logs[key], ious[key] = _epochs(path)
    return tuple(replace(_run(key, logs, folder), iou=ious[key]) for key in sorted(logs))


def campaign_rows(runs: Sequence[CampaignRun]) -> list[dict[str, str]]:
    """Return a row a run, for people."""
    return [
        {
            "backend": run.way,
            "GPUs": str(run.num_gpus),
            "epochs": str(len(run.epoch_seconds)),
            "seconds an epoch": f"{fmean(run.epoch_seconds):.3f}",
            "efficiency": f"{run.efficiency:.3f}",
            "by medians": f"{run.median_efficiency:.3f}",
            "serial share": NONE if run.num_gpus == 1 else f"{_serial_share(run):.3f}",
        }
        for run in runs
    ]


def campaign_text(runs: Sequence[CampaignRun]) -> str:
    """Return table and warnings for a terminal."""
    warnings = ["Before you rely on this:", *(f"- {one}" for one in WARNINGS)]
    table = [_heading(), *plain_text(campaign_rows(runs))]
    return "\n\n".join(["\n".join(table), "\n".join(warnings)])


def campaign_json(runs: Sequence[CampaignRun]) -> dict[str, Any]:
    """Return the same for programs, unrounded."""
    return {
        "schema_version": CAMPAIGN_VERSION,
        "runs": [_facts(run) for run in runs],
        "doubts": list(WARNINGS),
    }


def write_campaign_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write report.md and cells.csv into `out`, by default FOLDER/report; return the first."""
    runs = read_campaign(folder)
    target = Path(out) if out is not None else Path(folder) / "report"
    RunFolder(target).create()
    warnings = "\n".join(f"- {one}" for one in WARNINGS)
    text = (
        f"# {Path(folder).resolve().name}\n\n**Before you rely on this:**\n\n{warnings}\n\n"
        f"{_heading()}\n\n{markdown_text(campaign_rows(runs))}\n"
    )
    write_atomic(target / "cells.csv", csv_text([_facts(run) for run in runs]))
    write_atomic(target / "report.md", text)
    return target / "report.md"


def _run(
    key: tuple[bool, int],
    logs: Mapping[tuple[bool, int], tuple[float, ...]],
    folder: str | Path,
) -> CampaignRun:
    is_horovod, num_gpus = key
    # Horovod by its own run on one GPU, as published; else by the native one.
    baseline = logs.get((is_horovod, 1)) or logs.get((False, 1))
    if baseline is None:
        raise ValueError(
            f"{folder} has no log of one GPU to measure by: add log_1.csv or log_hvd_1.csv."
        )
    seconds = logs[key]
    return CampaignRun(
        way="horovod" if is_horovod else _native_way(num_gpus),
        num_gpus=num_gpus,
        epoch_seconds=seconds,
        efficiency=fmean(baseline) / (num_gpus * fmean(seconds)),
        median_efficiency=median(baseline) / (num_gpus * median(seconds)),
    )


def _native_way(num_gpus: int) -> str:
    """Return the strategy that the campaign's script takes for so many GPUs."""
    return {1: "single", 2: "mirrored"}.get(num_gpus, "multiworker")


def _epochs(path: Path) -> tuple[tuple[float, ...], float | None]:
    """Return the seconds of all epochs but the first, and the IoU of the last."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        values = [float(row[COLUMN]) for row in rows]
        iou = float(rows[-1][IOU]) if rows and rows[-1].get(IOU) else None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no log of the campaign ({error!r}): it needs a header and a number in "
            f"column {COLUMN!r} for every epoch."
        ) from error
    if len(values) < 2:
        raise ValueError(
            f"{path} must hold two or more epochs, because the first does not count; it has "
            f"{len(values)}."
        )
    if not all(math.isfinite(one) and one > 0 for one in values):
        raise ValueError(f"{path} has an epoch whose {COLUMN} is not positive. Write it anew.")
    return tuple(values[1:]), iou


def _serial_share(run: CampaignRun) -> float:
    # The data set is the same for any number of GPUs: strong scaling of an epoch.
    return serial_share(run.efficiency * run.num_gpus, run.num_gpus, "strong")


def _facts(run: CampaignRun) -> dict[str, Any]:
    return {
        "backend": run.way,
        "num_replicas": run.num_gpus,
        "epochs": len(run.epoch_seconds),
        "mean_epoch_seconds": fmean(run.epoch_seconds),
        "median_epoch_seconds": median(run.epoch_seconds),
        "speed_up": run.efficiency * run.num_gpus,
        "efficiency": run.efficiency,
        "median_efficiency": run.median_efficiency,
        "serial_share": None if run.num_gpus == 1 else _serial_share(run),
    }


def _heading() -> str:
    return (
        "Published campaign; efficiency from the mean epoch without the first, against one GPU of "
        "the same backend"
    )
