"""Predicts whole images with the network of a finished run: `tfunet predict`."""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tfunet import __version__
from tfunet.data.defects import Defect, lines_by_cause
from tfunet.data.lazy_image import LazyImage
from tfunet.files.atomic import writing
from tfunet.files.printable import check_utf8
from tfunet.files.regular import open_to_read
from tfunet.files.remote import fetched_ahead, shown
from tfunet.prediction import output
from tfunet.prediction.all_images import AllImages, Image
from tfunet.prediction.best_file import BEST, followed_best
from tfunet.prediction.cleaning import Cleaning
from tfunet.prediction.devices import helpers
from tfunet.prediction.ensemble import Member, joint_facts, load_members
from tfunet.prediction.image_job import How
from tfunet.prediction.inputs import find_named_images
from tfunet.prediction.jobs import Job, identity_of, plan_jobs
from tfunet.prediction.mask_values import MaskValues, check_holds, mask_values
from tfunet.prediction.network import TrainedNetwork, WindowFacts
from tfunet.prediction.options import LABELS, Options, as_json
from tfunet.prediction.overlay_picture import NO_DRAWING, drawing
from tfunet.prediction.pixel_sizes import other_sizes
from tfunet.prediction.prepare import Preparation
from tfunet.prediction.shared_lines import can_lock
from tfunet.prediction.windows import tiling_of, window_and_halo, windows_at_once
from tfunet.process.terminal import counted, lines_of

NO_LOCKS = "is on a disk without locks, so that one device predicts."


def predict(
    run: Path,
    images: Sequence[str],
    out: Path,
    options: Options,
    *,
    names: Sequence[str] | None = None,
    is_prepared: bool = False,
    skip_bad: bool = False,
    is_helper: bool = False,
) -> list[Path]:
    """Predict images with a run's network; return the files with their labels.

    Processes that predict the same at once, into one folder, share the work.

    Args:
        run: Folder of a finished run, or of a study with a best.json.
        images: Paths, folders and patterns, as `find_named_images` reads them.
        out: Folder for the predictions. An unfinished prediction there is continued.
        options: How to predict.
        names: A name for each prediction, where each image is a path; by default that of the image.
        is_prepared: Whether the images are as the code of the run's data set prepares them.
        skip_bad: Whether to leave out images that cannot be predicted, with a warning for each
            cause.
        is_helper: Whether another process of this host does the same and speaks for all.

    Raises ValueError for a mistake in the run, the images or the options, if possible before the
    first prediction; WriteError if a file cannot be written.
    """
    call: dict[str, Any] = {"images": list(images), "names": names, "run": str(run)}
    call |= {"is_prepared": is_prepared, "skip_bad": skip_bad, "out": str(out)}
    call |= {"options": as_json(options)}
    devices = helpers(1 if is_helper else options.devices)
    with devices.bound():
        planned, how, lines = _planned(run, images, out, options, names, is_prepared, skip_bad)
        if options.overlay and drawing() is None and not is_helper:
            print(NO_DRAWING)
        for line in filter(None, [] if is_helper else lines):
            print(lines_of(f"warning: {line}"), file=sys.stderr, flush=True)
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        if devices and not can_lock(out):
            print(lines_of(f"warning: {out} {NO_LOCKS}"), file=sys.stderr, flush=True)
        elif devices:
            devices.tell(call)
        AllImages(planned, how, devices).predict()
    return [image.job.labels for image in planned]


