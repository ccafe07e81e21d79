"""Decides which trials of a sweep need not run because their cell is hopeless. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, final

from tfunet.bench.records.sweep_record import FINISHED, TrialRecord
from tfunet.bench.records.ways_of_training import BASELINE, speed_by_repeat, way_of
from tfunet.config.keys import WAY
from tfunet.config.reader import read


@dataclass(frozen=True, kw_only=True)
class HopelessRule:
    """When a cell is given up: after so many repeats, if another is so many times as fast.

    Args:
        after: Least number of repeats before a cell is given up.
        slower_than: How many times as fast the fastest cell of its group must be.
    """

    after: int = 2
    slower_than: float = 3.0

    def __post_init__(self) -> None:
        if self.after < 1:
            raise ValueError(f"after in [hopeless] must be at least 1, got {self.after}.")
        if not 1 < self.slower_than < math.inf:
            raise ValueError(
                f"slower_than in [hopeless] must be more than 1, got {self.slower_than:g}. "
                "3.0 gives up cells that take more than three times as long."
            )

    def __str__(self) -> str:
        first = "repeat" if self.after == 1 else f"{self.after} repeats"
        return (
            f"a cell is given up if its first {first} failed, or if another cell that differs only "
            f"in the backend is more than {self.slower_than:g} times as fast in every repeat that "
            f"both have, {self.after} at the least"
        )


def read_rule(table: Any) -> HopelessRule | None:
    """Return the table [hopeless] of a study, checked; None without one."""
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise ValueError(f"[hopeless] must be a table, got {table!r}.")
    return read(HopelessRule, table, "[hopeless]")


def why_hopeless(
    trial: TrialRecord, trials: Iterable[TrialRecord], rule: HopelessRule | None
) -> str:
    """Return why `trial` need not run, given all `trials` of the sweep; empty if it must run.

    A failed trial is never hopeless: a sweep that is run again runs it again, and if it then ends
    well, its cell is no longer given up. The baseline of other cells is never hopeless either.
    """
    if rule is None or trial.state in (*FINISHED, "failed"):
        return ""
    settings = _but_way(trial)
    group = [other for other in trials if _but_way(other) == settings]
    if _is_baseline(trial, group):
        return ""
    cell_trials = sorted(
        (other for other in group if other.cell == trial.cell), key=lambda other: other.repeat
    )
    return _all_failed(cell_trials, rule) or _far_slower(cell_trials, group, rule)


@final
class Rivals:
    """The trials of a sweep in groups that differ only in the backend, its replicas and the seed.

    Each trial is compared with those of its own group, however many there are in all.
    """

    def __init__(self, trials: Iterable[TrialRecord]) -> None:
        self._groups: dict[str, dict[str, TrialRecord]] = {}
        for trial in trials:
            self.update(trial)

    def update(self, trial: TrialRecord) -> None:
        """Note the present state of a trial."""
        self._groups.setdefault(repr(_but_way(trial)), {})[trial.id] = trial

    def of(self, trial: TrialRecord) -> list[TrialRecord]:
        """Return the group of a trial, itself included."""
        return list(self._groups.get(repr(_but_way(trial)), {}).values())


def _but_way(trial: TrialRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(trial.config).items() if key not in (*WAY, "seed")}


def _is_baseline(trial: TrialRecord, group: Iterable[TrialRecord]) -> bool:
    # Without `single`, the baseline of each way is its own single replica.
    is_measured_by_itself = BASELINE not in map(way_of, group)
    one_replica = trial.config.num_replicas == 1
    return one_replica and (is_measured_by_itself or way_of(trial) == BASELINE)


def _all_failed(cell_trials: Sequence[TrialRecord], rule: HopelessRule) -> str:
    first = [trial for trial in cell_trials if trial.repeat <= rule.after]
    if len(first) < rule.after or any(trial.state != "failed" for trial in first):
        return ""
    reasons = "; ".join(dict.fromkeys(trial.reason for trial in first))
    return f"{_repeats(trial.repeat for trial in first)} failed: {reasons}"


def _far_slower(
    cell_trials: Sequence[TrialRecord], group: Sequence[TrialRecord], rule: HopelessRule
) -> str:
    cells: dict[int, list[TrialRecord]] = {}
    for trial in group:
        cells.setdefault(trial.cell, []).append(trial)
    speeds = {cell: speed_by_repeat(members) for cell, members in cells.items()}
    able = {cell: by_repeat for cell, by_repeat in speeds.items() if len(by_repeat) >= rule.after}
    slow = able.get(cell_trials[0].cell)
    if slow is None:
        return ""
    fastest = max(able, key=lambda cell: median(able[cell].values()))
    ratios = {
        repeat: able[fastest][repeat] / slow[repeat]
        for repeat in sorted(slow)
        if repeat in able[fastest]
    }
    if len(ratios) < rule.after or min(ratios.values()) <= rule.slower_than:
        return ""
    best = cells[fastest][0]
    times = _listed(f"{value:.1f}" for value in ratios.values())
    label = f"{way_of(best)} x{best.config.num_replicas}"
    return f"{label} was {times} times as fast in {_repeats(ratios)}"


def _repeats(numbers: Iterable[int]) -> str:
    texts = [str(number) for number in numbers]
    return f"repeat{'s' if len(texts) > 1 else ''} {_listed(texts)}"


def _listed(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last
