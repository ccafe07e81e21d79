"""Compares runs under large-model support with the same runs without it. Pure but for reading."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tfunet.bench.analysis import confidence_intervals as intervals
from tfunet.bench.analysis.folds import folds_as_repeats
from tfunet.bench.analysis.study_cell import speed_ratio, speed_ratios
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.bench.records.ways_of_training import way_of
from tfunet.config.memory_keys import SWAP_KEYS, MemoryKeys
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.measured import Measured
from tfunet.swap.report.text import read_measured, read_plans
from tfunet.timing.recorded import copied_seconds

# Numbers of a plan whose medians `budget_facts` returns.
MEDIANS = (
    *("unlimited_peak_bytes", "peak_bytes", "budget_bytes", "host_bytes", "disk_bytes"),
    *("out_bytes", "in_bytes", "step_seconds", "unlimited_step_seconds", "repeat_seconds"),
    *("copy_seconds", "exposed_seconds"),
)


@dataclass(frozen=True, kw_only=True)
class BudgetComparison:
    """The repeats of one combination of settings with a budget and without one.

    Args:
        budget: Settings of the budget: "24MiB", with limits of host and disk.
        lower: Finished runs without a budget; may be empty.
        plans: The plan of each run of `upper`: of the replica and step that need most memory.
        copied_seconds: Time of the copies of a step, for each traced run of `upper`.
        ratio: Speed with the budget divided by speed without; None if a side has no runs.
        adjusted_p: p-value of `ratio`, adjusted for all ratios of the sweep.
    """

    way: str
    num_replicas: int
    replica_batch: int
    budget: str
    upper: tuple[TrialRecord, ...]
    lower: tuple[TrialRecord, ...]
    plans: tuple[Plan, ...]
    measured: tuple[Measured, ...]
    copied_seconds: tuple[float, ...]
    ratio: intervals.Estimate | None
    ratio_repeats: tuple[float, ...]
    adjusted_p: float | None = None

    @property
    def label(self) -> str:
        """Way, replicas, the batch of each, and budget: "horovod x2, batch 4, 24MiB"."""
        return f"{self.way} x{self.num_replicas}, batch {self.replica_batch}, {self.budget}"

    @property
    def predicted_ratio(self) -> intervals.Spread:
        """The ratio that the plans predict."""
        # A plan that changes nothing is made without measured times.
        return intervals.spread(
            [
                plan.unlimited_step_seconds / plan.step_seconds if plan.step_seconds else 1.0
                for plan in self.plans
            ]
        )

    @property
    def saved_bytes(self) -> intervals.Spread:
        """Device memory of a step that the plans save."""
        return intervals.spread(
            [plan.unlimited_peak_bytes - plan.peak_bytes for plan in self.plans]
        )


def compare_budgets(sweep: SweepRecord) -> tuple[BudgetComparison, ...]:
    """Return every combination of settings that ran with a budget, by replicas and batch.

    Runs whose swap.json or spans cannot be read are left out (`swap_fault`). Raises ValueError if
    no finished run has a plan.
    """
    groups: dict[str, dict[str | None, list[TrialRecord]]] = {}
    faults: list[str] = []
    for trial in folds_as_repeats(sweep.trials):
        if trial.result is not None and (fault := swap_fault(trial)):
            faults.append(fault)
        elif trial.result is not None:
            settings = {**vars(trial.config), "seed": 0, "fold": 0, **dict.fromkeys(SWAP_KEYS)}
            budgets = groups.setdefault(repr((trial.scaling, settings)), {})
            budgets.setdefault(budget_text(trial.config), []).append(trial)
    comparisons = [
        _swapped(budget, upper, budgets.get(None, []))
        for budgets in groups.values()
        for budget, upper in budgets.items()
        if budget is not None
    ]
    if not comparisons and faults:
        raise ValueError(faults[0])
    if not comparisons:
        raise ValueError(
            f"{sweep.folder} holds no finished run with large-model support. Give the study "
            'swap = ["none", "24MiB"] in its [grid], and run it again.'
        )
    # If these are equal, the order is that of the study.
    comparisons.sort(
        key=lambda comparison: (
            comparison.num_replicas,
            comparison.replica_batch,
            comparison.budget,
            comparison.upper[0].cell,
        )
    )
    adjusted = intervals.adjusted_p_values([comparison.ratio for comparison in comparisons])
    return tuple(
        replace(comparison, adjusted_p=p)
        for comparison, p in zip(comparisons, adjusted, strict=True)
    )


def swap_fault(trial: TrialRecord) -> str:
    """Return why a run's record of large-model support cannot be read; "" if it can."""
    if trial.config.swap is None:
        return ""
    try:
        read_plans(trial.folder)
        copied_seconds(trial.folder)
    except ValueError as error:
        return str(error)
    return ""


