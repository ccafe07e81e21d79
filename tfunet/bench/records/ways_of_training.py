"""Ways of training: backends with their options, which a sweep compares. No NumPy."""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from tfunet.backend import facts_of
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.records.trial_result import Result
from tfunet.config.data_keys import AUTO
from tfunet.config.keys import show

T = TypeVar("T")
# The way by which the others are measured.
BASELINE = "single"


def way_of(trial: TrialRecord) -> str:
    """Return the name of a trial's way: backend, options, and what else differs from the usual."""
    config = trial.config
    parts = [config.backend]
    parts += [f"{key}={show(value)}" for key, value in sorted(config.backend_options.items())]
    # By default, each of several replicas has a process of its own.
    usual = facts_of(config.backend).one_process or config.processes == config.num_devices > 1
    if config.processes is not None and not usual:
        parts.append(f"processes={config.processes}")
    if math.prod(config.split) > 1:
        parts.append(f"split={'x'.join(map(str, config.split))}")
    if config.stages > 1:
        parts += [f"stages={config.stages}", f"schedule={config.schedule}"]
        if config.micro_batches > 1:
            parts.append(f"micro_batches={config.micro_batches}")
        if config.balance != "time":
            parts.append(f"balance={','.join(config.balance)}")
        parts += ["recompute"] if config.recompute else []
    if config.tiling:
        parts.append(f"tiling={'x'.join(map(str, config.tiling))}")
    if config.pipeline != "tf":
        parts.append(f"pipeline={config.pipeline}")
    if config.store != AUTO:
        parts.append(f"store={config.store}")
    return " ".join(parts)


def speed_by_repeat(trials: Iterable[TrialRecord]) -> dict[int, float]:
    """Return images per second of the trials with numbers, by repeat."""
    return by_repeat(trials, lambda result: result.images_per_second)


def by_repeat(trials: Iterable[TrialRecord], number: Callable[[Result], T | None]) -> dict[int, T]:
    """Return a number of each trial's result, by repeat; trials without it are left out."""
    return {
        trial.repeat: value
        for trial in trials
        if trial.result is not None and (value := number(trial.result)) is not None
    }
