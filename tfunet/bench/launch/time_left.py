"""Estimates how long the trials of a sweep that wait will take. Pure."""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.study.trial_plan import Trial


@final
class TimeLeft:
    """Estimates the time of trials from the `seconds` of others, by cell, as they end."""

    def __init__(
        self, waiting: Iterable[Trial | TrialRecord], seconds: Mapping[int, Sequence[float]]
    ) -> None:
        self._seconds = {cell: sorted(values) for cell, values in seconds.items() if values}
        self._all = sorted(value for values in self._seconds.values() for value in values)
        self._waiting = Counter(trial.cell for trial in waiting)
        # Seconds of the waiting trials of cells that were run.
        self._known = sum(
            count * _median(self._seconds[cell])
            for cell, count in self._waiting.items()
            if cell in self._seconds
        )
        self._others = sum(
            count for cell, count in self._waiting.items() if cell not in self._seconds
        )

    @property
    def seconds(self) -> float | None:
        """The estimate; None as long as no trial has ended. A cell of its own is as the others."""
        return self._known + self._others * _median(self._all) if self._all else None

    def of(self, cell: int) -> float:
        """Return the estimate for one trial; 0 as long as none has ended."""
        return _median(self._seconds.get(cell) or self._all or [0.0])

    def ended(self, cell: int, seconds: float | None) -> None:
        """Note that a trial waits no more, and its time; None for one that tells nothing."""
        before = self._seconds.get(cell, [])
        count = self._waiting[cell]
        if before:
            self._known -= count * _median(before)
        else:
            self._others -= count
        if seconds is not None:
            insort(self._seconds.setdefault(cell, before), seconds)
            insort(self._all, seconds)
        self._waiting[cell] = count = count - 1
        if now := self._seconds.get(cell):
            self._known += count * _median(now)
        else:
            self._others += count


def duration(seconds: float) -> str:
    """Return seconds in a readable unit: "45 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2
