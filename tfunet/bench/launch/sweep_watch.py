"""Shows a sweep while it runs: `tfunet sweep watch`. It reads files, and needs nothing else."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tfunet import exit_codes
from tfunet.bench.launch.sweep_progress import RunningTrial, SweepProgress, read_progress, spark
from tfunet.bench.launch.time_left import duration
from tfunet.files.printable import printable
from tfunet.process.terminal import LINE_SECONDS

EVERY_SECONDS = 2.0
# Reading the files of a large sweep must not keep a core busy.
MOST_SHARE = 0.1
MOST_FAILURES = 5
BAR_WIDTH = 50


def watch(
    folder: Path, *, console: Console | None = None, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Show the sweep until no trial runs or waits; a line now and then without a terminal."""
    console = console or Console(highlight=False)
    progress = read_progress(folder)
    with _ended_by_signals() as told:

        def pause(seconds: float) -> None:
            if told:
                sys.exit(exit_codes.TERMINATED)
            sleep(seconds)

        if console.is_terminal and not console.is_dumb_terminal:
            _draw(folder, progress, console, pause)
        else:
            _print_lines(folder, progress, console, pause)
    return exit_codes.OK


def _draw(
    folder: Path, progress: SweepProgress, console: Console, sleep: Callable[[float], None]
) -> None:
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for reading in _readings(folder, progress, sleep):
            live.update(view(reading, folder), refresh=True)


def _print_lines(
    folder: Path, progress: SweepProgress, console: Console, sleep: Callable[[float], None]
) -> None:
    said, since = None, time.monotonic()
    for reading in _readings(folder, progress, sleep):
        now = time.monotonic()
        if reading.counts != said or now - since >= LINE_SECONDS:
            print(f"{time.strftime('%H:%M:%S')} {line(reading)}", file=console.file, flush=True)
            said, since = reading.counts, now


def _readings(
    folder: Path, progress: SweepProgress, sleep: Callable[[float], None]
) -> Iterator[SweepProgress]:
    """Yield the progress again and again, up to the end of the sweep."""
    yield progress
    while not progress.is_over:
        since = time.monotonic()
        progress = read_progress(folder)
        spent = time.monotonic() - since
        yield progress
        if not progress.is_over:
            sleep(max(EVERY_SECONDS, spent / MOST_SHARE))


def line(progress: SweepProgress) -> str:
    """Return the progress in one line."""
    states = ", ".join(f"{count} {state}" for state, count in progress.counts.items() if count)
    parts = [f"{progress.name}: {progress.num_trials} trials: {states}"]
    parts += [f"{trial.name}: {_so_far(trial)}" for trial in progress.running[:3]]
    return printable("; ".join([*parts, *_left(progress)]))


def view(progress: SweepProgress, folder: Path) -> Group:
    """Return the progress as it is drawn on a terminal."""
    states = ", ".join(f"{count} {state}" for state, count in progress.counts.items() if count)
    head = Text.assemble((printable(progress.name), "bold"), f"  {states}", *_after(progress))
    parts: list[Text | Table] = [head, Text(_bar(progress)), Text(), _cell_table(progress)]
    if progress.running:
        parts += [Text(), _running_table(progress), *_log_lines(progress)]
    elif not progress.is_over:
        parts.append(
            Text(f"No trial runs now. To go on: tfunet sweep resume {printable(str(folder))}")
        )
    if progress.failures:
        parts.append(Text())
    for name, reason in progress.failures[-MOST_FAILURES:]:
        parts.append(Text.assemble((f"failed {printable(name)}: ", "red"), printable(reason)))
    return Group(*parts)


def _cell_table(progress: SweepProgress) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("settings", "done", "images/s", "Dice", "Dice over epochs"):
        table.add_column(name, no_wrap=True)
    for cell in progress.cells:
        table.add_row(
            Text(printable(cell.label)),
            f"{cell.done} of {cell.planned}",
            _number(cell.images_per_second, 1),
            _number(cell.dice, 3),
            spark(cell.dice_of_epochs),
        )
    return table


def _running_table(progress: SweepProgress) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("running", "for", "epoch", "loss", "Dice"):
        table.add_column(name, no_wrap=True)
    for trial in progress.running:
        table.add_row(
            Text(printable(trial.name)),
            duration(trial.seconds),
            _epochs(trial),
            " ".join(filter(None, (spark(trial.losses), _last(trial.losses)))),
            " ".join(filter(None, (spark(trial.dice), _last(trial.dice)))),
        )
    return table


def _log_lines(progress: SweepProgress) -> list[Text]:
    return [
        Text(printable(trial.last_line), style="dim", no_wrap=True, overflow="ellipsis")
        for trial in progress.running
        if trial.last_line
    ]


def _bar(progress: SweepProgress) -> str:
    filled = BAR_WIDTH * progress.num_ended // max(1, progress.num_trials)
    return f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {progress.num_ended}/{progress.num_trials}"


def _after(progress: SweepProgress) -> list[str]:
    return [f", {words}" for words in _left(progress)]


def _left(progress: SweepProgress) -> list[str]:
    if progress.is_over or not progress.seconds_left:
        return []
    return [f"about {duration(progress.seconds_left)} left"]


def _so_far(trial: RunningTrial) -> str:
    scores = [("loss", trial.losses), ("Dice", trial.dice)]
    numbers = [f"{name} {_last(values)}" for name, values in scores if values]
    return ", ".join([f"epoch {_epochs(trial)}", *numbers])


def _epochs(trial: RunningTrial) -> str:
    done, planned = trial.epochs
    return str(done) if planned is None else f"{done} of {planned}"


def _last(values: tuple[float, ...]) -> str:
    return f"{values[-1]:.3f}" if values else ""


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """End by SystemExit on SIGTERM and SIGHUP, so that the terminal gets its cursor back.

    Yields the signals that came: Python ignores what is raised while it deletes an object.
    """
    told: list[int] = []

    def leave(number: int, frame: object) -> NoReturn:
        told.append(number)
        sys.exit(exit_codes.TERMINATED)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, leave)
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
