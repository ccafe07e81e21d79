"""best.json, which `tfunet best` writes and `tfunet predict` follows. No TensorFlow."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from tfunet.files.atomic import write_atomic
from tfunet.files.typed import Count, Positive, RecordError, read_json, typed
from tfunet.prediction.cleaning import Cleaning
from tfunet.prediction.finished_run import read_finished_run
from tfunet.process.terminal import lines_of
from tfunet.record import RunFolder

BEST = "best.json"
CONTENT = {
    "runs": list[str],
    "mirror": bool,
    "largest": list[Positive],
    "min_voxels": dict[str, Count],
}


@final
@dataclass(frozen=True, kw_only=True)
class Best:
    """How to predict best, by cross-validation.

    Args:
        runs: Folders of the runs that predict together.
        mirror: Whether their images are mirrored, too.
        cleaning: What is removed from their labels.
        label_names: A name for each label; empty in the file of an earlier version.
    """

    runs: tuple[Path, ...]
    mirror: bool
    cleaning: Cleaning
    label_names: Mapping[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        names = ", ".join(run.name for run in self.runs)
        several = f"the mean of {len(self.runs)} networks ({names})"
        parts = [f"the network {names}" if len(self.runs) == 1 else several]
        parts.append("with mirrored images" if self.mirror else "without mirrored images")
        parts += [
            f"of {self._named(label)} only the largest component" for label in self.cleaning.largest
        ]
        parts += [
            f"of {self._named(label)} no components below {size} voxels"
            for label, size in self.cleaning.min_voxels.items()
        ]
        return "; ".join(parts)

    def _named(self, label: int) -> str:
        name = self.label_names.get(label)
        return f"label {label}" if name is None else f"class {name}"


def write_best(study: Path, best: Best, evidence: Mapping[str, Any]) -> Path:
    """Write best.json into the folder of a study; runs are relative to it."""
    path = study / BEST
    runs = [run.resolve().relative_to(study.resolve()).as_posix() for run in best.runs]
    names = {str(label): name for label, name in best.label_names.items()}
    table = {"runs": runs, "mirror": best.mirror, **best.cleaning.as_json(), "label_names": names}
    table |= evidence
    write_atomic(path, json.dumps(table, indent=1) + "\n")
    return path


def read_best(study: Path) -> Best | None:
    """Return best.json of a folder; None if it is missing. Raises RecordError."""
    path = study / BEST
    table = read_json(path, dict[str, Any])
    if table is None:
        return None
    try:
        values: dict[str, Any] = {key: typed(table[key], kind) for key, kind in CONTENT.items()}
        sizes = {int(label): size for label, size in values["min_voxels"].items()}
        named: dict[str, str] = typed(table.get("label_names", {}), dict[str, str])
        names = {int(label): name for label, name in named.items()}
    except (KeyError, ValueError) as error:
        raise RecordError(path, error) from error
    if not values["runs"]:
        raise RecordError(path, "it names no runs")
    return Best(
        runs=tuple(study / run for run in values["runs"]),
        mirror=values["mirror"],
        cleaning=Cleaning(largest=tuple(values["largest"]), min_voxels=sizes),
        label_names=names,
    )


def followed_best(run: Path) -> Best | None:
    """Return the best.json that a prediction follows; None if the folder is that of a run."""
    return None if (run / "config.json").exists() else read_best(run)


def check_run(folder: Path, weights: str | None = None, ensemble: Iterable[Path] = ()) -> None:
    """Raise ValueError for what is no folder of a finished run, before TensorFlow is imported.

    Args:
        folder: Folder of the run, or of a study with a best.json.
        weights: A file in the folder, instead of the weights of the last epoch.
        ensemble: Folders of further runs.
    """
    run = RunFolder(folder)
    if not run.path.is_dir():
        raise ValueError(f"There is no folder {str(run.path)!r}. Name that of a finished run.")
    is_run = run.read_config() is not None
    best = None if is_run else read_best(folder)
    if not is_run and best is None:
        raise ValueError(
            f"{run.path} holds no run: it has no config.json. Nor has it the {BEST} of a study, "
            "which tfunet best writes."
        )
    for each in (*(best.runs if best else (folder,)), *ensemble):
        read_finished_run(RunFolder(each), weights)


def say_best(run: Path) -> None:
    """Print what best.json stands for, where it is followed."""
    best = followed_best(run)
    if best is not None:
        print(lines_of(f"{run / BEST}: {best}"), flush=True)
