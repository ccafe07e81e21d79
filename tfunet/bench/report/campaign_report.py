"""Reports on the logs of the published campaign: efficiencies, and how far to trust them."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tfunet.bench.analysis.scaling_laws import is_serial_share, serial_share
from tfunet.bench.records.published_campaign import CampaignRun, read_campaign
from tfunet.bench.report.number_text import NONE, csv_text, markdown_text, plain_text
from tfunet.files.atomic import write_atomic
from tfunet.record import RunFolder

CAMPAIGN_VERSION = 1
HEADING = (
    "Published campaign; efficiency from the mean epoch without the first, against one GPU of the "
    "same backend"
)
WARNINGS = (
    "Each number of GPUs is one run, so there is no interval and no verdict. Its epochs differ "
    "little, but another run could differ more.",
    "An epoch is not the same work for every number of GPUs: incomplete global batches are "
    "dropped, and larger batches drop more images, which flatters efficiency by up to 10 %.",
    "The native runs are of two kinds, MirroredStrategy on 2 GPUs and MultiWorkerMirroredStrategy "
    "on more. They are listed apart here; the publication draws one line through both.",
    "The times are those of complete epochs without the first, and do not separate tracing, input "
    "and waiting. A mean hides a stalled epoch, so the efficiency by medians stands beside it.",
    "The backends did not train on the same samples, so losses may differ: Horovod shuffles anew "
    "in every epoch, native runs never do, and the learning rate grows with the GPUs.",
    "No table has IoU: 94 % of the validation images are in the training set, the validation batch "
    "changes with the number of GPUs (with Horovod on 8 or more it is 16 images of one process), "
    "and masks are resized bilinearly.",
    "Every process wrote the same file, so a log is that of the process that wrote last.",
)


def campaign_text(runs: Sequence[CampaignRun]) -> str:
    """Return the table and the warnings for a terminal."""
    warnings = ["Before you rely on this:", *(f"- {warning}" for warning in WARNINGS)]
    table = [HEADING, *plain_text(campaign_rows(runs))]
    return "\n\n".join(["\n".join(table), "\n".join(warnings)])


def campaign_json(runs: Sequence[CampaignRun]) -> dict[str, Any]:
    """Return the runs with unrounded numbers, and the warnings, for JSON."""
    return {
        "schema_version": CAMPAIGN_VERSION,
        "runs": [_facts(run) for run in runs],
        "doubts": list(WARNINGS),
    }


def write_campaign_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write report.md and cells.csv into `out`, by default FOLDER/report; return report.md."""
    runs = read_campaign(folder)
    target = Path(out) if out is not None else Path(folder) / "report"
    RunFolder(target).create()
    warnings = "\n".join(f"- {warning}" for warning in WARNINGS)
    text = (
        f"# {Path(folder).resolve().name}\n\n**Before you rely on this:**\n\n{warnings}\n\n"
        f"{HEADING}\n\n{markdown_text(campaign_rows(runs))}\n"
    )
    write_atomic(target / "cells.csv", csv_text([_facts(run) for run in runs]))
    write_atomic(target / "report.md", text)
    return target / "report.md"


def campaign_rows(runs: Sequence[CampaignRun]) -> list[dict[str, str]]:
    """Return a row for each run, as texts."""
    return [
        {
            "backend": run.way,
            "GPUs": str(run.num_gpus),
            "epochs": str(len(run.epoch_seconds)),
            "seconds an epoch": f"{fmean(run.epoch_seconds):.3f}",
            "efficiency": f"{run.efficiency:.3f}",
            "by medians": f"{run.median_efficiency:.3f}",
            "serial share": _share_text(run),
        }
        for run in runs
    ]


def _share_text(run: CampaignRun) -> str:
    share = _serial_share(run)
    return NONE if share is None or not is_serial_share(share) else f"{share:.3f}"


def _serial_share(run: CampaignRun) -> float | None:
    if run.num_gpus == 1:
        return None
    # All runs have the same data set, so an epoch is strong scaling.
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
        "serial_share": _serial_share(run),
    }
