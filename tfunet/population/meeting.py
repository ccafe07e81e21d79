"""The place where the trainers of a population meet: a folder that all of them reach."""

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, final

from tfunet.files.atomic import write_atomic, writing
from tfunet.files.typed import RecordError, read_json
from tfunet.record import RunFolder

State = Literal["here", "awaited", "gone"]


@dataclass(frozen=True)
class Address:
    """Where a trainer runs."""

    folder: str
    host: str


@final
class PopulationFolder:
    """A population's folder, as one of its trainers sees it.

        trainer-1.json            where trainer 1 runs
        round-00003/trainer-1.npz its model after round 3

    A file is complete or missing, and only its own trainer writes it.
    """

    def __init__(self, folder: Path, trainer: int) -> None:
        self.folder, self.trainer = folder, trainer

    def join(self, run: Path) -> None:
        """Say where this trainer runs."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        address = Address(os.path.relpath(run, self.folder), socket.gethostname())
        write_atomic(self._address(self.trainer), json.dumps(asdict(address)))

    def forget(self, trainer: int) -> None:
        """Expect a trainer to join, also if it ended before."""
        path = self._address(trainer)
        with writing(path):
            path.unlink(missing_ok=True)

    def offer_path(self, round: int, trainer: int) -> Path:
        """Return the file of a trainer's model after a round."""
        return self.folder / f"round-{round:05d}" / f"trainer-{trainer}.npz"

    def state(self, round: int, trainer: int) -> State:
        """Return whether the model of a trainer is here, is to come, or will not come."""
        if self.offer_path(round, trainer).is_file():
            return "here"
        # It may have been written between the two looks, before its trainer ended.
        is_gone = self._has_ended(trainer) or self._last_round(trainer) > round
        if is_gone and self.offer_path(round, trainer).is_file():
            return "here"
        return "gone" if is_gone else "awaited"

    def clear(self, readers: Mapping[int, Iterable[int]]) -> None:
        """Delete own models that nobody needs. `readers` has those of each of their rounds.

        A trainer needs the model of a round until it has offered one of a later round, for it may
        be killed and take the round again.
        """
        for round, trainers in readers.items():
            if all(self._is_past(round, trainer) for trainer in trainers):
                path = self.offer_path(round, self.trainer)
                with writing(path):
                    path.unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """Return the rounds of which this trainer's models are still here."""
        return self._rounds_of(self.trainer)

    def _is_past(self, round: int, trainer: int) -> bool:
        return self._last_round(trainer) > round or self._is_done(trainer)

    def _is_done(self, trainer: int) -> bool:
        run = self._run(trainer)
        return run is not None and run.is_done()

    def _has_ended(self, trainer: int) -> bool:
        """Whether a trainer that has joined runs no more."""
        run = self._run(trainer)
        if run is None:
            return False
        if run.is_done() or (run.path / "failure.json").is_file():
            return True
        # Locks are not seen on other hosts, and some disks have none.
        address = self._read_address(trainer)
        is_here = address is not None and address.host == socket.gethostname()
        try:
            return is_here and not run.is_locked()
        except OSError:
            return False

    def _run(self, trainer: int) -> RunFolder | None:
        address = self._read_address(trainer)
        return None if address is None else RunFolder(self.folder / address.folder)

    def _read_address(self, trainer: int) -> Address | None:
        try:
            return read_json(self._address(trainer), Address)
        except RecordError:
            return None

    def _last_round(self, trainer: int) -> int:
        return max(self._rounds_of(trainer), default=0)

    def _rounds_of(self, trainer: int) -> list[int]:
        found = (
            re.fullmatch(r"round-([0-9]{1,9})", path.parent.name)
            for path in self.folder.glob(f"round-*/trainer-{trainer}.npz")
        )
        return sorted(int(match[1]) for match in found if match)

    def _address(self, trainer: int) -> Path:
        return self.folder / f"trainer-{trainer}.json"
