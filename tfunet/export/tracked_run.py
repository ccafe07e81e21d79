"""What a tracker of experiments is told of a run: all of it from the run's folder.

So a tracker may be slow, dead or missing, and the run knows nothing of it. Imports no TensorFlow.
"""

import importlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, final

from tfunet.config.keys import flat
from tfunet.files.atomic import write_atomic
from tfunet.files.table import read_rows
from tfunet.files.typed import read_json, whole
from tfunet.record import RunFolder

NO_METRICS = ("epoch", "steps", "weights_hash", "samples_hash", "dropped_samples")


class Tracker(Protocol):
    """One run in a tracker."""

    def begin(self, known: str | None) -> str:
        """Begin the run, or go on with the one that has the id `known`; return its id."""

    def log(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Add the numbers of an epoch."""

    def end(self, *, is_done: bool, metrics: Mapping[str, float]) -> None:
        """End the run, with the numbers of its result."""


@final
@dataclass(kw_only=True)
class TrackedRun:
    """The folder of a run, and how much of it a tracker knows.

    Args:
        tracker: Name of the tracker.
        place: Where the tracker keeps the run: a folder or an address.
    """

    folder: Path
    tracker: str
    place: str
    _id: str | None = field(default=None, init=False)
    _size: int = field(default=-1, init=False)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.resolve().name

    @property
    def group(self) -> str:
        """Name of what the run belongs to: the study, or the folder that it lies in."""
        return self.folder.resolve().parent.name or "tfunet"

    def settings(self) -> dict[str, str]:
        """Return the settings of the run, as texts under dotted keys."""
        config = RunFolder(self.folder).read_config()
        if config is None:
            raise ValueError(f"{self.folder} holds no run: it has no config.json.")
        return {
            plain(key): value if isinstance(value, str) else json.dumps(value, default=str)
            for key, value in flat(config.values()).items()
        }

    def tell(self, to: Tracker, *, is_over: bool) -> None:
        """Tell a tracker what is new since it was last told; `is_over` ends its run."""
        path = self.folder / "epochs.csv"
        size = path.stat().st_size if path.exists() else 0
        if size == self._size and not is_over:
            return
        self._size = size
        known = self._known()
        if self._id is None:
            self._id = to.begin(known.get("run"))
        last = known.get("epochs", 0)
        for epoch, step, metrics in epochs(self.folder):
            if epoch > last:
                to.log(epoch, step, metrics)
                last = epoch
        self._write({"run": self._id, "epochs": last})
        if is_over:
            result = RunFolder(self.folder).read_result()
            to.end(is_done=result is not None, metrics=numbers(result or {}))

    def _known(self) -> dict[str, Any]:
        """Return the id of the run in this place, and the epochs that it has."""
        known = self._places().get(self.place, {})
        return known if isinstance(known, dict) else {}

    def _places(self) -> dict[str, Any]:
        return read_json(self._path, dict[str, Any]) or {}

    def _write(self, known: Mapping[str, Any]) -> None:
        places = {**self._places(), self.place: known}
        write_atomic(self._path, json.dumps(places, indent=1) + "\n")

    @property
    def _path(self) -> Path:
        return self.folder / f"tracked-{self.tracker}.json"


def imported(tracker: str, defaults: Mapping[str, str]) -> Any:
    """Return the module of a tracker, with its defaults in the environment; ValueError without."""
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module(tracker)
    except ImportError as error:
        raise ValueError(
            f"{tracker} is not installed. Install it: pip install 'tfunet[trackers]'."
        ) from error


def epochs(folder: Path) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield number, last step and finite numbers of each epoch of a run."""
    for row in read_rows(folder / "epochs.csv"):
        values = {key: _number(value) for key, value in row.items() if key not in NO_METRICS}
        metrics = {plain(key): value for key, value in values.items() if value is not None}
        yield whole(row["epoch"]), whole(row["steps"]), metrics


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of result.json, those of tables under "table_key"."""
    found: dict[str, float] = {}
    for key, value in result.items():
        entries = value.items() if isinstance(value, dict) else [("", value)]
        for name, entry in entries:
            is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
            if is_number and math.isfinite(entry):
                found[f"result/{plain(f'{key}_{name}' if name else key)}"] = float(entry)
    return found


def plain(name: str) -> str:
    """Return a name with the characters that every tracker takes."""
    return re.sub(r"[^\w.\- ]", "_", name)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
