"""The folds of a cross-validation are repeats of a configuration, on other parts of the data."""

from collections.abc import Sequence
from dataclasses import replace

from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.files.typed import RecordError
from tfunet.record import RunFolder


def num_folds(trials: Sequence[TrialRecord]) -> int:
    """Return how many folds trials held out; 1 if all held out the same cases."""
    return len({trial.config.fold for trial in trials})


def folds_as_repeats(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return trials whose repeats are numbered on over their folds.

    The number of a repeat and a fold is the same in all cells, so that differences within them can
    be taken. Trials of a single fold keep their numbers.
    """
    if num_folds(trials) < 2:
        return list(trials)
    blocks = sorted({(trial.repeat, trial.config.fold) for trial in trials})
    numbers = {block: number for number, block in enumerate(blocks, 1)}
    return [replace(trial, repeat=numbers[trial.repeat, trial.config.fold]) for trial in trials]


def held_out_groups(trials: Sequence[TrialRecord]) -> dict[int, tuple[str, ...]]:
    """Return the groups that each fold held out; none where cases name no groups, or where trials
    cut the same folds differently.
    """
    found: dict[int, tuple[str, ...]] = {}
    for trial in trials:
        try:
            split = RunFolder(trial.folder).read_split() or {}
        except RecordError:
            return {}
        groups = tuple(split.get("validation_groups", ()))
        if not groups or found.setdefault(trial.config.fold, groups) != groups:
            return {}
    return dict(sorted(found.items()))
