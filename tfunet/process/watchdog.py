"""Notices that a process of a run hangs, and says which. Imports no TensorFlow.

Each process tells its watch, every second, how far it is: the supervisor through a pipe, or,
where srun or mpirun started the processes, the chief through the connections of their meeting.
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

VARIABLE = "TFUNET_PULSE"  # The pipe to the supervisor, by number.
STACKS_SIGNAL = signal.SIGUSR2
BEAT_SECONDS = 1.0
# Who has not looked for so long was itself stopped, with all whom it watches perhaps.
BLIND_SECONDS = 5.0


@dataclass(frozen=True)
class Beat:
    """How far a process is.

    Args:
        moves: Grows whenever its main thread gets on.
        step: Optimizer step that it is in, or that it was in last.
        doing: What it does, in words: "step 12", "evaluation".
    """

    moves: int = 0
    step: int = 0
    doing: str = "start"


@final
class Pulse:
    """Tells how far this process is, from a thread, until the process ends.

    A main thread that waits in TensorFlow lets the thread go on. A process that is stopped, or
    whose interpreter is blocked by an extension, is silent.
    """

    def __init__(self, tell: Callable[[Beat], None]) -> None:
        self._beat = Beat()
        self._tell = tell
        threading.Thread(target=self._go_on, name="pulse", daemon=True).start()

    def begin(self, doing: str, step: int | None = None) -> None:
        """Note what the main thread begins; `step` stays as it was where none is given."""
        before = self._beat
        self._beat = Beat(before.moves + 1, before.step if step is None else step, doing)

    def _go_on(self) -> None:
        with contextlib.suppress(OSError):  # Nobody listens any more.
            while True:
                self._tell(self._beat)
                time.sleep(BEAT_SECONDS)


@final
class Watch:
    """What is known of the processes of a run. Pure: times are given, in seconds.

    Args:
        names: Of each process, by index: "process 1 of 2".
        limit: A process that is silent for longer hangs; so does one where nobody gets on for
            longer.
        now: When it begins.
    """

    def __init__(self, names: Iterable[tuple[int, str]], limit: float, now: float) -> None:
        self._names = dict(names)
        self._limit = limit
        self._beats = dict.fromkeys(self._names, Beat())
        self._heard = dict.fromkeys(self._names, now)
        self._moved = now
        self._looked = now

    def hear(self, index: int, beat: Beat, now: float) -> None:
        """Note what a process told."""
        if index in self._names:
            if beat.moves != self._beats[index].moves:
                self._moved = now
            self._beats[index] = beat
            self._heard[index] = now

    def forget(self, index: int) -> None:
        """No longer expect anything of a process: it has ended."""
        self._names.pop(index, None)

    def hanging(self, now: float) -> tuple[int | None, str] | None:
        """Return which process hangs, and why that is thought; None while none does.

        The index is None where all wait and none is behind the others.
        """
        return self.silent(now) or self._stuck(now)

    def doing(self, index: int) -> str:
        """Return what a process did when it was last heard."""
        return self._beats[index].doing

    def silent(self, now: float) -> tuple[int, str] | None:
        """Return a process that gives no sign, as `hanging` does."""
        slept = now - self._looked
        self._looked = now
        if slept > BLIND_SECONDS:
            self._moved += slept
            self._heard = {index: one + slept for index, one in self._heard.items()}
        for index, who in self._names.items():
            if now - self._heard[index] > self._limit:
                doing = self._beats[index].doing
                return index, f"{who} hangs: no sign of it for {self._limit:g} s, since {doing}"
        return None

    def _stuck(self, now: float) -> tuple[int | None, str] | None:
        if not self._names or now - self._moved <= self._limit:
            return None
        behind = min(self._names, key=lambda index: self._beats[index].step)
        doing = self._beats[behind].doing
        ahead = [one for one in self._names if self._beats[one].step > self._beats[behind].step]
        if ahead:
            other = self._beats[ahead[0]].doing
            return behind, (
                f"{self._names[behind]} hangs: {doing} for {self._limit:g} s, and "
                f"{self._names[ahead[0]]} waits in {other}"
            )
        told = [f"{who} is in {self._beats[one].doing}" for one, who in self._names.items()]
        only = next(iter(self._names)) if len(self._names) == 1 else None
        return only, f"the run hangs: for {self._limit:g} s, {', '.join(told)}"


def to_values(beat: Beat) -> list[Any]:
    """Return a beat as JSON takes it."""
    return [beat.moves, beat.step, beat.doing]


def from_values(values: Any) -> Beat:
    """Return the beat that `to_values` was given."""
    moves, step, doing = values
    return Beat(int(moves), int(step), str(doing))


@final
class Beats:
    """What comes through the pipe from one process, for its watch."""

    def __init__(self, index: int, watch: Watch) -> None:
        self._index = index
        self._watch = watch
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            beat = from_values(json.loads(lines[-1]))
            self._watch.hear(self._index, beat, time.monotonic())

    def finish(self) -> None:
        """Take the end: whether the process has ended too, others see."""


def pulse_to_supervisor() -> Pulse | None:
    """Begin to tell the supervisor; None where none listens."""
    given = os.environ.pop(VARIABLE, "")
    if not given.isdecimal():
        return None
    pipe = int(given)
    os.set_inheritable(pipe, False)

    def tell(beat: Beat) -> None:
        os.write(pipe, json.dumps(to_values(beat)).encode() + b"\n")

    return Pulse(tell)


def nobody_asks(doing: str, step: int | None = None) -> None:
    """Stand in for `Pulse.begin` where nobody watches."""


def dump_stacks_when_asked() -> None:
    """Write the Python stacks of all threads to standard error at STACKS_SIGNAL."""
    # A handler in C: it comes through where the main thread waits in a library.
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True)
