"""Measures the best layouts of a plan with short runs, as `tfunet train` runs them."""

import math
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final, overload

from tfunet.bench.launch.one_trial import execute, train_command
from tfunet.bench.study.toml_writer import config_toml
from tfunet.config.run import RunConfig
from tfunet.files.atomic import write_atomic
from tfunet.plan.prediction import Prediction
from tfunet.record import RunFolder

# Steps of about so long together, after which a run ends; at least and at most so many.
STEP_SECONDS, LEAST_STEPS, MOST_STEPS = 6.0, 8, 60
# Each layout is measured so often, in turns: the machine changes.
ROUNDS = 2
# A run that takes longer is ended.
RUN_SECONDS = 150.0


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What short runs of a layout took.

    Args:
        seconds: The median step of each run.
        num_bytes: The most memory of a device; 0 where it is not counted, as on most CPUs.
        failure: Why a run failed; empty if none did.
    """

    predicted: Prediction
    seconds: tuple[float, ...] = ()
    num_bytes: int = 0
    failure: str = ""

    @property
    def median(self) -> float:
        """Seconds of a step; infinite if all runs failed."""
        return statistics.median(self.seconds) if self.seconds else math.inf


def measure(
    config: RunConfig,
    chosen: Sequence[Prediction],
    noted: Sequence[int],
    *,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda line: None,
    run_seconds: float = RUN_SECONDS,
) -> list[Measurement]:
    """Return what short runs of the chosen layouts took; those that a signal ended are left out.

    Args:
        noted: Gets a signal's number; what has been measured by then is returned.
    """
    found = [Measurement(predicted=one) for one in chosen]
    with tempfile.TemporaryDirectory() as name:
        for turn in range(rounds):
            for number, one in enumerate(found):
                if noted:
                    break
                if one.failure:
                    continue
                say(f"measuring {one.predicted.layout}, {turn + 1} of {rounds}")
                folder = Path(name) / f"{turn}-{number}"
                found[number] = _measured(config, one, folder, noted, run_seconds)
    return [one for one in found if one.seconds or one.failure]


def short(config: RunConfig, predicted: Prediction) -> RunConfig:
    """Return a run of a few steps in a layout, without what does not belong to a step."""
    seconds = max(predicted.seconds, 1e-3)
    steps = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(STEP_SECONDS / seconds)))
    return replace(
        predicted.layout.applied(config),
        steps=steps,
        callbacks=(),
        metrics=(),
        track=(),
        prove=False,
        trace=False,
        profile=False,
        time_parts=False,
        checkpoint_steps=None,
        decay_epochs=(),
    )


def _measured(
    config: RunConfig,
    before: Measurement,
    folder: Path,
    noted: Sequence[int],
    run_seconds: float,
) -> Measurement:
    folder.mkdir()
    write_atomic(folder / "config.toml", config_toml(short(config, before.predicted)))
    ends = _Deadline(noted, run_seconds)
    execute(train_command(folder), folder / "log.txt", ends)
    result = RunFolder(folder).read_result()
    if result is None:
        if noted:
            return before
        reason = (RunFolder(folder).read_failure() or {}).get("reason", "")
        if ends.is_over:
            reason = f"it took longer than {run_seconds:.0f} s"
        return replace(before, failure=str(reason).partition("\n")[0] or "it failed")
    seconds = result["median_step_seconds"]
    peaks = [one for one in result["peak_device_bytes"] if one is not None]
    return replace(
        before,
        seconds=(*before.seconds, *([] if seconds is None else [seconds])),
        num_bytes=max([before.num_bytes, *peaks]),
    )


@final
class _Deadline(Sequence[int]):
    """Signals that were noted, and SIGTERM once the time is over."""

    def __init__(self, noted: Sequence[int], seconds: float) -> None:
        self._noted, self._end = noted, time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._end

    def _all(self) -> list[int]:
        return [*self._noted, *([signal.SIGTERM] if self.is_over else [])]

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._all()[at]
