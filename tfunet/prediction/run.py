"""Predicts whole images with the network of a finished run: `tfunet predict`."""

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from inspect import formatannotation
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tfunet import __version__
from tfunet.config.option_types import check_option_types
from tfunet.data.defects import Defect, lines_by_cause
from tfunet.data.image_files import read_header
from tfunet.data.intensity_checks import IntensityChecks, watched
from tfunet.data.lazy_image import LazyImage
from tfunet.data.preprocess import Statistics, recorded_statistics
from tfunet.files.atomic import PARTIAL, write_atomic, writing
from tfunet.files.printable import check_utf8, printable
from tfunet.files.regular import open_to_read, remove_files
from tfunet.files.typed import Finite, RecordError, read_json
from tfunet.geometry.tiles import Predict, Tiling, bands, blended, with_halo
from tfunet.learning.outputs import Outputs
from tfunet.prediction import output
from tfunet.prediction.best_file import BEST, read_best
from tfunet.prediction.cleaning import Cleaning
from tfunet.prediction.ensemble import (
    Member,
    joint_facts,
    joint_patch,
    load_members,
    mean_probabilities,
)
from tfunet.prediction.inputs import find_named_images
from tfunet.prediction.jobs import Job, identity_of, is_finished, plan_jobs
from tfunet.prediction.mask_values import LABELS, VALUES, MaskValues, check_holds, mask_values
from tfunet.prediction.network import Facts, Forward, Network
from tfunet.prediction.overlay_picture import NO_DRAWING, drawing, write_overlay
from tfunet.prediction.pixel_sizes import other_sizes
from tfunet.prediction.prepare import Preparation, check_memory
from tfunet.prediction.raster import RawFile, raster_of
from tfunet.process.terminal import counted, lines_of
from tfunet.record import LOCK, RunFolder

WAYS = ("gaussian", "halo")
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

# The window to (number of logits, function) of each network.
ForwardOf = Callable[[tuple[int, ...]], list[tuple[int, Forward]]]


