"""The models that trainers offer to each other: files in a folder that all of them reach."""

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np

from tfunet.files.atomic import replacing, write_atomic, writing
from tfunet.files.typed import DAMAGED, RecordError, read_json, typed
from tfunet.record import RunFolder

State = Literal["here", "awaited", "gone"]


@dataclass(frozen=True)
class Offer:
    """What a trainer says of its model at the end of a round.

    Args:
        score: On the cases that decide the round; None if it is not a number.
        hyperparameters: Those with which the model was trained, by name.
        is_rounded: Whether the numbers are rounded to bfloat16.
    """

    score: float | None
    hyperparameters: dict[str, float]
    is_rounded: bool


@dataclass(frozen=True)
class Address:
    """Where a trainer runs."""

    folder: str
    host: str


@final
class Meeting:
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

    def publish(self, round: int, values: Sequence[np.ndarray], offer: Offer) -> None:
        """Offer a model to the others."""
        path = self._offer(round, self.trainer)
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        kept = [to_bfloat16(value) if _rounds(offer, value) else value for value in values]
        arrays = {f"variable_{index:05d}": value for index, value in enumerate(kept)}
        facts = np.frombuffer(json.dumps(asdict(offer)).encode(), np.uint8)
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, facts=facts, **arrays)

    def read(self, round: int, trainer: int) -> Offer:
        """Return what a trainer says of its model. Raises RecordError."""
        path = self._offer(round, trainer)
        try:
            with np.load(path, allow_pickle=False) as file:
                return typed(json.loads(file["facts"].tobytes()), Offer)
        except (OSError, *DAMAGED) as error:
            raise RecordError(path, error) from error

    def load(self, round: int, trainer: int, like: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the model of a trainer, which has variables as `like`. Raises RecordError."""
        path, offer = self._offer(round, trainer), self.read(round, trainer)
        try:
            with np.load(path, allow_pickle=False) as file:
                names = sorted(set(file.files) - {"facts"})
                values = [file[name] for name in names]
        except (OSError, *DAMAGED) as error:
            raise RecordError(path, error) from error
        if len(values) == len(like):
            values = [
                from_bfloat16(value) if _rounds(offer, own) and value.dtype == np.uint16 else value
                for value, own in zip(values, like, strict=True)
            ]
        kinds = [(value.shape, value.dtype) for value in values]
        if kinds != [(own.shape, own.dtype) for own in like]:
            raise RecordError(path, "it is of another model or optimizer")
        return values

    def state(self, round: int, trainer: int) -> State:
        """Return whether the model of a trainer is here, is to come, or will not come."""
        if self._offer(round, trainer).is_file():
            return "here"
        # It may have been written between the two looks, before its trainer ended.
        is_gone = self._has_ended(trainer) or self._last_round(trainer) > round
        if is_gone and self._offer(round, trainer).is_file():
            return "here"
        return "gone" if is_gone else "awaited"

    def clear(self, readers: Mapping[int, Iterable[int]]) -> None:
        """Delete own models that nobody needs. `readers` has those of each of their rounds.

        A trainer needs the model of a round until it has offered one of a later round, for it may
        be killed and take the round again.
        """
        for round, trainers in readers.items():
            if all(self._is_past(round, trainer) for trainer in trainers):
                path = self._offer(round, self.trainer)
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

    def _offer(self, round: int, trainer: int) -> Path:
        return self.folder / f"round-{round:05d}" / f"trainer-{trainer}.npz"


def _rounds(offer: Offer, value: np.ndarray) -> bool:
    return offer.is_rounded and value.dtype == np.float32


def to_bfloat16(value: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bfloat16 of each float32; ties to even. NaN stays NaN."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(value), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
