"""How far a sweep is, from its files alone. Pure but for reading."""

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from tfunet.bench.launch.sweep_status import counts
from tfunet.bench.launch.time_left import TimeLeft
from tfunet.bench.records.run_tables import number_or_nan, read_table
from tfunet.bench.records.sweep_record import FINISHED, SweepRecord, TrialRecord, read_sweep
from tfunet.bench.records.ways_of_training import way_of
from tfunet.config.keys import describe
from tfunet.config.run import RunConfig
from tfunet.files.regular import read_end
from tfunet.files.typed import RecordError, column_names, whole
from tfunet.record import RunFolder

# Bytes at the end of a log in which its last line is looked for.
LOG_END = 4096
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A trial that runs now.

    Args:
        seconds: Time since its settings were written.
        epochs: Epochs with a row, and those planned; None if the run is one of steps.
        losses: Training loss of each epoch so far.
        dice: Mean Dice over regions of each evaluation so far.
        last_line: Last line of its log.
    """

    name: str
    seconds: float
    epochs: tuple[int, int | None]
    losses: tuple[float, ...]
    dice: tuple[float, ...]
    last_line: str


@dataclass(frozen=True, kw_only=True)
class CellProgress:
    """The trials of one combination of settings: medians of those that are done."""

    label: str
    done: int
    planned: int
    images_per_second: float | None
    dice: float | None
    dice_of_epochs: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """A sweep under way.

    Args:
        counts: Number of trials in each state.
        failures: Trials that failed, with their reasons.
        seconds_left: Estimated from the trials that are done; None without any.
    """

    name: str
    counts: dict[str, int]
    cells: tuple[CellProgress, ...]
    running: tuple[RunningTrial, ...]
    failures: tuple[tuple[str, str], ...]
    seconds_left: float | None

    @property
    def num_trials(self) -> int:
        """All trials of the plan."""
        return sum(self.counts.values())

    @property
    def num_ended(self) -> int:
        """Trials that will not be run unless somebody asks for it."""
        return sum(self.counts[state] for state in (*FINISHED, "failed"))

    @property
    def is_over(self) -> bool:
        """Whether no trial runs or waits."""
        return self.num_ended == self.num_trials


def read_progress(folder: Path, now: float | None = None) -> SweepProgress:
    """Return how far the sweep in a folder is; ValueError if it holds none."""
    now = time.time() if now is None else now
    sweep = read_sweep(folder)
    under_way = [trial for trial in sweep.readable if _runs(trial)]
    names = {trial.id for trial in under_way}
    running = tuple(_running(trial, now) for trial in under_way)
    states = counts(trial for trial in sweep.trials if trial.id not in names)
    states["running"] += len(running)
    return SweepProgress(
        name=sweep.name,
        counts=states,
        cells=tuple(_cells(sweep)),
        running=running,
        failures=tuple(
            (trial.id, trial.reason) for trial in sweep.trials if trial.state == "failed"
        ),
        seconds_left=_seconds_left(sweep, under_way, running),
    )


def spark(values: Sequence[float], width: int = 24) -> str:
    """Return values as a line of bars, the last one at its end; "" without any."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    # A bar is a value, or the mean of several that follow each other.
    count = min(width, len(known))
    edges = [len(known) * at // count for at in range(count + 1)]
    shown = [fmean(known[first:last]) for first, last in itertools.pairwise(edges)]
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)


def _runs(trial: TrialRecord) -> bool:
    if trial.state in (*FINISHED, "failed"):
        return False
    # A job of SLURM holds the lock of its own folder only.
    return trial.state == "running" or RunFolder(trial.folder).is_locked()


def _running(trial: TrialRecord, now: float) -> RunningTrial:
    losses, dice = _curves(trial)
    config: RunConfig = trial.config
    try:
        since = (trial.folder / "config.toml").stat().st_mtime
    except OSError:
        since = now
    return RunningTrial(
        name=trial.id,
        seconds=max(0.0, now - since),
        epochs=(len(losses), None if config.steps is not None else config.epochs),
        losses=losses,
        dice=dice,
        last_line=_last_line(trial.folder / "log.txt"),
    )


def _curves(trial: TrialRecord) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return losses and Dice of the epochs so far."""
    path = trial.folder / "epochs.csv"
    table = read_table(path, {"epoch": whole, "loss": number_or_nan})
    regions = []
    with contextlib.suppress(RecordError):
        regions = [name for name in column_names(path) if name.startswith("dice_")]
    scores = read_table(path, dict.fromkeys(regions, number_or_nan))
    rows = zip(*scores.values(), strict=True) if regions else ()
    means = (fmean(row) for row in rows)
    return tuple(table["loss"]), tuple(mean for mean in means if not math.isnan(mean))


def _last_line(path: Path) -> str:
    try:
        text = read_end(path, LOG_END)
    except OSError:
        return ""
    # A progress bar ends its lines with a carriage return.
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _cells(sweep: SweepRecord) -> Iterable[CellProgress]:
    by_cell: dict[int, list[TrialRecord]] = {}
    for trial in sweep.readable:
        by_cell.setdefault(trial.cell, []).append(trial)
    for trials in by_cell.values():
        first = trials[0]
        rest = {
            key: value
            for key, value in first.settings.items()
            if key not in ("backend", "num_replicas", "backend_options")
        }
        label = f"{way_of(first)} x{first.config.num_replicas}"
        results = [trial.result for trial in trials if trial.result is not None]
        speeds = [
            result.images_per_second for result in results if result.images_per_second is not None
        ]
        dice = [result.mean_dice for result in results if result.mean_dice is not None]
        ended = next((trial for trial in reversed(trials) if trial.result is not None), None)
        yield CellProgress(
            label=f"{label}, {describe(rest)}" if rest else label,
            done=sum(trial.state in FINISHED for trial in trials),
            planned=len(trials),
            images_per_second=median(speeds) if speeds else None,
            dice=median(dice) if dice else None,
            dice_of_epochs=_curves(ended)[1] if ended is not None else (),
        )


def _seconds_left(
    sweep: SweepRecord, under_way: Sequence[TrialRecord], running: Sequence[RunningTrial]
) -> float | None:
    seconds: dict[int, list[float]] = {}
    for trial in sweep.trials:
        if trial.result is not None and trial.result.elapsed_seconds is not None:
            seconds.setdefault(trial.cell, []).append(trial.result.elapsed_seconds)
    ids = {trial.id for trial in under_way}
    waiting = [
        trial
        for trial in sweep.readable
        if trial.state in ("waiting", "interrupted") and trial.id not in ids
    ]
    left = TimeLeft(waiting, seconds)
    still = left.seconds
    if still is None:
        return None
    for trial, now in zip(under_way, running, strict=True):
        needed = left.of(trial.cell)
        still += max(0.0, needed - now.seconds)
    # Trials that run side by side share the rest.
    return still / max(1, len(running))
