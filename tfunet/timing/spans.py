"""What a process did and when: the rows of spans-<process>.csv. Imports no TensorFlow."""

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from tfunet.files.table import Table

NUMBER = re.compile(r" \d+$")


@dataclass(frozen=True, kw_only=True)
class Span:
    """One activity of a process.

    Args:
        step: Optimizer step that it belongs to, or the last one before it.
        begin_seconds: Unix time by the clock of the process's host.
    """

    step: int
    name: str
    begin_seconds: float
    seconds: float


@final
class Spans:
    """Times the activities of a process that `began` at a Unix time, and parts within them.

    `begin` has the arguments of `process.watchdog.Pulse.begin` and passes them on to `tell`. Each
    activity is written when the next begins: the file is useful after the process is killed.
    """

    def __init__(self, began: float, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._name, self._begin, self._step = "start", began, 0
        # TensorFlow's threads add parts of a step; the main thread writes them.
        self._waiting: deque[Span] = deque()
        self._table: Table | None = None

    def begin(self, doing: str, step: int | None = None) -> None:
        """End the current activity, and begin another."""
        self._tell(doing, step)
        name = NUMBER.sub("", doing)
        # All batches of an evaluation, and all decoded cases, are one span.
        if name != self._name or step is not None:
            self._end()
            self._name = name
        self._step = self._step if step is None else step

    def add(self, name: str, begin_seconds: float, end_seconds: float) -> None:
        """Note a part of the current activity, between two Unix times."""
        # Somebody may set the clock in between.
        seconds = max(0.0, float(end_seconds - begin_seconds))
        self._waiting.append(
            Span(step=self._step, name=name, begin_seconds=begin_seconds, seconds=seconds)
        )

    def write_to(self, table: Table, step: int) -> None:
        """Write all spans so far, and from now on each; `step` is the last optimizer step."""
        self._table, self._step = table, step
        self._waiting = deque(replace(span, step=step) for span in self._waiting)

    def close(self) -> None:
        """End the current activity, and close the file."""
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
