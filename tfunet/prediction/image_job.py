"""Predicts one image in bands of rows, which an ended process goes on from."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tfunet.config.amount import GIB
from tfunet.data.image_files import read_header
from tfunet.data.intensity_checks import IntensityChecks, watched
from tfunet.data.lazy_image import LazyImage
from tfunet.data.preprocess import Statistics, recorded_statistics
from tfunet.files.atomic import PARTIAL, write_atomic
from tfunet.files.printable import printable
from tfunet.files.regular import remove_files
from tfunet.files.typed import Finite, RecordError, read_json
from tfunet.geometry.tiles import Tiling, bands
from tfunet.learning.outputs import Outputs
from tfunet.prediction import output
from tfunet.prediction.cleaning import Cleaning
from tfunet.prediction.ensemble import Member, mean_probabilities
from tfunet.prediction.jobs import Job
from tfunet.prediction.mask_values import MaskValues
from tfunet.prediction.network import Forward, WindowFacts
from tfunet.prediction.overlay_picture import write_overlay
from tfunet.prediction.prepare import check_memory
from tfunet.prediction.raster import RawFile, raster_of
from tfunet.prediction.windows import predictor, tiling_of
from tfunet.process.terminal import lines_of
from tfunet.record import LOCK, RunFolder

# A line says so where an image of at least this size has to be in memory as a whole.
LARGE_BYTES = 2**28
BEGUN = "begun.json"
ROWS = ("labels.raw", "probabilities.raw")
CLEANED = "cleaned.raw"
# Follows what the intensities of an image say.
UNLIKE = (
    "Save it as the training images were, in bits and scale: of other values the prediction says "
    "nothing."
)
# All that we write into the folder of an unfinished prediction.
WORK_FILES = (BEGUN, *ROWS, CLEANED, LOCK, f"{PARTIAL}*")


@dataclass(frozen=True)
class Begun:
    """What begun.json holds of a prediction that is not finished."""

    identity: dict[str, Any]
    statistics: list[list[list[Finite]] | None]


@dataclass(frozen=True, kw_only=True)
class How:
    """What the predictions of all images share.

    Args:
        forward_of: The window to (number of logits, function) of each network.
        facts: What the networks say about windows with a halo; None for blended ones.
        written: The values that labels are written as; None for the labels themselves.
    """

    members: tuple[Member, ...]
    cleaning: Cleaning
    facts: WindowFacts | None
    forward_of: Callable[[tuple[int, ...]], list[tuple[int, Forward]]]
    written: MaskValues | None


def run_job(job: Job, identity: dict[str, Any], how: How) -> Tiling:
    """Predict one image, or the rest of it, and write the prediction; return its tiling."""
    started = time.perf_counter()
    work = RunFolder(job.unfinished)
    work.create()
    network, prepare = how.members[0].network, how.members[0].prepare
    with work.locked():
        images = [member.prepare.open(job.files) for member in how.members]
        tiling = tiling_of(images[0].shape, identity["window"], identity["halo"], how.facts)
        labels, probabilities = _predicted(job, identity, how, images, tiling)
        if how.cleaning:
            labels = _cleaned(job, labels, how.cleaning)
        num_probabilities = network.outputs.num_probabilities
        _finish(job, (labels, probabilities), num_probabilities, prepare.axes, how.written)
        if job.overlay is not None:
            # On the image as it is stored, which says more than one that was resampled.
            stored = images[0]
            if prepare.target_pixel_size is not None:
                stored = replace(prepare, target_pixel_size=None).open(job.files)
            rows = raster_of(labels, stored.shape, None).rows
            write_overlay(job.overlay, stored, rows, network.label_names(), title=job.name)
        content = {
            **identity,
            **network.channels_as_json(),
            "classes": network.classes(),
            **network.outputs.as_json(),
            "seconds": round(time.perf_counter() - started, 3),
        }
        write_atomic(job.facts, json.dumps(content, indent=1) + "\n")
    remove_work(job)
    return tiling


def remove_work(job: Job) -> None:
    """Remove what an unfinished prediction left."""
    remove_files(job.unfinished, WORK_FILES)


def _predicted(
    job: Job, identity: dict[str, Any], how: How, images: Sequence[LazyImage], tiling: Tiling
) -> tuple[RawFile, RawFile | None]:
    """Return the labels, and the probabilities if they are asked for, of the whole image."""
    image, outputs, work = images[0], how.members[0].network.outputs, job.unfinished
    num_bytes = math.prod(image.shape) * image.channels * 4
    if not image.by_parts and num_bytes >= LARGE_BYTES:
        why = f"its format cannot be read in parts; {num_bytes / GIB:.1f} GiB are in memory."
        print(lines_of(f"{job.name}: {why}"))
    statistics = _begin(work, identity, how.members, images)
    forwards = how.forward_of(tiling.window)
    _check_bands(job, tiling, sum(num_logits for num_logits, _ in forwards))
    labels = RawFile(path=work / "labels.raw", shape=image.shape, dtype="uint8")
    probabilities = None
    if job.probabilities is not None:
        shape = (*image.shape, outputs.num_probabilities)
        probabilities = RawFile(path=work / "probabilities.raw", shape=shape, dtype="float32")
    first_row = _resumed_row(job, [labels, probabilities], tiling)
    if first_row < image.shape[0]:
        checks = [
            IntensityChecks(member.prepare.intensity, member.network.value_ends)
            for member in how.members
        ]
        normalised = [
            member.prepare.normalised(watched(each, check), values)
            for member, each, values, check in zip(
                how.members, images, statistics, checks, strict=True
            )
        ]
        for band in _bands(job, tiling, first_row, normalised, forwards, identity["batch"]):
            if probabilities is not None:
                probabilities.append(mean_probabilities(outputs, band))
            labels.append(_labels(outputs, band))
        for note in dict.fromkeys(note for check in checks for note in check.notes()):
            what = f"{job.files[0]}: {note}. {UNLIKE}"
            print(lines_of(f"warning: {what}"), file=sys.stderr, flush=True)
    return labels, probabilities


def _labels(outputs: Outputs, logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the labels of a band, from the logits of each network."""
    if len(logits) == 1:
        return outputs.labels(logits[0]).numpy().astype(np.uint8)
    return outputs.most_probable(mean_probabilities(outputs, logits))


