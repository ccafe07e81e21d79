"""Trainers that share cores compute one after the other."""

import fcntl
import os
from pathlib import Path
from typing import final

from tfunet.files.atomic import writing
from tfunet.files.regular import open_regular

# The number of places for the trainers of a population on this machine, if some share a place.
VARIABLE = "TFUNET_PLACES"


def mates(trainer: int, trainers: int, num_places: int) -> list[int]:
    """Return the other trainers in the place of a trainer."""
    return [
        other for other in range(trainer % num_places, trainers, num_places) if other != trainer
    ]


@final
class Turn:
    """The right to compute in a place; the kernel takes it from a process that dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the turn if nobody has it; return whether this process has it."""
        if self._descriptor is not None:
            return True
        with writing(self._path):
            descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            pass  # A disk without locks: the trainers share the cores at the same time.
        self._descriptor = descriptor
        return True

    def give_back(self) -> None:
        """Let another trainer compute."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def num_places() -> int | None:
    """Return the number of places that trainers of this machine share; None if none is shared."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) else None
