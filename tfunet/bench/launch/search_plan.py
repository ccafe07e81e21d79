"""The plan of a search while it grows: each line of it is read once, and written once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from tfunet.bench.records.plan_lines import GONE, SKIPPED, TRIAL, PlanLines, add_line
from tfunet.bench.records.sweep_record import (
    TrialRecord,
    planned_trials,
    read_plan,
    read_trial,
)


@final
class SearchPlan:
    """The trials of a search, as this process knows them; made while the folder is locked."""

    def __init__(self, root: Path) -> None:
        self._root, self._lines = root, PlanLines(root)
        self._lines.new()
        self._table = read_plan(root)
        trials = [entry for entry in self._table["trials"] if isinstance(entry, dict)]
        self._trials = {str(entry.get("id")): entry for entry in trials}
        self._num_skipped = len(self._table.get("skipped", []))

    def refresh(self) -> int:
        """Read what other processes added; return the number of trials, skipped ones included."""
        for line in self._lines.new():
            if TRIAL in line:
                self._trials[str(line[TRIAL].get("id"))] = line[TRIAL]
            self._trials.pop(str(line.get(GONE)), None)
            self._num_skipped += SKIPPED in line
        return len(self._trials) + self._num_skipped

    def add(self, trial: Mapping[str, Any]) -> None:
        """Add a trial."""
        add_line(self._root, TRIAL, trial)

    def skip(self, cell: Mapping[str, Any]) -> None:
        """Add a cell that is not run."""
        add_line(self._root, SKIPPED, cell)

    def remove(self, name: str) -> None:
        """Leave out a trial, whose settings are asked for again."""
        add_line(self._root, GONE, name)

    def record(self, name: str) -> TrialRecord | None:
        """Return a trial from its files; None for one that the plan does not have."""
        self.refresh()
        entry = self._trials.get(name)
        trials = planned_trials(self._root, {**self._table, "trials": [entry] if entry else []})
        return read_trial(trials[0]) if trials and trials[0].is_readable else None
