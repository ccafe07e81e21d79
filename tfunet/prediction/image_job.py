"""Predicts one image in bands of rows, which other processes help with or go on from."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from tqdm import tqdm

from tfunet.config.amount import GIB
from tfunet.data.image_files import read_header
from tfunet.data.intensity_checks import IntensityChecks, watched
from tfunet.data.lazy_image import cuts
from tfunet.data.preprocess import Statistics, recorded_statistics
from tfunet.files.atomic import PARTIAL, WriteError, write_atomic
from tfunet.files.printable import printable
from tfunet.files.regular import remove_files
from tfunet.files.typed import Finite, RecordError, read_json
from tfunet.geometry.tiles import SumOf, Tiling, bands
from tfunet.learning.outputs import Outputs
from tfunet.prediction import output
from tfunet.prediction.cleaning import Cleaning
from tfunet.prediction.ensemble import Member, mean_probabilities
from tfunet.prediction.jobs import Job, is_finished
from tfunet.prediction.mask_values import MaskValues
from tfunet.prediction.network import Forward, WindowFacts
from tfunet.prediction.overlay_picture import write_overlay
from tfunet.prediction.prepare import Preparation, check_memory
from tfunet.prediction.raster import RawFile, raster_of
from tfunet.prediction.shared_lines import CLAIMS, SUMS, SharedLines
from tfunet.prediction.windows import predictor, tiling_of
from tfunet.process.terminal import lines_of
from tfunet.record import LOCK, InUseError, RunFolder

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
WORK_FILES = (BEGUN, *ROWS, CLEANED, LOCK, CLAIMS, SUMS, f"{PARTIAL}*")


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

    @cached_property
    def seen(self) -> tuple[Member, ...]:
        """A network for each way in which an image is prepared: it is read once for each."""
        return tuple(
            member
            for at, member in enumerate(self.members)
            if all(_way(member) != _way(other) for other in self.members[:at])
        )

    def joint(self, window: tuple[int, ...]) -> tuple[list[int], Callable[..., np.ndarray]]:
        """Return the number of logits of each network, and a function that computes all of them.

        It takes windows as each of `seen` prepares them.
        """
        forwards = self.forward_of(window)
        ways = [_way(member) for member in self.seen]
        places = [ways.index(_way(member)) for member in self.members]

        def forward(*windows: np.ndarray) -> np.ndarray:
            every = [one(windows[place]) for place, (_, one) in zip(places, forwards, strict=True)]
            return every[0] if len(every) == 1 else np.concatenate(every, -1)

        return [num_logits for num_logits, _ in forwards], forward


def _way(member: Member) -> tuple[Preparation, tuple[float, ...]]:
    return member.prepare, member.network.value_ends


@final
class ImageJob:
    """The prediction of one image, which several processes may share.

    Args:
        identity: All that it depends on.

    Attributes:
        notes: What the user must know of the image, once it is predicted.
    """

    def __init__(self, job: Job, identity: dict[str, Any], how: How) -> None:
        self.job, self._identity, self._how = job, identity, how
        self._images = [member.prepare.open(job.files) for member in how.seen]
        self.tiling = tiling_of(
            self._images[0].shape, identity["window"], identity["halo"], how.facts
        )
        self._num_logits, self._forward = how.joint(self.tiling.window)
        self._checks = [
            IntensityChecks(member.prepare.intensity, member.network.value_ends)
            for member in how.seen
        ]
        self.notes: list[str] = []
        self._locked = contextlib.ExitStack()
        self._sum: np.ndarray | None = None

    def compute(self) -> bool:
        """Predict the image, or the rest of it; `finish` must come next.

        Returns whether there was anything to do. Raises InUseError where another process does it.
        """
        self._started = time.perf_counter()
        work = RunFolder(self.job.unfinished)
        work.create()
        with contextlib.ExitStack() as locked:
            try:
                locked.enter_context(work.locked())
            except WriteError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # Another process has just finished it, and removed the folder.
                raise InUseError(str(error)) from error
            if is_finished(self.job, self._identity):
                remove_work(self.job)
                return False
            self._raws = self._predicted()
            self._locked = locked.pop_all()
            return True

    def help(self) -> bool:
        """Compute parts of an image that another process puts together; whether there was one."""
        did = False
        begun = _read_begun(self.job.unfinished, self._identity)
        with contextlib.suppress(FileNotFoundError):
            if begun is not None:
                with self._lines(begun) as lines:
                    while lines.help():
                        did = True
        return did

    def release(self) -> None:
        """Leave the image, which was computed, to others."""
        self._locked.close()

    def finish(self) -> None:
        """Write the prediction, which has been computed."""
        how, job = self._how, self.job
        network, prepare = how.members[0].network, how.members[0].prepare
        with self._locked:
            labels, probabilities = self._raws
            if how.cleaning:
                labels = _cleaned(job, labels, how.cleaning)
            num_probabilities = network.outputs.num_probabilities
            _finish(job, (labels, probabilities), num_probabilities, prepare.axes, how.written)
            if job.overlay is not None:
                # On the image as it is stored, which says more than one that was resampled.
                stored = self._images[0]
                if prepare.target_pixel_size is not None:
                    stored = replace(prepare, target_pixel_size=None).open(job.files)
                rows = raster_of(labels, stored.shape, None).rows
                write_overlay(job.overlay, stored, rows, network.label_names(), title=job.name)
            self.seconds = time.perf_counter() - self._started
            content = {
                **self._identity,
                **network.channels_as_json(),
                "classes": network.classes(),
                **network.outputs.as_json(),
                "seconds": round(self.seconds, 3),
                **({"warnings": self.notes} if self.notes else {}),
            }
            write_atomic(job.facts, json.dumps(content, indent=1) + "\n")
        remove_work(job)

    def _lines(
        self, statistics: Sequence[Statistics | None], num_done: int | None = None
    ) -> SharedLines:
        tiling = self.tiling
        images = [
            member.prepare.normalised(watched(image, check), values)
            for member, image, values, check in zip(
                self._how.seen, self._images, statistics, self._checks, strict=True
            )
        ]
        predict = predictor(tiling, images, self._forward, self._identity["batch"])

        def sum_of(line: int) -> np.ndarray:
            # In the memory of the one before, which has been used.
            self._sum = tiling.line_sum(line, predict, sum(self._num_logits), self._sum)
            return self._sum

        return SharedLines(self.job.unfinished, len(tiling.lines), sum_of, num_done)

    def _predicted(self) -> tuple[RawFile, RawFile | None]:
        """Return the labels, and the probabilities if they are asked for, of the whole image."""
        job, tiling, image = self.job, self.tiling, self._images[0]
        outputs, work = self._how.members[0].network.outputs, self.job.unfinished
        num_bytes = math.prod(image.shape) * image.channels * 4
        if not image.by_parts and num_bytes >= LARGE_BYTES:
            why = f"its format cannot be read in parts; {num_bytes / GIB:.1f} GiB are in memory."
            print(lines_of(f"{job.name}: {why}"))
        _check_bands(job, tiling, sum(self._num_logits))
        statistics = self._begin()
        labels = RawFile(path=work / "labels.raw", shape=image.shape, dtype="uint8")
        probabilities = None
        if job.probabilities is not None:
            shape = (*image.shape, outputs.num_probabilities)
            probabilities = RawFile(path=work / "probabilities.raw", shape=shape, dtype="float32")
        first_row = _resumed_row(job, [labels, probabilities], tiling)
        if first_row == image.shape[0]:
            return labels, probabilities
        with self._lines(statistics, tiling.lines_before(first_row)) as lines:
            ends = np.cumsum(self._num_logits)[:-1]
            for band in bands(tiling, _shown(job, tiling, first_row, lines.take), first_row):
                for first, last in cuts(band.shape[:-1], band.shape[-1]):
                    logits = np.split(band[first:last], ends, -1)
                    if probabilities is not None:
                        probabilities.append(mean_probabilities(outputs, logits))
                    labels.append(_labels(outputs, logits))
        notes = dict.fromkeys(note for check in self._checks for note in check.notes())
        self.notes += [f"{note}. {UNLIKE}" for note in notes]
        return labels, probabilities

    def _begin(self) -> list[Statistics | None]:
        """Return the statistics for each of `seen`, from an earlier attempt if there is one.

        Otherwise remove what another attempt left.
        """
        work = self.job.unfinished
        begun = _read_begun(work, self._identity)
        if begun is not None:
            return begun
        for pattern in (BEGUN, *ROWS, CLAIMS, SUMS):
            for path in work.glob(pattern):
                path.unlink(missing_ok=True)
        statistics = [
            member.prepare.statistics(image)
            for member, image in zip(self._how.seen, self._images, strict=True)
        ]
        values = [None if each is None else [part.tolist() for part in each] for each in statistics]
        content = {"identity": self._identity, "statistics": values}
        write_atomic(work / BEGUN, json.dumps(content))
        return statistics


def is_of_another(job: Job, identity: dict[str, Any]) -> bool:
    """Whether what is begun there is a prediction with other options, or of another image."""
    try:
        begun = read_json(job.unfinished / BEGUN, Begun)
    except RecordError:
        return False
    return begun is not None and begun.identity != identity


def _read_begun(work: Path, identity: dict[str, Any]) -> list[Statistics | None] | None:
    """Return the statistics of a prediction that was begun with this identity; None without one."""
    try:
        begun = read_json(work / BEGUN, Begun)
    except RecordError:
        begun = None
    if begun is None or begun.identity != identity:
        return None
    return [
        None if recorded is None else recorded_statistics(recorded) for recorded in begun.statistics
    ]


def remove_work(job: Job) -> None:
    """Remove what an unfinished prediction left."""
    remove_files(job.unfinished, WORK_FILES)


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


def _check_bands(job: Job, tiling: Tiling, num_logits: int) -> None:
    rows = max(part.stop - part.start for part in tiling.axes[0])
    rest = math.prod(len(total) for total in tiling.totals[1:])
    # The rows that are held, those with a new part, a line, and the band that is being written.
    check_memory(
        job.files[0],
        4 * rows * rest * num_logits * 4,
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


def _shown(job: Job, tiling: Tiling, first_row: int, sum_of: SumOf) -> SumOf:
    """Return a function that shows how many windows are done."""
    per_line = tiling.num_windows // len(tiling.lines)
    bar = tqdm(
        total=tiling.num_windows,
        initial=tiling.num_windows - tiling.windows_from(first_row),
        desc=printable(job.name),
        unit="tile",
        leave=False,
        disable=not sys.stderr.isatty(),
    )

    def shown(line: int) -> np.ndarray:
        total = sum_of(line)
        bar.update(per_line)
        if line == len(tiling.lines) - 1:
            bar.close()
        return total

    return shown


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
