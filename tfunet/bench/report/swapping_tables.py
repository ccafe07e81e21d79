"""Tables and sentences about large-model support."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tfunet.bench.analysis.confidence_intervals import Estimate, speed_verdict, spread
from tfunet.bench.analysis.swapping import (
    Swapped,
    device_bytes,
    peak_bytes,
    resident_bytes,
    scaled,
    step_seconds,
)
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.report.number_text import NONE, estimate_text, interval_text, p_text, spread_text
from tfunet.config.amount import MIB
from tfunet.swap.plan.plan import Plan, of_one_replica


def plan_rows(found: Sequence[Swapped]) -> list[dict[str, str]]:
    """Return a row for each: what the plans predict of a step's memory, and how they reach it."""
    has_disk = any(plan.on_disk for one in found for plan in one.plans)
    is_measured = any(peak_bytes(one) for one in found)
    compresses = any(plan.compressed_bytes for one in found for plan in one.plans)
    return [
        {
            **_names(one),
            "all kept (MiB)": _mib(plan.unlimited_peak_bytes for plan in one.plans),
            "under the plan": _mib(plan.peak_bytes for plan in one.plans),
            **({"measured": _mib(peak_bytes(one))} if is_measured else {}),
            "a step may use": _mib(plan.budget_bytes for plan in one.plans),
            "on the host": _mib(plan.host_bytes for plan in one.plans),
            **({"on disk": _mib(plan.disk_bytes for plan in one.plans)} if has_disk else {}),
            "tensors swapped": _whole(plan.count("swap") for plan in one.plans),
            **(
                {"compressed": _whole(len(plan.compressed_bytes) for plan in one.plans)}
                if compresses
                else {}
            ),
            "recomputed": _whole(plan.count("recompute") for plan in one.plans),
        }
        for one in found
    ]


def time_rows(found: Sequence[Swapped]) -> list[dict[str, str]]:
    """Return a row for each: the time of a step, measured and predicted."""
    return [
        {
            **_names(one),
            "runs": f"{len(one.upper)} and {len(one.lower)}",
            "times as fast as without": estimate_text(one.ratio),
            "predicted": spread_text(one.predicted_ratio, 2),
            "step (ms)": _milliseconds(one.upper),
            "predicted (ms)": _whole(1000 * plan.step_seconds for plan in one.plans),
            "step without (ms)": _milliseconds(one.lower),
            "predicted without (ms)": _whole(
                1000 * plan.unlimited_step_seconds for plan in one.plans
            ),
        }
        for one in found
    ]


def memory_rows(found: Sequence[Swapped]) -> list[dict[str, str]]:
    """Return a row for each: by how much memory falls, predicted, and what was measured, in MiB.

    Device memory is that of the fullest process, where its allocator counts it: on a GPU, or under
    a cap on a CPU. That of the processes is what they had of the host's at their peaks.
    """
    return [
        {
            **_names(one),
            "less on the device, predicted": spread_text(scaled(one.saved_bytes), 1),
            "device": _mib(device_bytes(one.upper)),
            "device without": _mib(device_bytes(one.lower)),
            "more on the host, predicted": _mib(plan.host_bytes for plan in one.plans),
            "processes": _mib(resident_bytes(one.upper)),
            "processes without": _mib(resident_bytes(one.lower)),
        }
        for one in found
    ]


def traffic_rows(found: Sequence[Swapped]) -> list[dict[str, str]]:
    """Return a row for each: what a step copies, and in which time, as the plans predict it.

    Copies are hidden that run beside computation, and exposed where a step waits for them. Those
    of runs with `trace` were measured, on a CPU.
    """
    has_disk = any(plan.on_disk for one in found for plan in one.plans)
    is_traced = any(one.copied_seconds for one in found)
    return [
        {
            **_names(one),
            "to the host (MiB a step)": _mib(plan.out_bytes for plan in one.plans),
            "and back": _mib(plan.in_bytes for plan in one.plans),
            **(
                {"to the disk, and back": _mib(plan.disk_bytes for plan in one.plans)}
                if has_disk
                else {}
            ),
            "copies (ms a step)": _tenths(plan.copy_seconds for plan in one.plans),
            "hidden": _tenths(plan.hidden_seconds for plan in one.plans),
            "exposed": _tenths(plan.exposed_seconds for plan in one.plans),
            "run again (ms a step)": _tenths(plan.repeat_seconds for plan in one.plans),
            **({"copies, measured (ms)": _tenths(one.copied_seconds)} if is_traced else {}),
        }
        for one in found
    ]


def tensor_rows(found: Sequence[Swapped]) -> list[dict[str, str]]:
    """Return a row for each tensor that any plan gives up, the largest first.

    A column for each batch and budget says in how many runs it was swapped, recomputed or kept.
    """
    columns: dict[str, list[Plan]] = {}
    for one in found:
        plans = columns.setdefault(f"batch {one.replica_batch}, {one.budget}", [])
        plans += [of_one_replica(plan) for plan in one.plans]
    num_bytes: dict[str, int] = {}
    for plan in (plan for plans in columns.values() for plan in plans):
        for name in plan.decisions:
            num_bytes[name] = max(num_bytes.get(name, 0), plan.tensor_bytes.get(name, 0))
    return [
        {"tensor": name, "MiB": f"{num_bytes[name] / MIB:.2f}"}
        | {key: _decided(name, plans) for key, plans in columns.items()}
        for name in sorted(num_bytes, key=lambda name: (-num_bytes[name], name))
    ]


def verdicts(found: Sequence[Swapped]) -> list[str]:
    """Return a sentence for each: what large-model support costs in time."""
    return [_verdict(one, one.ratio) for one in found if one.ratio is not None]


def _verdict(one: Swapped, ratio: Estimate) -> str:
    verdict = speed_verdict(ratio, one.adjusted_p)
    text = verdict.replace("unknown", "more repeats are needed to tell")
    return (
        f"{one.label}: {ratio.value:.2f} times as fast as without ({interval_text(ratio)}"
        f"{p_text(one.adjusted_p)}): {text}."
    )


def _names(one: Swapped) -> dict[str, str]:
    return {
        "backend": one.way,
        "replicas": str(one.num_replicas),
        "batch of each": str(one.replica_batch),
        "budget": one.budget,
    }


def _decided(name: str, plans: Sequence[Plan]) -> str:
    counts = Counter(plan.decisions.get(name, "keep") for plan in plans)
    return ", ".join(f"{what} {count}" for what, count in counts.most_common())


def _mib(values: Iterable[float]) -> str:
    known = list(values)
    return spread_text(scaled(spread(known)), 1) if known else NONE


def _whole(values: Iterable[float]) -> str:
    known = list(values)
    if not known:
        return NONE
    # Equal ones are not worth three numbers.
    return f"{known[0]:.0f}" if min(known) == max(known) else spread_text(spread(known), 0)


def _tenths(values: Iterable[float]) -> str:
    known = [1000 * one for one in values]
    return spread_text(spread(known), 1) if known else NONE


def _milliseconds(trials: Iterable[TrialRecord]) -> str:
    return _whole(1000 * one for one in step_seconds(trials))
