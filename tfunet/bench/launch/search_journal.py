"""The journal of a search: Optuna's study, as lines of JSON in the folder of the sweep."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

from tfunet.bench.study.search_settings import Search
from tfunet.files.atomic import writing
from tfunet.files.regular import open_regular
from tfunet.files.typed import DAMAGED, FieldError, Name, RecordError, typed

JOURNAL = "search.journal"
LOCK = "search.lock"
# Attribute of an Optuna trial: the name of its folder.
NAME = "trial"
# What Optuna raises for lines that are JSON, but none of its own.
STRANGE = (*DAMAGED, AttributeError, IndexError, AssertionError, OverflowError)


def open_study(optuna: ModuleType, root: Path, name: str, search: Search) -> Any:
    """Return Optuna's study in a folder, which is begun if there is none. Raises RecordError."""
    with journal_faults(root):
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(_Journal(optuna, root / JOURNAL)),
            study_name=name,
            direction=search.direction,
            pruner=_pruner(optuna, search),
            load_if_exists=True,
        )


@contextlib.contextmanager
def journal_faults(root: Path) -> Iterator[None]:
    """Make what Optuna raises for strange lines of the journal a RecordError that names it."""
    try:
        yield
    except RecordError:
        raise
    except STRANGE as error:
        raise RecordError(root / JOURNAL, error) from error


def name_of(trial: Any, root: Path) -> str | None:
    """Return the folder of a trial of Optuna; None if it has none yet. Raises RecordError."""
    name = trial.user_attrs.get(NAME)
    try:
        return None if name is None else typed(name, Name, f"{NAME} of trial {trial.number}")
    except FieldError as error:
        raise RecordError(root / JOURNAL, error) from error


@final
class _Journal:
    """Optuna's file of lines, which says its name where a line is damaged."""

    def __init__(self, optuna: ModuleType, path: Path) -> None:
        self._path = path
        with writing(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            os.close(open_regular(path, flags))  # Optuna would follow a link, or wait for a pipe.
        lock = _Lock(path.with_name(LOCK))
        self._lines = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=lock)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        try:
            for line in self._lines.read_logs(log_number_from):
                yield typed(line, dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise RecordError(self._path, error) from error

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        with writing(self._path):
            self._lines.append_logs(logs)


@final
class _Lock:
    """A lock on the lines, which the kernel frees if its holder dies.

    Optuna's own is a link, and one that leads nowhere, as of a process that was killed, would hold
    all others for ever.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        with writing(self._path):
            self._descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.suppress(OSError):  # Some shared disks have no locks.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


def _pruner(optuna: ModuleType, search: Search) -> Any:
    return {
        "none": optuna.pruners.NopPruner,
        "median": optuna.pruners.MedianPruner,
        "halving": optuna.pruners.SuccessiveHalvingPruner,
    }[search.pruner]()