def _cleaned(job: Job, labels: RawFile, cleaning: Cleaning) -> RawFile:
    """Return the labels without the components that are not kept, in a file of their own."""
    voxels = math.prod(labels.shape)
    check_memory(job.files[0], 16 * voxels, "components are found in the whole image")
    cleaned = replace(labels, path=labels.path.with_name(CLEANED))
    cleaned.path.unlink(missing_ok=True)
    cleaned.append(cleaning.apply(labels.rows(0, labels.shape[0])))
    return cleaned


def _begin(
    work: Path, identity: dict[str, Any], members: Sequence[Member], images: Sequence[LazyImage]
) -> list[Statistics | None]:
    """Return the image's statistics for each network, from an earlier attempt if there is one.

    Otherwise remove what another attempt left.
    """
    path = work / BEGUN
    try:
        begun = read_json(path, Begun)
    except RecordError:
        begun = None
    if begun is not None and begun.identity == identity:
        return [
            None if recorded is None else recorded_statistics(recorded)
            for recorded in begun.statistics
        ]
    for name in ROWS:
        (work / name).unlink(missing_ok=True)
    statistics = [
        member.prepare.statistics(image) for member, image in zip(members, images, strict=True)
    ]
    values = [None if each is None else [array.tolist() for array in each] for each in statistics]
    write_atomic(path, json.dumps({"identity": identity, "statistics": values}))
    return statistics


def _check_bands(job: Job, tiling: Tiling, num_logits: int) -> None:
    rows = max(part.stop - part.start for part in tiling.axes[0])
    rest = math.prod(len(total) for total in tiling.totals[1:])
    # The rows that are held, the new part of them, and the band that is being written.
    check_memory(
        job.files[0],
        3 * rows * rest * num_logits * 4,
        f"the logits of {rows} rows. A window that is shorter along the first axis needs less",
    )


def _resumed_row(job: Job, raws: Sequence[RawFile | None], tiling: Tiling) -> int:
    """Return how many rows an earlier attempt finished, and cut off the rest of its rows."""
    files = [raw for raw in raws if raw is not None]
    rows = tiling.rows_done(min(file.num_rows() for file in files))
    for file in files:
        file.cut(rows)
    if rows:
        print(lines_of(f"{job.name}: going on at row {rows} of {tiling.extent[0]}."), flush=True)
    return rows


def _bands(
    job: Job,
    tiling: Tiling,
    first_row: int,
    images: Sequence[LazyImage],
    forwards: Sequence[tuple[int, Forward]],
    batch: int,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the logits of each network in bands, and show how many windows are done."""
    with tqdm(
        total=len(images) * tiling.num_windows,
        initial=len(images) * (tiling.num_windows - tiling.windows_from(first_row)),
        desc=printable(job.name),
        unit="tile",
        leave=False,
        disable=not sys.stderr.isatty(),
    ) as bar:
        yield from zip(
            *(
                bands(tiling, predictor(tiling, image, forward, batch, bar), num, first_row)
                for image, (num, forward) in zip(images, forwards, strict=True)
            ),
            strict=True,
        )


def _finish(
    job: Job,
    raws: tuple[RawFile, RawFile | None],
    num_probabilities: int,
    axes: str | None,
    written: MaskValues | None,
) -> None:
    header = read_header(job.files[0], axes=axes)
    for raw, path, classes in zip(
        raws, (job.labels, job.probabilities), (None, num_probabilities), strict=True
    ):
        if raw is not None and path is not None:
            raster = raster_of(raw, header.shape, classes)
            is_labels = classes is None
            raster = written.raster(raster) if is_labels and written is not None else raster
            output.write(
                job.format if is_labels else output.format_of_probabilities(job.format),
                raster,
                path,
                image=job.files[0],
                spacing=header.spacing,
                unit=header.unit,
            )
