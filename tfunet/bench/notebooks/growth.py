"""The largest volume that trains under a cap of memory, with and without large-model support.

It comes from a sweep over sizes, in which the trials that do not fit fail. Tables and sentences
also have the cost of support. Pure but for reading.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tfunet.bench.analysis.confidence_intervals import Spread, spread
from tfunet.bench.analysis.swapping import budget_text, device_bytes, step_seconds, swap_fault
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.bench.records.ways_of_training import by_repeat
from tfunet.bench.report.number_text import NONE, spread_text, values_text
from tfunet.config.amount import MIB, whole_mib
from tfunet.files.typed import RecordError
from tfunet.record import RunFolder
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.text import read_plans

WITHOUT = "without"
KILLED = re.compile(r"was killed by (\w+)")


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """All trials with samples of one shape.

    Args:
        ways: Trials under the cap: "without" support, or by their budget, such as "swap auto".
        kept: Trials that keep all tensors and have enough memory for them.
    """

    shape: tuple[int, ...]
    ways: Mapping[str, tuple[TrialRecord, ...]]
    kept: tuple[TrialRecord, ...]

    @property
    def voxels(self) -> int:
        """Number of voxels of a sample."""
        return math.prod(self.shape)

    @property
    def label(self) -> str:
        """Such as "48 x 48 x 48"."""
        return " x ".join(map(str, self.shape))

    def trains(self, way: str) -> bool:
        """Whether every repeat trained in this way; fitting sometimes does not count."""
        trials = self.ways.get(way, ())
        return bool(trials) and all(trial.result is not None for trial in trials)

    def over_kept(self, way: str) -> Spread | None:
        """Return step time divided by that of `kept`, by repeat; None without both."""
        upper, lower = (
            by_repeat(trials, lambda result: result.median_step_seconds)
            for trials in (self.ways.get(way, ()), self.kept)
        )
        common = sorted(upper.keys() & lower.keys())
        return spread([upper[repeat] / lower[repeat] for repeat in common]) if common else None

    def predicted(self, way: str) -> Spread | None:
        """Return the ratio that the plans predict; None if no plan was made with times."""
        plans = [plan for plan in self.plans(way) if plan.unlimited_step_seconds]
        ratios = [plan.step_seconds / plan.unlimited_step_seconds for plan in plans]
        return spread(ratios) if ratios else None

    def plans(self, way: str) -> list[Plan]:
        """Return the plan of each trial that trained with support."""
        trained = [trial for trial in self.ways.get(way, ()) if trial.result is not None]
        return [
            max(read_plans(trial.folder), key=lambda plan: plan.unlimited_peak_bytes)
            for trial in trained
            if trial.config.swap is not None and not swap_fault(trial)
        ]


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What trains under the cap of a study, such as "200MiB", or "the device's memory" without one.

    `ways` are "without", then the budgets; `sizes` are sorted.
    """

    cap: str
    ways: tuple[str, ...]
    sizes: tuple[SampleSize, ...]

    def largest(self, way: str) -> SampleSize | None:
        """Return the largest size that trains in a way, or None."""
        return max(
            (size for size in self.sizes if size.trains(way)),
            key=lambda size: size.voxels,
            default=None,
        )


def read_growth(sweep: SweepRecord) -> Growth:
    """Return what trains under the smallest cap of a sweep.

    Trials without support under a larger cap, or without a cap, keep everything. Raises ValueError
    if the sweep lacks trials with support, or without it.
    """
    # A trial that has not begun has no shape.
    trials = [trial for trial in sweep.readable if trial.state not in ("waiting", "running")]
    caps = [trial.config.cpu_memory for trial in trials if trial.config.cpu_memory is not None]
    cap = min(caps, key=whole_mib, default=None)
    by_shape: dict[tuple[int, ...], dict[str | None, list[TrialRecord]]] = {}
    for trial in trials:
        config = trial.config
        # A trial that failed has no plan, but a budget.
        way = WITHOUT if config.swap is None else f"swap {budget_text(config)}"
        key = way if config.cpu_memory == cap else None
        if key is not None or config.swap is None:
            try:
                shape = _shape(trial)
            except RecordError as error:
                warnings.warn(f"{trial.id} is left out: {error}", stacklevel=2)
                continue
            by_shape.setdefault(shape, {}).setdefault(key, []).append(trial)
    ways = {way for groups in by_shape.values() for way in groups if way is not None}
    if WITHOUT not in ways or len(ways) < 2:
        raise ValueError(
            f"{sweep.folder} does not have trials with and without large-model support under one "
            'cap. Give the study swap = ["none", "auto"] in its [grid], and several sizes.'
        )
    sizes = [
        SampleSize(
            shape=shape,
            ways={way: tuple(group) for way, group in groups.items() if way is not None},
            kept=tuple(groups.get(None, ())),
        )
        for shape, groups in by_shape.items()
    ]
    return Growth(
        cap=cap or "the device's memory",
        ways=(WITHOUT, *sorted(ways - {WITHOUT}, reverse=True)),
        sizes=tuple(sorted(sizes, key=lambda size: (size.voxels, size.shape))),
    )


