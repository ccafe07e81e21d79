"""What a process did when: the rows of spans-<process>.csv. Imports no TensorFlow."""

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tfunet.files.table import Table

NUMBER = re.compile(r" \d+$")


@dataclass(frozen=True, kw_only=True)
class Span:
    """One thing that a process did.

    Args:
        step: Optimizer step that it was in, or that was made last.
        name: "step", "evaluation", and inside of a step "input", "all-reduce", "swap out".
        begin_seconds: Unix time, by the clock of the process's host.
        seconds: Its duration.
    """

    step: int
    name: str
    begin_seconds: float
    seconds: float


@final
class Spans:
    """Times what a process does: one thing after another, and what happens inside of these.

    Its `begin` takes what `process.watchdog.Pulse.begin` takes, and passes it on. What is over is
    in the file when the next thing begins, so that it outlives a process that is killed.

    Args:
        began: Unix time at which the process was started.
        tell: The `begin` to pass on to.
    """

    def __init__(self, began: float, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._name, self._begin, self._step = "start", began, 0
        # What is inside of a step comes from TensorFlow's threads; the main thread writes it.
        self._waiting: deque[Span] = deque()
        self._table: Table | None = None

    def begin(self, doing: str, step: int | None = None) -> None:
        """End what was begun last, and note what begins."""
        self._tell(doing, step)
        name = NUMBER.sub("", doing)
        # Batches of an evaluation, cases that are decoded: one span.
        if name != self._name or step is not None:
            self._end()
            self._name = name
        self._step = self._step if step is None else step

    def add(self, name: str, begin_seconds: float, end_seconds: float) -> None:
        """Note something inside of what was begun last, between two Unix times."""
        seconds = float(end_seconds - begin_seconds)
        self._waiting.append(
            Span(step=self._step, name=name, begin_seconds=begin_seconds, seconds=seconds)
        )

    def write_to(self, table: Table, step: int) -> None:
        """Write what there is, and from now on all; `step` was made last."""
        self._table, self._step = table, step
        self._waiting = deque(
            Span(step=step, name=one.name, begin_seconds=one.begin_seconds, seconds=one.seconds)
            for one in self._waiting
        )

    def close(self) -> None:
        """End what was begun last, and the file."""
        self._end()
        if self._table is not None:
            self._table.close()
            self._table = None

    def _end(self) -> None:
        now = time.time()
        self.add(self._name, self._begin, now)
        self._begin = now
        while self._table is not None and self._waiting:
            self._table.append(vars(self._waiting.popleft()))
