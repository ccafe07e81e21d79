"""Reads the logs of the published campaign, tensorflow_unet_scaling.

It has a CSV file for each number of GPUs, `log_<N>.csv` (tf.distribute) and `log_hvd_<N>.csv`
(Horovod), with a row for each epoch. The efficiencies come out as published.
"""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from tfunet.files.typed import read_record

LOG = re.compile(r"log_(hvd_)?(\d+)\.csv")
COLUMN = "time_per_epoch"
IOU = "iou"


@dataclass(frozen=True, kw_only=True)
class CampaignRun:
    """The run of one log.

    Args:
        way: "single", "mirrored", "multiworker" or "horovod".
        epoch_seconds: Duration of every epoch but the first, which traces.
        efficiency: Speed-up against one GPU, divided by the GPUs, from the mean epoch.
        median_efficiency: The same from the median epoch.
        iou: IoU of the last epoch; None in a log without it.
    """

    way: str
    num_gpus: int
    epoch_seconds: tuple[float, ...]
    efficiency: float
    median_efficiency: float
    iou: float | None = None


def is_campaign(folder: str | Path) -> bool:
    """Whether a folder holds logs of the campaign, and no record of tfunet."""
    root = Path(folder)
    is_ours = (root / "plan.json").is_file() or (root / "config.json").is_file()
    return not is_ours and any(LOG.fullmatch(path.name) for path in root.glob("log_*.csv"))


def read_campaign(folder: str | Path) -> tuple[CampaignRun, ...]:
    """Return the runs of a folder: native ones first, then by number of GPUs.

    Raises ValueError if a log cannot be read, or if there is none of one GPU as the baseline.
    """
    logs: dict[tuple[bool, int], tuple[float, ...]] = {}
    ious: dict[tuple[bool, int], float | None] = {}
    for path in Path(folder).glob("log_*.csv"):
        if match := LOG.fullmatch(path.name):
            key = match[1] is not None, int(match[2])
            logs[key], ious[key] = _epochs(path)
    return tuple(replace(_run(key, logs, folder), iou=ious[key]) for key in sorted(logs))


def _run(
    key: tuple[bool, int],
    logs: Mapping[tuple[bool, int], tuple[float, ...]],
    folder: str | Path,
) -> CampaignRun:
    is_horovod, num_gpus = key
    # As published: Horovod against its own run on one GPU, or else against the native one.
    baseline = logs.get((is_horovod, 1)) or logs.get((False, 1))
    if baseline is None:
        raise ValueError(
            f"{folder} has no log of one GPU as the baseline: add log_1.csv or log_hvd_1.csv."
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
    """Return the strategy that the campaign's script takes for this number of GPUs."""
    return {1: "single", 2: "mirrored"}.get(num_gpus, "multiworker")


def _epochs(path: Path) -> tuple[tuple[float, ...], float | None]:
    """Return the seconds of all epochs but the first, and the IoU of the last."""
    try:
        rows = list(csv.DictReader((read_record(path) or "").splitlines()))
        values = [float(row[COLUMN]) for row in rows]
        iou = float(rows[-1][IOU]) if rows and rows[-1].get(IOU) else None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a log of the campaign ({error!r}): it needs a header, and a "
            f"number in column {COLUMN!r} for every epoch."
        ) from error
    if len(values) < 2:
        raise ValueError(
            f"{path} needs two or more epochs, because the first does not count, got {len(values)}."
        )
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in values):
        raise ValueError(f"{path} has an epoch whose {COLUMN} is not positive. Correct the file.")
    return tuple(values[1:]), iou
