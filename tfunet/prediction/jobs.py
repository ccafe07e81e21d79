"""Which predictions to make, and which exist already. Imports no TensorFlow."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfunet.data.formats.container import stem
from tfunet.data.opening import content_files
from tfunet.files.remote import shown
from tfunet.files.typed import RecordError, read_json
from tfunet.prediction.inputs import parts_of
from tfunet.prediction.output import (
    SUFFIXES,
    check_format,
    default_format,
    format_of_probabilities,
)

# Keys that an identity has only where the option was given.
OPTIONAL = ("ensemble", "mirrored_axes", "cleaning", "values")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One image to predict: its files, and where its prediction goes."""

    name: str
    files: tuple[Path, ...]
    format: str
    labels: Path
    probabilities: Path | None
    overlay: Path | None
    facts: Path

    @property
    def outputs(self) -> list[Path]:
        """The files of the prediction, without the facts."""
        return [self.labels, *([self.probabilities] if self.probabilities else [])]

    @property
    def unfinished(self) -> Path:
        """The folder of the prediction until it is finished."""
        return self.labels.parent / f".unfinished-{self.name}"


def plan_jobs(
    images: Sequence[str],
    out: Path,
    kind: str | None,
    *,
    probabilities: bool,
    overlay: bool = False,
    names: Sequence[str] | None = None,
) -> list[Job]:
    """Return a job for each image.

    Args:
        images: The path of each image; the paths of an image in several files, joined by commas.
        out: Folder for the predictions.
        kind: A format; None for the one that suits the image.
        probabilities: Whether to write probabilities, too.
        overlay: Whether to draw the labels over the image, too.
        names: A name for each prediction; by default that of its image.

    Raises ValueError if two images have one name, or the library for a format is missing.
    """
    jobs = []
    for number, image in enumerate(images):
        files = tuple(map(Path, parts_of(image)))
        name = stem(files[0]) if names is None else names[number]
        chosen = kind or default_format(files[0])
        check_format(chosen)
        second = None
        if probabilities:
            other = format_of_probabilities(chosen)
            check_format(other)
            second = out / f"{name}_probabilities{SUFFIXES[other]}"
        jobs.append(
            Job(
                name=name,
                files=files,
                format=chosen,
                labels=out / f"{name}{SUFFIXES[chosen]}",
                probabilities=second,
                overlay=out / f"{name}_overlay.png" if overlay else None,
                facts=out / f"{name}.json",
            )
        )
    overlays = [job.overlay.name for job in jobs if job.overlay is not None]
    names = [*overlays, *(path.name for job in jobs for path in (*job.outputs, job.facts))]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(
            f"Several predictions would be called {twice[0]}. Name each image once, and name "
            "images by a pattern with placeholders where files in different folders have one "
            "name: 'test/{group}/{case}.png'. Or predict them into different folders."
        )
    return jobs


def identity_of(job: Job, how: dict[str, Any]) -> dict[str, Any]:
    """Return all that a prediction depends on."""
    return {"image": [_content_of(file) for file in job.files], **how}


def is_finished(job: Job, identity: dict[str, Any]) -> bool:
    """Return whether the prediction exists; ValueError if another file is in its place."""
    # First, since another process may finish it meanwhile.
    is_begun = job.unfinished.is_dir()
    there = [path for path in job.outputs if path.exists()]
    if {path.resolve() for path in there} & {file.resolve() for file in job.files}:
        raise ValueError(f"{job.labels} is the image itself. Choose another --out.")
    try:
        facts = read_json(job.facts, dict[str, Any]) or {}
        is_same = all(facts.get(key) == identity.get(key) for key in (*identity, *OPTIONAL))
    except RecordError:
        is_same = False
    if is_same and len(there) == len(job.outputs):
        return True
    if there and not is_begun:
        raise ValueError(
            f"{there[0]} is there already, but it is not the prediction of {job.files[0]} with "
            "these weights and options. Remove it, or choose another --out."
        )
    return False


def _content_of(image: Path) -> dict[str, Any]:
    """Return facts that change when an image, or a file of a folder, does; without reading it."""
    stats = [path.stat() for path in content_files(image)]
    return {
        "path": shown(image),
        "bytes": sum(stat.st_size for stat in stats),
        "mtime_ns": max((stat.st_mtime_ns for stat in stats), default=0),
    }
