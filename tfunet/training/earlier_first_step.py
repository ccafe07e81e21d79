"""How long the first step of an earlier run took, which compiled the same network."""

import contextlib
import heapq
import os
from pathlib import Path

from tfunet.config.run import RunConfig
from tfunet.files.typed import RecordError, amount, typed_rows, whole
from tfunet.record import RunFolder

# What the time of compiling depends on most; the machine is taken to be the same.
SAME = ("model", "model_options", "backend", "stages", "split", "swap", "xla", "precision")
MOST = 16  # Folders that are looked at: a sweep has thousands.


def earlier_first_step(folder: Path, config: RunConfig) -> tuple[Path, float] | None:
    """Return the latest run beside this one with the same network, and its first step's seconds."""
    with contextlib.suppress(OSError):
        with os.scandir(folder.parent) as entries:
            beside = [
                (entry.stat().st_mtime, entry.path)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and entry.name != folder.name
            ]
        for _, path in heapq.nlargest(MOST, beside):
            seconds = _first_step(Path(path), config)
            if seconds is not None:
                return Path(path), seconds
    return None


def _first_step(folder: Path, config: RunConfig) -> float | None:
    # A record that is damaged, or of another version, is for others to complain about.
    with contextlib.suppress(OSError, ValueError, RecordError):
        other = RunFolder(folder).read_config()
        if other is None or any(getattr(other, key) != getattr(config, key) for key in SAME):
            return None
        rows = typed_rows(folder / "steps.csv", {"step": whole, "seconds": amount, "traced": whole})
        first = next(rows, None)
        if first is not None and first["step"] == 1 and first["traced"]:
            return float(first["seconds"])
    return None