@dataclass(frozen=True)
class Begun:
    """What begun.json holds of a prediction that is not finished."""

    identity: dict[str, Any]
    statistics: list[list[list[Finite]] | None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to predict.

    Args:
        tiles: "gaussian": windows overlap by half, weighted by a Gaussian (nnU-Net). "halo": each
            voxel comes from one window, with a halo of context around it.
        window: Spatial shape of a window. By default the patch of the training; with a halo at
            least eight times the halo in a plane, and four times in a volume.
        halo: Voxels of context to each side. By default as far as the network looks: exact.
        batch: Windows that the device takes at once.
        format: tiff, nifti, zarr or png. By default that of the image, or TIFF.
        probabilities: Write the probabilities of each class or region, too.
        weights: A file of weights in the run's folder; by default those that it ended with.
        overlay: Draw the labels over the image, too, where matplotlib is installed.
        pixel_size: Pixel size of the images, if the run resampled them and they do not state it.
        ensemble: Further runs. The prediction is the mean of the probabilities of all runs.
        mirror: Predict mirrored windows, too, along the axes along which training images were
            mirrored, and take the mean of the logits (nnU-Net).
        values: "labels": the prediction holds 0, 1, 2, ... "masks": it holds the values, or
            colours, of the masks that the run was trained on.
    """

    tiles: str = "gaussian"
    window: tuple[int, ...] | None = None
    halo: int | None = None
    batch: int = 1
    format: str | None = None
    probabilities: bool = False
    weights: str | None = None
    overlay: bool = True
    pixel_size: tuple[float, ...] | None = None
    ensemble: tuple[Path, ...] = ()
    mirror: bool = False
    values: str = LABELS

    def __post_init__(self) -> None:
        types = {key.name: formatannotation(key.type) for key in fields(self)}
        check_option_types("", "", vars(self), types)
        if self.tiles not in WAYS:
            raise ValueError(f"Unknown tiles {self.tiles!r}. Known: {', '.join(WAYS)}.")
        if self.values not in VALUES:
            raise ValueError(f"Unknown values {self.values!r}. Known: {', '.join(VALUES)}.")
        if self.window is not None and min(self.window, default=0) < 1:
            raise ValueError(
                f"--window must have positive sizes, got {','.join(map(str, self.window))}."
            )
        if self.halo is not None and self.tiles != "halo":
            raise ValueError("--halo is for --tiles halo: give that too.")
        if self.halo is not None and self.halo < 0:
            raise ValueError(f"--halo must not be negative, got {self.halo}.")
        if self.batch < 1:
            raise ValueError(f"--batch must be at least 1, got {self.batch}.")
        if self.format is not None and self.format not in output.SUFFIXES:
            raise ValueError(
                f"Unknown format {self.format!r}. Known: {', '.join(output.SUFFIXES)}."
            )


def predict(
    run: Path,
    images: Sequence[str],
    out: Path,
    options: Options,
    *,
    names: Sequence[str] | None = None,
    is_prepared: bool = False,
    skip_bad: bool = False,
) -> list[Path]:
    """Predict images with a run's network; return the files with their labels.

    Args:
        run: Folder of a finished run, or of a study with a best.json.
        images: Paths, folders and patterns, as `find_named_images` reads them.
        out: Folder for the predictions. An unfinished prediction there is continued.
        options: How to predict.
        names: A name for each prediction, where each image is a path; by default that of the image.
        is_prepared: Whether the images are as the code of the run's data set prepares them.
        skip_bad: Whether to leave out images that cannot be predicted, with a warning for each
            cause.

    Raises ValueError for a mistake in the run, the images or the options, if possible before the
    first prediction; WriteError if a file cannot be written.
    """
    members, cleaning = followed(run, options)
    if is_prepared:
        members = tuple(replace(member, prepare=Preparation()) for member in members)
    network, prepare = members[0].network, members[0].prepare
    has_overlay = options.overlay and drawing() is not None
    if options.overlay and not has_overlay:
        print(NO_DRAWING)
    written = written_values(network, options)
    advice = "" if names is not None else "\nTo leave them out, give --on_bad_sample skip."
    if names is None:
        found = find_named_images(images, prepare.num_files)
        images, names = [image for image, _ in found], [name for _, name in found]
    jobs = plan_jobs(
        images,
        out,
        written.format if options.format is None and written is not None else options.format,
        probabilities=options.probabilities,
        overlay=has_overlay,
        names=names,
    )
    facts = joint_facts(members) if options.tiles == "halo" else None
    window, halo = _window(members, options, facts)
    jobs, headers = _fit(jobs, members, written, advice, skip_bad=skip_bad)
    tilings = [_tiling(tuple(each.shape), window, halo, facts) for each in headers]
    forward_of = lru_cache(maxsize=4)(lambda window: [member.forward(window) for member in members])
    # Fails before anything is written if a network does not take the window.
    forward_of(tilings[0].window)
    warnings = _warnings(members, options, facts, halo, is_prepared=is_prepared)
    sized = [(job.name, each.spacing, each.unit) for job, each in zip(jobs, headers, strict=True)]
    for line in filter(
        None, [*warnings, other_sizes(network.pixel_sizes, network.pixel_unit, sized)]
    ):
        print(lines_of(f"warning: {line}"), file=sys.stderr, flush=True)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    how: dict[str, Any] = {
        "tfunet": __version__,
        "run": str(run),
        "weights_sha256": _sha256(network.path),
        "preparation": _without_unit(prepare),
        "tiles": options.tiles,
        "window": window,
        "halo": halo,
        "batch": options.batch,
        "probabilities": options.probabilities,
    }
    if len(members) > 1:
        how["ensemble"] = [
            {
                "run": str(member.run),
                "weights_sha256": _sha256(member.network.path),
                "preparation": _without_unit(member.prepare),
            }
            for member in members[1:]
        ]
    if any(member.mirrored for member in members):
        how["mirrored_axes"] = [member.mirrored for member in members]
    if cleaning:
        how["cleaning"] = cleaning.as_json()
    if written is not None:
        how["values"] = written.shown
    identities = [identity_of(job, json.loads(json.dumps(how))) for job in jobs]
    done = [is_finished(job, identity) for job, identity in zip(jobs, identities, strict=True)]
    for job, identity, is_done in zip(jobs, identities, done, strict=True):
        if is_done:
            remove_files(job.unfinished, WORK_FILES)  # It was killed at the very end.
            print(lines_of(f"{job.name}: done already, {job.labels}"), flush=True)
            continue
        started = time.perf_counter()
        tiling = _run_job(job, identity, members, cleaning, facts, forward_of, written)
        size, windows = (" x ".join(map(str, shape)) for shape in (tiling.extent, tiling.window))
        seconds = f"{time.perf_counter() - started:.1f} s"
        count = counted(tiling.num_windows, "window")
        line = f"{job.name}: {size} in {count} of {windows}, {seconds}"
        print(lines_of(f"{line}, {job.labels}"), flush=True)
    return [job.labels for job in jobs]


def _fit(
    jobs: Sequence[Job],
    members: Sequence[Member],
    written: MaskValues | None,
    advice: str,
    *,
    skip_bad: bool,
) -> tuple[list[Job], list[LazyImage]]:
    """Return the jobs whose images can be predicted, with these images.

    Raises ValueError for all others, unless `skip_bad`; then a warning names them.
    """
    fit, images, defects = [], [], []
    for job in jobs:
        try:
            check_utf8(str(job.files[0]))
            for member in members:
                member.network.check_files(job.files)
            image = members[0].prepare.open(job.files)
            _check_image(job, image, members[0].network)
            if written is not None:
                check_holds(job.format, job.files[0], written)
        except ValueError as error:
            if len(jobs) == 1:
                raise
            file = str(job.files[0])
            what = str(error).removeprefix(f"{file}: ")
            defects.append(Defect(file=file, what=what, case_id=job.name))
            continue
        fit.append(job)
        images.append(image)
    lines = lines_by_cause(defects, most=None)
    if defects and not (skip_bad and fit):
        what = f"{len(defects)} of {len(jobs)} images cannot be predicted:"
        raise ValueError("\n".join([what, *(f"  {line}" for line in lines)]) + advice * bool(fit))
    for line in lines:
        print(lines_of(f"warning: left out: {line}"), file=sys.stderr, flush=True)
    return fit, images


def _without_unit(prepare: Preparation) -> dict[str, Any]:
    """Return how images are prepared, as earlier versions wrote it beside a prediction."""
    return {key: value for key, value in asdict(prepare).items() if key != "unit"}


def written_values(network: Network, options: Options) -> MaskValues | None:
    """Return the values that predictions are written in; None for the labels themselves.

    Raises ValueError where those of the masks are asked for and not known.
    """
    return None if options.values == LABELS else mask_values(network.mask_values)


def followed(run: Path, options: Options) -> tuple[tuple[Member, ...], Cleaning]:
    """Return the networks that predict together, and what is removed from their labels.

    The best.json of a study names these networks.
    """
    best = None if (run / "config.json").exists() else read_best(run)
    if best is not None and options.ensemble:
        raise ValueError(
            f"{run / BEST} names the runs that predict together. Leave out --ensemble, or name a "
            "run instead of the study."
        )
    members = load_members(
        [run, *options.ensemble] if best is None else best.runs,
        weights=options.weights,
        pixel_size=options.pixel_size,
        mirror=options.mirror or (best is not None and best.mirror),
    )
    return members, Cleaning() if best is None else best.cleaning


def _check_image(job: Job, image: LazyImage, network: Network) -> None:
    if len(image.shape) != len(network.patch) or image.channels != network.channels:
        raise ValueError(
            f"{job.files[0]}: a {len(image.shape)}D image with "
            f"{counted(image.channels, 'channel')}; the network was trained on "
            f"{len(network.patch)}D images with {network.channels}.{_conversion(image, network)}"
        )
    output.check_rank(job.format, job.files[0], len(image.shape))


def _conversion(image: LazyImage, network: Network) -> str:
    """Return what to do with a colour image where the network takes grey ones, and vice versa."""
    if len(image.shape) != len(network.patch):
        return ""
    if network.channels == 1 and image.channels > 1:
        return (
            " Save it in grey, such as with Pillow: Image.open(FILE).convert('L').save(NEW). A run "
            "with grey = true under [data_options] takes both."
        )
    if network.channels == 3 and image.channels == 1:
        return " Save it in colour, such as with Pillow: Image.open(FILE).convert('RGB').save(NEW)."
    return ""


def _window(
    members: Sequence[Member], options: Options, facts: Facts | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape of a window, and its halo along each axis."""
    rank = len(members[0].network.patch)
    if options.window is not None and len(options.window) != rank:
        raise ValueError(
            f"--window {','.join(map(str, options.window))} has {len(options.window)} sizes; this "
            f"network takes {rank}."
        )
    if facts is None:
        return options.window or joint_patch(members), None
    if options.halo is None and facts.reach is None:
        raise ValueError(
            f"It is not known how far this network looks ({facts.reach_unknown}). Give --halo, or "
            "use --tiles gaussian."
        )
    halo = (options.halo,) * rank if options.halo is not None else facts.reach or ()
    # In a window that is 8 halos wide, 56 % are no halo. In a volume it would be too large.
    halos = 8 if rank == 2 else 4
    patch = joint_patch(members) if options.window is None else options.window
    sizes = [
        max(length, -(-halos * margin // step) * step)
        for length, margin, step in zip(patch, halo, facts.alignment, strict=True)
    ]
    return options.window or tuple(sizes), halo


def _tiling(
    shape: Sequence[int],
    window: Sequence[int],
    halo: Sequence[int] | None,
    facts: Facts | None,
) -> Tiling:
    if facts is None or halo is None:
        return blended(shape, window)
    return with_halo(shape, window, halo, facts.alignment)


def _warnings(
    members: Sequence[Member],
    options: Options,
    facts: Facts | None,
    halo: tuple[int, ...] | None,
    *,
    is_prepared: bool,
) -> list[str]:
    """Return what the user must know about this prediction."""
    lines = []
    network = members[0].network
    without = [str(member.run) for member in members if not member.mirrored]
    if 0 < len(without) < len(members):
        lines.append(f"not mirrored, since trained without flips: {', '.join(without)}.")
    if network.preparation is None and not is_prepared:
        lines.append(
            f"the data set of this run, {network.config.data!r}, prepares its images in code of "
            "its own, which does not run here: images are taken as they are stored. Give its "
            "DataSource a preparation if it prepares files as tfunet does, or give prepared images."
        )
    if facts is not None and facts.statistics_layers:
        lines.append(
            f"this network normalizes by statistics of all of its input "
            f"({facts.statistics_layers[0]} and {len(facts.statistics_layers) - 1} more layers): "
            "NO HALO MAKES ITS TILES EQUAL TO A PREDICTION OF THE WHOLE IMAGE. Expect seams; "
            "--tiles gaussian blends them."
        )
    if facts is not None and facts.reach is None:
        lines.append(
            f"it is not known how far this network looks ({facts.reach_unknown}): the prediction "
            "may differ from that of the whole image."
        )
    reach = None if facts is None else facts.reach
    if halo and reach and any(given < far for given, far in zip(halo, reach, strict=True)):
        lines.append(
            f"a halo of {options.halo} is less than the {max(reach)} voxels that this network "
            "looks: near the borders of tiles the prediction differs from that of the whole image."
        )
    return lines


def _run_job(
    job: Job,
    identity: dict[str, Any],
    members: Sequence[Member],
    cleaning: Cleaning,
    facts: Facts | None,
    forward_of: ForwardOf,
    written: MaskValues | None,
) -> Tiling:
    started = time.perf_counter()
    work = RunFolder(job.unfinished)
    work.create()
    with work.locked():
        images = [member.prepare.open(job.files) for member in members]
        image = images[0]
        num_bytes = math.prod(image.shape) * image.channels * 4
        if not image.by_parts and num_bytes >= LARGE_BYTES:
            why = f"its format cannot be read in parts; {num_bytes / 2**30:.1f} GiB are in memory."
            print(lines_of(f"{job.name}: {why}"))
        statistics = _begin(work.path, identity, members, images)
        tiling = _tiling(image.shape, identity["window"], identity["halo"], facts)
        network = members[0].network
        forwards = forward_of(tiling.window)
        _check_bands(job, tiling, sum(num_logits for num_logits, _ in forwards))
        num_probabilities = network.outputs.num_probabilities
        labels = RawFile(path=work.path / "labels.raw", shape=image.shape, dtype="uint8")
        probabilities = None
        if job.probabilities is not None:
            path, shape = work.path / "probabilities.raw", (*image.shape, num_probabilities)
            probabilities = RawFile(path=path, shape=shape, dtype="float32")
        first_row = _resumed_row(job, [labels, probabilities], tiling)
        if first_row < image.shape[0]:
            checks = [
                IntensityChecks(member.prepare.intensity, member.network.value_ends)
                for member in members
            ]
            normalised = [
                member.prepare.normalised(watched(each, check), values)
                for member, each, values, check in zip(
                    members, images, statistics, checks, strict=True
                )
            ]
            for band in _bands(job, tiling, first_row, normalised, forwards, identity["batch"]):
                if probabilities is not None:
                    probabilities.append(mean_probabilities(network.outputs, band))
                labels.append(_labels(network.outputs, band))
            for note in dict.fromkeys(note for check in checks for note in check.notes()):
                what = f"{job.files[0]}: {note}. {UNLIKE}"
                print(lines_of(f"warning: {what}"), file=sys.stderr, flush=True)
        if cleaning:
            labels = _cleaned(job, labels, cleaning)
        axes = members[0].prepare.axes
        _finish(job, (labels, probabilities), num_probabilities, axes, written)
        if job.overlay is not None:
            # On the image as it is stored, which says more than one that was resampled.
            prepare = members[0].prepare
            if prepare.target_pixel_size is None:
                stored = image
            else:
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
    remove_files(work.path, WORK_FILES)
    return tiling


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


def predictor(
    tiling: Tiling, image: LazyImage, forward: Forward, batch: int, bar: tqdm | None = None
) -> Predict:
    """Return the function for `bands` that predicts windows."""

    def predict_windows(starts: Sequence[tuple[int, ...]]) -> Iterator[np.ndarray]:
        for first in range(0, len(starts), batch):
            windows = [
                _padded_window(image, tiling, start) for start in starts[first : first + batch]
            ]
            yield from forward(np.stack(windows))
            if bar is not None:
                bar.update(len(windows))

    return predict_windows


def _padded_window(image: LazyImage, tiling: Tiling, start: tuple[int, ...]) -> np.ndarray:
    """Return a window of the image, padded with 0, which is the mean of a z-scored image."""
    first = np.subtract(start, tiling.before)
    low = np.maximum(first, 0)
    high = np.minimum(first + tiling.window, tiling.extent)
    pixels = image.read(low.tolist(), high.tolist())
    padded = np.zeros((*tiling.window, image.channels), np.float32)
    padded[tuple(map(slice, low - first, high - first))] = pixels
    return padded


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


def _sha256(path: Path) -> str:
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
