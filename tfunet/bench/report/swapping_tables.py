"""Tables and sentences on large-model support: runs with a budget, and without one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tfunet.bench.analysis import swapping
from tfunet.bench.analysis.confidence_intervals import spread
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.bench.report.number_text import (
    NONE,
    estimate_text,
    spread_text,
    values_text,
    verdict_text,
)
from tfunet.config.amount import MIB
from tfunet.swap.plan.plan import Plan, of_one_replica


def swapping_section(sweep: SweepRecord) -> dict[str, Any] | None:
    """Return the section on large-model support; None if no trial used it."""
    comparisons, fault = _compare_budgets(sweep)
    if fault:
        return {"tables": [], "sentences": [fault]}
    if not comparisons:
        return None
    tables = [rows(comparisons) for rows in (plan_rows, time_rows, traffic_rows, memory_rows)]
    return {"tables": tables, "sentences": verdicts(comparisons)}


def swapping_facts(sweep: SweepRecord) -> list[dict[str, Any]]:
    """Return the runs under large-model support with unrounded numbers, for programs."""
    return [swapping.budget_facts(comparison) for comparison in _compare_budgets(sweep)[0]]


def _compare_budgets(sweep: SweepRecord) -> tuple[tuple[swapping.BudgetComparison, ...], str]:
    """Return the runs under large-model support, and the error if they cannot be read."""
    if not any(trial.result is not None and trial.config.swap for trial in sweep.trials):
        return (), ""
    try:
        return swapping.compare_budgets(sweep), ""
    except ValueError as error:
        return (), str(error)


def plan_rows(comparisons: Sequence[swapping.BudgetComparison]) -> list[dict[str, str]]:
    """Return the memory of a step that the plans predict, and how they reach it."""
    has_disk = any(plan.on_disk for comparison in comparisons for plan in comparison.plans)
    is_measured = any(swapping.peak_bytes(comparison) for comparison in comparisons)
    return [
        {
            **_names(comparison),
            "all kept (MiB)": _mib(plan.unlimited_peak_bytes for plan in comparison.plans),
            "under the plan": _mib(plan.peak_bytes for plan in comparison.plans),
            **({"measured": _mib(swapping.peak_bytes(comparison))} if is_measured else {}),
            "a step may use": _mib(plan.budget_bytes for plan in comparison.plans),
            "on the host": _mib(plan.host_bytes for plan in comparison.plans),
            **({"on disk": _mib(plan.disk_bytes for plan in comparison.plans)} if has_disk else {}),
            "tensors swapped": _whole(plan.count("swap") for plan in comparison.plans),
            "recomputed": _whole(plan.count("recompute") for plan in comparison.plans),
        }
        for comparison in comparisons
    ]


def time_rows(comparisons: Sequence[swapping.BudgetComparison]) -> list[dict[str, str]]:
    """Return the time of a step, measured and predicted."""
    return [
        {
            **_names(comparison),
            "runs": f"{len(comparison.upper)} and {len(comparison.lower)}",
            "times as fast as without": estimate_text(comparison.ratio),
            "predicted": spread_text(comparison.predicted_ratio, 2),
            "step (ms)": _milliseconds(comparison.upper),
            "predicted (ms)": _whole(1000 * plan.step_seconds for plan in comparison.plans),
            "step without (ms)": _milliseconds(comparison.lower),
            "predicted without (ms)": _whole(
                1000 * plan.unlimited_step_seconds for plan in comparison.plans
            ),
        }
        for comparison in comparisons
    ]


def memory_rows(comparisons: Sequence[swapping.BudgetComparison]) -> list[dict[str, str]]:
    """Return predicted savings and measured memory, in MiB.

    Device memory is that of the fullest process, if its allocator counts it: on a GPU, or under a
    cap on a CPU. The memory of processes is the sum of their peaks on the host.
    """
    return [
        {
            **_names(comparison),
            "less on the device, predicted": spread_text(comparison.saved_bytes.scaled(1 / MIB), 1),
            "device": _mib(swapping.device_bytes(comparison.upper)),
            "device without": _mib(swapping.device_bytes(comparison.lower)),
            "more on the host, predicted": _mib(plan.host_bytes for plan in comparison.plans),
            "processes": _mib(swapping.resident_bytes(comparison.upper)),
            "processes without": _mib(swapping.resident_bytes(comparison.lower)),
        }
        for comparison in comparisons
    ]


def traffic_rows(comparisons: Sequence[swapping.BudgetComparison]) -> list[dict[str, str]]:
    """Return how much a step copies and for how long, as the plans predict.

    A copy is hidden while computation runs, and exposed while a step waits for it. Runs with
    `trace` on a CPU measured their copies.
    """
    has_disk = any(plan.on_disk for comparison in comparisons for plan in comparison.plans)
    is_traced = any(comparison.copied_seconds for comparison in comparisons)
    return [
        {
            **_names(comparison),
            "to the host (MiB a step)": _mib(plan.out_bytes for plan in comparison.plans),
            "and back": _mib(plan.in_bytes for plan in comparison.plans),
            **(
                {"to the disk, and back": _mib(plan.disk_bytes for plan in comparison.plans)}
                if has_disk
                else {}
            ),
            "copies (ms a step)": _tenths(plan.copy_seconds for plan in comparison.plans),
            "hidden": _tenths(plan.hidden_seconds for plan in comparison.plans),
            "exposed": _tenths(plan.exposed_seconds for plan in comparison.plans),
            "run again (ms a step)": _tenths(plan.repeat_seconds for plan in comparison.plans),
            **({"copies, measured (ms)": _tenths(comparison.copied_seconds)} if is_traced else {}),
        }
        for comparison in comparisons
    ]


def tensor_rows(comparisons: Sequence[swapping.BudgetComparison]) -> list[dict[str, str]]:
    """Return a row for each tensor that any plan swaps or recomputes, the largest first.

    A column for each batch and budget counts the runs that swapped, recomputed or kept it.
    """
    columns: dict[str, list[Plan]] = {}
    for comparison in comparisons:
        plans = columns.setdefault(f"batch {comparison.replica_batch}, {comparison.budget}", [])
        plans += [of_one_replica(plan) for plan in comparison.plans]
    num_bytes: dict[str, int] = {}
    for plan in (plan for plans in columns.values() for plan in plans):
        for name in plan.decisions:
            num_bytes[name] = max(num_bytes.get(name, 0), plan.tensor_bytes.get(name, 0))
    return [
        {"tensor": name, "MiB": f"{num_bytes[name] / MIB:.2f}"}
        | {key: _decided(name, plans) for key, plans in columns.items()}
        for name in sorted(num_bytes, key=lambda name: (-num_bytes[name], name))
    ]


def verdicts(comparisons: Sequence[swapping.BudgetComparison]) -> list[str]:
    """Return a sentence on the time that large-model support costs, for each comparison."""
    return [
        f"{comparison.label}: {ratio.value:.2f} times as fast as without "
        f"{verdict_text(ratio, comparison.adjusted_p)}."
        for comparison in comparisons
        if (ratio := comparison.ratio) is not None
    ]


def _names(comparison: swapping.BudgetComparison) -> dict[str, str]:
    return {
        "backend": comparison.way,
        "replicas": str(comparison.num_replicas),
        "batch of each": str(comparison.replica_batch),
        "budget": comparison.budget,
    }


def _decided(name: str, plans: Sequence[Plan]) -> str:
    counts = Counter(plan.decisions.get(name, "keep") for plan in plans)
    return ", ".join(f"{decision} {count}" for decision, count in counts.most_common())


def _mib(values: Iterable[float]) -> str:
    return values_text((value / MIB for value in values), 1)


def _whole(values: Iterable[float]) -> str:
    known = list(values)
    if not known:
        return NONE
    # Equal values need no range.
    return f"{known[0]:.0f}" if min(known) == max(known) else spread_text(spread(known), 0)


def _tenths(values: Iterable[float]) -> str:
    return values_text((1000 * value for value in values), 1)


def _milliseconds(trials: Iterable[TrialRecord]) -> str:
    return _whole(1000 * seconds for seconds in swapping.step_seconds(trials))