def _planned(
    run: Path,
    images: Sequence[str],
    out: Path,
    options: Options,
    names: Sequence[str] | None,
    is_prepared: bool,
    skip_bad: bool,
) -> tuple[list[Image], How, list[str]]:
    """Return what to predict and how, and what the user must know of it."""
    members, cleaning = followed(run, options)
    if is_prepared:
        members = tuple(replace(member, prepare=Preparation()) for member in members)
    network, prepare = members[0].network, members[0].prepare
    has_overlay = options.overlay and drawing() is not None
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
    window, halo = window_and_halo(members, options, facts)
    jobs, headers, lines = _fit(jobs, members, written, advice, skip_bad=skip_bad)
    forward_of = lru_cache(maxsize=4)(lambda window: [member.forward(window) for member in members])
    # Fails before anything is written if a network does not take the window.
    forward_of(tiling_of(headers[0].shape, window, halo, facts).window)
    sized = [(job.name, each.spacing, each.unit) for job, each in zip(jobs, headers, strict=True)]
    lines += _warnings(members, options, facts, halo, is_prepared=is_prepared)
    lines.append(other_sizes(network.pixel_sizes, network.pixel_unit, sized) or "")
    how = How(
        members=members, cleaning=cleaning, facts=facts, forward_of=forward_of, written=written
    )
    shared = {
        **_identity(run, how, options),
        "window": window,
        "halo": halo,
        "batch": options.batch or windows_at_once(window),
    }
    shared = json.loads(json.dumps(shared))
    planned = [
        Image(job, identity_of(job, shared), header.by_parts)
        for job, header in zip(jobs, headers, strict=True)
    ]
    return planned, how, lines


def _identity(run: Path, how: How, options: Options) -> dict[str, Any]:
    """Return what the predictions of all images depend on, beside their window and halo."""
    first, *others = how.members
    identity: dict[str, Any] = {
        "tfunet": __version__,
        **_network_facts(first, run),
        "tiles": options.tiles,
        "window": None,
        "halo": None,
        "probabilities": options.probabilities,
    }
    if others:
        identity["ensemble"] = [_network_facts(member, member.run) for member in others]
    if any(member.mirrored for member in how.members):
        identity["mirrored_axes"] = [member.mirrored for member in how.members]
    if how.cleaning:
        identity["cleaning"] = how.cleaning.as_json()
    if how.written is not None:
        identity["values"] = how.written.shown
    return identity


def _network_facts(member: Member, run: Path) -> dict[str, Any]:
    # Earlier versions wrote no unit beside a prediction.
    prepared = {key: value for key, value in asdict(member.prepare).items() if key != "unit"}
    return {
        "run": str(run),
        "weights_sha256": _sha256(member.network.path),
        "preparation": prepared,
    }


def _fit(
    jobs: Sequence[Job],
    members: Sequence[Member],
    written: MaskValues | None,
    advice: str,
    *,
    skip_bad: bool,
) -> tuple[list[Job], list[LazyImage], list[str]]:
    """Return the jobs whose images can be predicted, these images, and warnings of the others.

    Raises ValueError for the others, unless `skip_bad`.
    """
    fit, images, defects = [], [], []
    for job in fetched_ahead(jobs, lambda job: job.files):
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
            what = str(error).removeprefix(f"{job.files[0]}: ")
            defects.append(Defect(file=shown(job.files[0]), what=what, case_id=job.name))
            continue
        fit.append(job)
        images.append(image)
    lines = lines_by_cause(defects, most=None)
    if defects and not (skip_bad and fit):
        what = f"{len(defects)} of {len(jobs)} images cannot be predicted:"
        raise ValueError("\n".join([what, *(f"  {line}" for line in lines)]) + advice * bool(fit))
    return fit, images, [f"left out: {line}" for line in lines]


def written_values(network: TrainedNetwork, options: Options) -> MaskValues | None:
    """Return the values that predictions are written in; None for the labels themselves.

    Raises ValueError where those of the masks are asked for and not known.
    """
    return None if options.values == LABELS else mask_values(network.mask_values)


def followed(run: Path, options: Options) -> tuple[tuple[Member, ...], Cleaning]:
    """Return the networks that predict together, and what is removed from their labels.

    The best.json of a study names these networks.
    """
    best = followed_best(run)
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


def _check_image(job: Job, image: LazyImage, network: TrainedNetwork) -> None:
    if len(image.shape) != len(network.patch) or image.channels != network.channels:
        raise ValueError(
            f"{shown(job.files[0])}: a {len(image.shape)}D image with "
            f"{counted(image.channels, 'channel')}; the network was trained on "
            f"{len(network.patch)}D images with {network.channels}.{_conversion(image, network)}"
        )
    output.check_rank(job.format, job.files[0], len(image.shape))


def _conversion(image: LazyImage, network: TrainedNetwork) -> str:
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


def _warnings(
    members: Sequence[Member],
    options: Options,
    facts: WindowFacts | None,
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


def _sha256(path: Path) -> str:
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