def budget_facts(comparison: BudgetComparison) -> dict[str, Any]:
    """Return a comparison as unrounded medians over the runs, for programs."""
    ratio = comparison.ratio
    return {
        "backend": comparison.way,
        "num_replicas": comparison.num_replicas,
        "replica_batch": comparison.replica_batch,
        "budget": comparison.budget,
        "runs": len(comparison.upper),
        "runs_without": len(comparison.lower),
        **{name: median(vars(plan)[name] for plan in comparison.plans) for name in MEDIANS},
        "hidden_seconds": median(plan.hidden_seconds for plan in comparison.plans),
        "tensors_swapped": median(plan.count("swap") for plan in comparison.plans),
        "tensors_recomputed": median(plan.count("recompute") for plan in comparison.plans),
        "tensors_split": median(len(plan.split) for plan in comparison.plans),
        "measured_peak_bytes": _median(peak_bytes(comparison)),
        "measured_step_seconds": _median(step_seconds(comparison.upper)),
        "measured_step_seconds_without": _median(step_seconds(comparison.lower)),
        "measured_copy_seconds": _median(comparison.copied_seconds),
        "ratio": None if ratio is None else ratio.value,
        "ratio_low": None if ratio is None else _finite(ratio.low),
        "ratio_high": None if ratio is None else _finite(ratio.high),
        "adjusted_p": comparison.adjusted_p,
        "verdict": None if ratio is None else intervals.speed_verdict(ratio, comparison.adjusted_p),
    }


def device_bytes(trials: Iterable[TrialRecord]) -> list[int]:
    """Return peak device memory of the fullest process, for runs that count it."""
    results = [trial.result for trial in trials if trial.result is not None]
    return [max(result.peak_device_bytes) for result in results if result.peak_device_bytes]


def resident_bytes(trials: Iterable[TrialRecord]) -> list[int]:
    """Return peak host memory of all processes together, for each run."""
    return [sum(trial.result.peak_resident_bytes) for trial in trials if trial.result is not None]


def _swapped(budget: str, upper: list[TrialRecord], lower: list[TrialRecord]) -> BudgetComparison:
    config = upper[0].config
    measured = [read_measured(trial.folder) for trial in upper]
    copied = [copied_seconds(trial.folder) for trial in upper]
    return BudgetComparison(
        way=way_of(upper[0]),
        num_replicas=config.num_replicas,
        replica_batch=config.replica_samples,
        budget=budget,
        upper=tuple(upper),
        lower=tuple(lower),
        plans=tuple(
            max(read_plans(trial.folder), key=lambda plan: plan.unlimited_peak_bytes)
            for trial in upper
        ),
        measured=tuple(step for step in measured if step is not None),
        copied_seconds=tuple(seconds for seconds in copied if seconds is not None),
        ratio=speed_ratio(upper, lower),
        ratio_repeats=speed_ratios(upper, lower),
    )


def budget_text(config: MemoryKeys) -> str | None:
    """Return the settings of a run's budget in words; None without a budget."""
    if config.swap is None:
        return None
    limits = [config.swap]
    if config.swap_host is not None:
        limits.append(f"host {config.swap_host}")
    if config.swap_disk is not None:
        # The folder is not part of the budget: it differs from machine to machine.
        size = config.swap_disk_size
        limits.append("on disk" if size is None else f"disk up to {size}")
    return ", ".join(map(str, limits))


def step_seconds(trials: Iterable[TrialRecord]) -> list[float]:
    """Return the median step time of each run that has one."""
    seconds = [trial.result.median_step_seconds for trial in trials if trial.result is not None]
    return [run_seconds for run_seconds in seconds if run_seconds is not None]


def peak_bytes(comparison: BudgetComparison) -> list[int]:
    """Return the measured memory of a replica's step, for runs that measured a single replica."""
    alone = [measured.peak_bytes for measured in comparison.measured if measured.num_replicas == 1]
    return [peak_bytes for peak_bytes in alone if peak_bytes is not None]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
