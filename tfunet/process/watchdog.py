"""Notices that a process of a run hangs, and says which. Imports no TensorFlow.

Each process sends a beat, every second, that says how far it is: through a pipe to the supervisor,
or, if srun or mpirun started the processes, through the connections of `Meeting` to the chief.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

from tfunet.files.typed import Count, typed

VARIABLE = "TFUNET_PULSE"  # The pipe to the supervisor, by number.
STACKS_SIGNAL = signal.SIGUSR2
BEAT_SECONDS = 1.0
# A watcher that has not looked for this long was stopped itself, perhaps with all others.
BLIND_SECONDS = 5.0
# What a process does while no other can be made to wait, for as long as it likes.
OWN_CODE = "its own code"


@dataclass(frozen=True)
class Beat:
    """How far a process has come.

    Args:
        moves: Grows whenever its main thread makes progress.
        step: Its current, or last, optimizer step.
        doing: Its current activity: "step 12", "evaluation".
    """

    moves: int = 0
    step: int = 0
    doing: str = "start"


@final
class Pulse:
    """Sends beats from a thread until the process ends.

    The thread runs while the main thread waits in TensorFlow. A process is silent if it is
    stopped, or if an extension blocks its interpreter.
    """

    def __init__(self, tell: Callable[[Beat], None], doing: str = "start") -> None:
        self._beat = Beat(doing=doing)
        self._tell = tell
        threading.Thread(target=self._go_on, name="pulse", daemon=True).start()

    def begin(self, doing: str, step: int | None = None) -> None:
        """Note what the main thread begins; without `step`, the step stays the same."""
        before = self._beat
        self._beat = Beat(before.moves + 1, before.step if step is None else step, doing)

    def _go_on(self) -> None:
        with contextlib.suppress(OSError):  # The receiver has gone.
            while True:
                self._tell(self._beat)
                time.sleep(BEAT_SECONDS)


@final
class Watch:
    """Finds the process of a run that hangs. Pure: times are arguments, in seconds.

    Args:
        limit: A process hangs if it is silent for longer, or is behind when no process makes
            progress for longer.
    """

    def __init__(self, names: Iterable[tuple[int, str]], limit: float, now: float) -> None:
        self._names = dict(names)
        self._limit = limit
        self._beats = dict.fromkeys(self._names, Beat())
        self._heard = dict.fromkeys(self._names, now)
        self._moved = now
        self._looked = now

    def hear(self, index: int, beat: Beat, now: float) -> None:
        """Note a beat of a process."""
        if index in self._names:
            if beat.moves != self._beats[index].moves:
                self._moved = now
            self._beats[index] = beat
            self._heard[index] = now

    def forget(self, index: int) -> None:
        """Expect no more beats of a process: it has ended."""
        self._names.pop(index, None)

    def hanging(self, now: float) -> tuple[int | None, str] | None:
        """Return which process hangs, and the reason to think so; None if none does.

        The index is None if all wait and none is behind the others.
        """
        return self.silent(now) or self._stuck(now)

    def doing(self, index: int) -> str:
        """Return what a process did at its last beat."""
        return self._beats[index].doing

    def silent(self, now: float) -> tuple[int, str] | None:
        """Return a silent process, as `hanging` does."""
        slept = now - self._looked
        self._looked = now
        if slept > BLIND_SECONDS:
            self._moved += slept
            self._heard = {index: seconds + slept for index, seconds in self._heard.items()}
        for index, who in self._names.items():
            if now - self._heard[index] > self._limit:
                doing = self._beats[index].doing
                return index, f"{who} hangs: no sign of it for {self._limit:g} s, since {doing}"
        return None

    def _stuck(self, now: float) -> tuple[int | None, str] | None:
        is_waited_for = any(self._beats[index].doing != OWN_CODE for index in self._names)
        if not is_waited_for or now - self._moved <= self._limit:
            return None
        behind = min(self._names, key=lambda index: self._beats[index].step)
        doing = self._beats[behind].doing
        ahead = [n for n in self._names if self._beats[n].step > self._beats[behind].step]
        if ahead:
            other = self._beats[ahead[0]].doing
            return behind, (
                f"{self._names[behind]} hangs: {doing} for {self._limit:g} s, and "
                f"{self._names[ahead[0]]} waits in {other}"
            )
        doings = [f"{who} is in {self._beats[n].doing}" for n, who in self._names.items()]
        only = next(iter(self._names)) if len(self._names) == 1 else None
        return only, f"the run hangs: for {self._limit:g} s, {', '.join(doings)}"


def to_values(beat: Beat) -> list[Any]:
    """Return a beat as JSON types."""
    return [beat.moves, beat.step, beat.doing]


def from_values(values: Any) -> Beat:
    """Return the beat from the result of `to_values`. Raises FieldError for anything else."""
    return Beat(*typed(values, tuple[Count, Count, str], "beat"))


@final
class Beats:
    """Passes the beats in one process's pipe to its watch."""

    def __init__(self, index: int, watch: Watch) -> None:
        self._index = index
        self._watch = watch
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take bytes from the pipe."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        # The user's code may write into the pipe: what is no beat is no sign of life.
        with contextlib.suppress(ValueError, RecursionError):
            for line in lines[-1:]:
                self._watch.hear(self._index, from_values(json.loads(line)), time.monotonic())

    def finish(self) -> None:
        """Do nothing at the end of the pipe: the supervisor sees whether the process has ended."""


def pulse_to_supervisor(doing: str = "start") -> Pulse | None:
    """Start sending beats to the supervisor; None if there is none.

    `doing` is what the process does until it says `begin`.
    """
    given = os.environ.pop(VARIABLE, "")
    if not given.isdecimal():
        return None
    pipe = int(given)
    os.set_inheritable(pipe, False)

    def tell(beat: Beat) -> None:
        os.write(pipe, json.dumps(to_values(beat)).encode() + b"\n")

    return Pulse(tell, doing)


def nobody_asks(doing: str, step: int | None = None) -> None:
    """Take the place of `Pulse.begin` if nothing watches."""


def dump_stacks_when_asked() -> None:
    """Write the Python stacks of all threads to standard error at STACKS_SIGNAL."""
    # A handler in C, which works while the main thread waits in a library.
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True)