def size_rows(growth: Growth) -> list[dict[str, str]]:
    """Return a row for each size: the memory it needs, and whether it trains in each way."""
    return [
        {
            "size": size.label,
            "everything kept (MiB)": _mib(device_bytes(size.kept)),
            **{f"{way}, in {growth.cap}": ended(size.ways.get(way, ())) for way in growth.ways},
        }
        for size in growth.sizes
    ]


def cost_rows(growth: Growth) -> list[dict[str, str]]:
    """Return a row for each size and budget that trained: its step time and memory."""
    return [
        {
            "size": size.label,
            "budget": way,
            "step (ms)": _milliseconds(size.ways[way]),
            "all kept (ms)": _milliseconds(size.kept),
            "times as long": spread_text(size.over_kept(way), 2),
            "predicted": spread_text(size.predicted(way), 2),
            "swapped, recomputed, split": ", ".join(
                f"{median(counts):.0f}"
                for counts in (
                    [plan.count("swap") for plan in plans],
                    [plan.count("recompute") for plan in plans],
                    [len(plan.split) for plan in plans],
                )
            ),
            "device (MiB)": _mib(device_bytes(size.ways[way])),
        }
        for size in growth.sizes
        for way in growth.ways[1:]
        if size.trains(way) and (plans := size.plans(way))
    ]


def growth_sentences(growth: Growth) -> list[str]:
    """Return a sentence on the largest size in each way."""
    base = growth.largest(WITHOUT)
    lines = [
        f"In {growth.cap} the largest size that trains without support is {base.label}."
        if base
        else f"In {growth.cap} no size of the study trains without support."
    ]
    for way in growth.ways[1:]:
        size = growth.largest(way)
        if size is None:
            lines.append(f"With {way} none trains.")
            continue
        times = f", {size.voxels / base.voxels:.2f} times the voxels" if base else ""
        lines.append(f"With {way} it is {size.label}{times}{_cost(size, way)}.")
    return lines


def ended(trials: Sequence[TrialRecord]) -> str:
    """Return how trials of one kind ended: "trains", "1 of 3: out of memory"."""
    if not trials:
        return NONE
    failed = [trial for trial in trials if trial.result is None]
    if not failed:
        return "trains"
    words = ", ".join(dict.fromkeys(_failure(trial) for trial in failed))
    return words if len(failed) == len(trials) else f"{len(failed)} of {len(trials)}: {words}"


def _failure(trial: TrialRecord) -> str:
    if "out of memory" in trial.reason:
        return "out of memory"
    # Under a cap, oneDNN kills the process if its scratch memory does not fit.
    killed = KILLED.search(trial.reason)
    return f"killed by {killed[1]}" if killed else trial.state


def _cost(size: SampleSize, way: str) -> str:
    over = size.over_kept(way)
    kept = device_bytes(size.kept)
    if over is None:
        return ""
    needs = f", which needs {median(kept) / MIB:.0f} MiB" if kept else ""
    return f"; a step takes {spread_text(over, 2)} times that with everything kept{needs}"


def _shape(trial: TrialRecord) -> tuple[int, ...]:
    patch = (RunFolder(trial.folder).read_data() or {}).get("patch", trial.config.patch)
    if patch is None:
        raise ValueError(
            f"The size of samples is not recorded in {trial.folder}: it has no data.json, and its "
            "configuration has no patch."
        )
    return tuple(patch)


def _milliseconds(trials: Sequence[TrialRecord]) -> str:
    return values_text((1000 * seconds for seconds in step_seconds(trials)), 0)


def _mib(values: Sequence[int]) -> str:
    return values_text((value / MIB for value in values), 0)
