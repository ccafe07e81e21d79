"""What a plan does, in words. Imports no TensorFlow."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.config.amount import MIB
from tfunet.files.typed import FieldError, RecordError, check_fields, read_json
from tfunet.graph.step import WEIGHT_ARRIVES, Trace
from tfunet.swap.plan.diagnosis import ALWAYS, SPLITTING
from tfunet.swap.plan.plan import WAYS, Plan, Way
from tfunet.swap.report.measured import NOT_TOLD, Measured

SHOWN_TENSORS = 20
SHOWN_AT_PEAK = 8
SHOWN_IN_LINE = 3
UNNAMED = "not named"
LEAVING_MORE = "swap_weights = 'weights'"


def read_plans(path: Path) -> list[Plan]:
    """Return the plans of a run's folder, of its swap.json, or of a plan that was saved.

    Raises ValueError if there are none.
    """
    return _read(path)[0]


def read_measured(path: Path) -> Measured | None:
    """Return what a step of a run took, from the same file; None for a plan that was saved."""
    return _read(path)[1]


def _read(path: Path) -> tuple[list[Plan], Measured | None]:
    file = path / "swap.json" if path.is_dir() else path
    try:
        table = read_json(file, dict[str, Any])
        if table is None:
            raise ValueError(f"There is no {file}. A run with --swap writes it.")
        check_fields(table, {"plans": list[dict[str, Any]]})
        plans = [Plan.from_table(row) for row in table.get("plans", [table])]
        measured = None
        if "plans" in table:
            measured = Measured.from_table(table.get("measured", {"why_not": NOT_TOLD}))
    except (RecordError, FieldError) as error:
        fault = error.fault if isinstance(error, RecordError) else error
        raise ValueError(f"{file} holds no plan of this version of tfunet: {fault}.") from error
    if not plans:
        raise ValueError(f"{file} holds no plan: the run ended before its first step.")
    return plans, measured


def limits_line(plan: Plan) -> str:
    """Return that the limits on host memory or disk stand in the plan's way, to end a sentence; ""
    if they do not."""
    if not plan.wanted_host_bytes:
        return ""
    has_disk = plan.disk_budget_bytes != 0
    limits = "limits on host memory and disk stand" if has_disk else "limit on host memory stands"
    return (
        f". The {limits} in the way: with {mib(plan.wanted_host_bytes)} for the swapped tensors "
        f"of each replica it would be {mib(plan.wanted_peak_bytes)}."
    )


def over_line(plan: Plan) -> str:
    """Return that a plan does not meet its budget, what is in the way and what helps; or ""."""
    if plan.peak_bytes <= plan.budget_bytes:
        return ""
    line = f"That is more than the {mib(plan.budget_bytes)} that a step may use"
    if limits := limits_line(plan):
        return f"{line}{limits} What would help: {_or(_ways_past_limits(plan))}."
    if plan.peak_tensors:
        line += f". In the way at once, at {plan.peak_op}: {_listed(plan.peak_tensors)}"
    if plan.obstacles:
        line += f"; ops that alone need more: {_listed(plan.obstacles)}"
    elif not plan.peak_tensors:  # A plan of an earlier version.
        line += f"; the largest single op needs {mib(plan.floor_bytes)} ({plan.floor_op})"
    ways = plan.advice or ("a smaller patch", "fewer filters", "mixed_bfloat16")
    return f"{line}. What would help: {_or(ways)}."


def _room_line(plan: Plan) -> str:
    """Return that TensorFlow's allocator may have no room for a plan; "" if it has."""
    if plan.finds_room == 1:
        return ""
    return (
        "TensorFlow's allocator may not find room for it in one piece: in simulations, it did in "
        f"{plan.finds_room:.0%} of the cases. A smaller batch or patch would help."
    )


def forward_line(plan: Plan, what: str) -> str:
    """Return what is done in a forward pass alone; "" if nothing is done and everything fits.

    `what` names the pass: "evaluation" or "prediction".
    """
    counts = {
        "swapped": plan.count("swap"),
        "split": len(plan.split),
        "recomputed": plan.count("recompute"),
    }
    done = [f"{count} {treatment}" for treatment, count in counts.items() if count]
    over = over_line(plan) or _room_line(plan)
    if not done:
        needs = f"{mib(plan.peak_bytes)} predicted"
        return f"Large-model support: in {what} all is kept; {needs}. {over}" if over else ""
    on_disk = f", {mib(plan.disk_bytes)} on disk" if plan.on_disk else ""
    line = (
        f"Large-model support: in {what}, of the tensors {', '.join(done)} "
        f"({mib(plan.host_bytes)} on the host{on_disk}); {mib(plan.peak_bytes)} predicted instead "
        f"of {mib(plan.unlimited_peak_bytes)}, and {plan.step_seconds:.3g} s instead of "
        f"{plan.unlimited_step_seconds:.3g}."
    )
    return f"{line} {over}".rstrip()


def out_of_memory_line(plan: Plan, *, allowed: Collection[Way] = WAYS) -> str:
    """Return what to do when a device has no memory left in a step of this plan."""
    over = over_line(plan)
    if over:
        return (
            f"Large-model support: out of device memory. The plan needs {mib(plan.peak_bytes)} for "
            f"a step. {over}"
        )
    ways = [*([] if "split" in allowed else [SPLITTING]), *ALWAYS]
    return (
        f"Large-model support: out of device memory, though {mib(plan.peak_bytes)} of the "
        f"{mib(plan.budget_bytes)} that a step may use were predicted: the allocator lost more "
        "than was foreseen. A smaller budget (a smaller share, such as swap = '0.5') or a larger "
        f"margin would help, and so would {_or(ways)}. At the peak, in "
        f"{plan.peak_op}, there are {_listed(plan.peak_tensors)}."
    )


def _ways_past_limits(plan: Plan) -> list[str]:
    """Return what would help if the limits on host memory or disk stand in a plan's way."""
    has_disk = plan.disk_budget_bytes != 0
    ways = ["a higher limit on host memory (swap_host)"]
    ways.append("more of the disk (swap_disk_size)" if has_disk else "a disk (swap_disk)")
    return [*ways, *ALWAYS]


def _or(ways: Sequence[str]) -> str:
    *others, last = ways
    return f"{', '.join(others)} or {last}" if others else last


def _listed(sizes: Mapping[str, int]) -> str:
    """Return the few largest of some ops or tensors."""
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    shown = [f"{name} ({size_text(sizes[name])})" for name in names[:SHOWN_IN_LINE]]
    if len(names) > SHOWN_IN_LINE:
        shown.append(f"{len(names) - SHOWN_IN_LINE} more")
    *others, last = shown or ["nothing large"]
    return f"{', '.join(others)} and {last}" if others else last


def planning_line(trace: Trace, memory_bytes: float) -> str:
    """Return that a plan is being made, and how long that may take."""
    what = "forward pass" if trace.is_forward else "training step"
    return (
        f"Large-model support: planning a {what} of {len(trace.ops)} ops within "
        f"{mib(int(memory_bytes))}. Its large ops are timed first, which takes as long as a few "
        "steps; then plans are compared. For large networks this may take minutes."
    )


ONEDNN_LINE = (
    "Large-model support: TensorFlow leaves oneDNN off on this processor. Without it, ops take "
    "longer and need more memory. `tfunet train` turns it on. In a script of your own, set "
    "TF_ENABLE_ONEDNN_OPTS=1 before TensorFlow is imported (0 to do without it)."
)


def untimed_line(names: Sequence[str]) -> str:
    """Return that a predicted time leaves out ops, by name; empty if there are none."""
    if not names:
        return ""
    return (
        f"Predicted times leave out {len(names)} loops and functions, such as {names[0]}: steps "
        "take longer."
    )


def left_line(weights: int, states: int, on_disk: int) -> str:
    """Return what is off the device beside tensors, in a line; numbers are bytes."""
    what = [f"weights ({mib(weights)})"] if weights else []
    what += [f"states of the optimizer ({mib(states)})"] if states else []
    disk = f", {mib(on_disk)} of this and of gradients on disk" if on_disk else ""
    return f"Large-model support: {' and '.join(what)} off the device{disk}."


def begin_line(plan: Plan, everything: str, untimed: Sequence[str] = ()) -> str:
    """Return what a plan does, in a line; if it does nothing, that `everything` fits.

    Names the ops that are `untimed`.
    """
    if not plan.gives_up and plan.peak_bytes <= plan.budget_bytes and plan.finds_room == 1:
        needs = f"{plan.peak_bytes / MIB:.0f} MiB predicted"
        return f"Large-model support: {everything} fits, {needs}."
    on_disk = f", {plan.disk_bytes / MIB:.0f} MiB on disk" if plan.on_disk else ""
    in_slabs = f", {len(plan.split)} split" if plan.split else ""
    freed = f", {len(plan.from_outputs)} inputs of activations freed" if plan.from_outputs else ""
    moved = f", {len(plan.detours)} moved to make room" if plan.detours else ""
    weights = sum(WEIGHT_ARRIVES in name for name in plan.decisions)
    again = f", {weights} weights brought twice" if weights else ""
    line = (
        f"Large-model support: {plan.count('swap')} tensors swapped{in_slabs} "
        f"({plan.host_bytes / MIB:.0f} MiB on the host{on_disk}), "
        f"{plan.count('recompute') - weights} recomputed{again}{freed}{moved}; "
        f"{plan.peak_bytes / MIB:.0f} MiB for a step predicted instead "
        f"of {plan.unlimited_peak_bytes / MIB:.0f}, and {plan.step_seconds:.3g} s instead of "
        f"{plan.unlimited_step_seconds:.3g}."
    )
    rest = [over_line(plan) or _room_line(plan), untimed_line(untimed)]
    return " ".join([line, *filter(None, rest)])


def unknown_line(unknown: Sequence[str]) -> str:
    """Return that some tensors, by name, are kept because their shape is not known."""
    return (
        f"Large-model support: {len(unknown)} tensors that the backward pass reads, such as "
        f"{unknown[0]}, have a shape that is not known when the step is traced. They are kept, "
        "and predictions do not count them. Give the model's Input a full shape and all "
        "batches the same size (drop_remainder=True, or as many samples as fill the batches)."
    )


def end_line(
    plan: Plan,
    *,
    resident_bytes: int,
    used_bytes: int | None,
    seconds: tuple[float, int] | None,
) -> str:
    """Return what a step of training took beside what was predicted; "" if nothing is known.

    The device held `resident_bytes` before the step and `used_bytes` at its peak. `seconds` are the
    median of the steady steps, and how many those are.
    """
    parts = []
    if used_bytes is not None:
        predicted = (resident_bytes + plan.peak_bytes) / MIB
        parts.append(f"{used_bytes / MIB:.0f} MiB at the peak, {predicted:.0f} MiB predicted")
    if seconds is not None:
        median, count = seconds
        of = f"the median of {count}" if count > 1 else "one"
        part = f"{seconds_text(median)} a step ({of})"
        # No op was timed for a plan that changes nothing.
        if plan.step_seconds:
            part += f", {seconds_text(plan.step_seconds)} predicted"
        parts.append(part)
    return f"Large-model support: {'; '.join(parts)}." if parts else ""


def text(plan: Plan, measured: Measured | None = None, copied_seconds: float | None = None) -> str:
    """Return a plan as a table: totals, with what was measured of them, then its tensors.

    `copied_seconds` is the time of all copies of a step, as measured.
    """
    lines = [*_totals(plan, measured, copied_seconds), *_notes(measured)]
    if over := over_line(plan):
        lines.append(over)
    if plan.from_outputs:
        lines.append(
            f"{len(plan.from_outputs)} activations take over the memory of their inputs, as their "
            "gradients read the outputs."
        )
    if plan.detours:
        lines.append(
            f"{len(plan.detours)} times a tensor leaves for the host for a while, so that "
            "TensorFlow's allocator finds room in one piece:"
        )
        lines += [f"  {name}, before {op}" for name, op, _ in plan.detours[:SHOWN_TENSORS]]
        lines += _left_out(plan.detours)
    lines.append(f"The largest single op needs {mib(plan.floor_bytes)}: {plan.floor_op or 'none'}.")
    lines += _peak_lines("planned", plan.peak_op, plan.peak_tensors)
    if measured is not None:
        lines += _peak_lines("measured", measured.peak_op, measured.peak_tensors)
    treatments = {**dict.fromkeys(plan.split, "split"), **plan.decisions}
    names = sorted(treatments, key=lambda name: -plan.tensor_bytes.get(name, 0))
    if names:
        lines.append(f"Of the tensors, {counts(plan)}:")
    for name in names[:SHOWN_TENSORS]:
        size = size_text(plan.tensor_bytes.get(name, 0))
        where = " (disk)" if name in plan.on_disk else ""
        lines.append(f"  {treatments[name]:<9} {size:>12}  {name}{where}")
    return "\n".join([*lines, *_left_out(names)])


def _totals(plan: Plan, measured: Measured | None, copied_seconds: float | None) -> list[str]:
    peak, seconds = "", ""
    copied = "" if copied_seconds is None else seconds_text(copied_seconds)
    if measured is not None:
        peak = "not measured" if measured.peak_bytes is None else mib(measured.peak_bytes)
        seconds = "" if measured.step_seconds is None else seconds_text(measured.step_seconds)
    all_kept_seconds = seconds_text(plan.unlimited_step_seconds)
    rows = [
        ("", "all kept", "this plan", "" if measured is None else "measured"),
        ("memory of a step", mib(plan.unlimited_peak_bytes), mib(plan.peak_bytes), peak),
        ("time of a step", all_kept_seconds, seconds_text(plan.step_seconds), seconds),
        ("- run again", "", seconds_text(plan.repeat_seconds), ""),
        ("- waiting for copies", "", seconds_text(plan.exposed_seconds), ""),
        ("all copies, hidden or not", "", seconds_text(plan.copy_seconds), copied),
        ("copied to the host", "", mib(plan.out_bytes), ""),
        ("copied back", "", mib(plan.in_bytes), ""),
        ("memory on the host", "", mib(plan.host_bytes), ""),
    ]
    if plan.on_disk:
        rows.append(("on disk, there and back", "", mib(plan.disk_bytes), ""))
    rows.append(("budget of a step", "", mib(plan.budget_bytes), ""))
    return [f"{row[0]:<26} {row[1]:>12} {row[2]:>12} {row[3]:>12}".rstrip() for row in rows]


def _left_out(rows: Sequence[object]) -> list[str]:
    more = len(rows) - SHOWN_TENSORS
    return [f"  ... and {more} more."] if more > 0 else []


def _notes(measured: Measured | None) -> list[str]:
    """Return what a reader of the measured memory must know."""
    if measured is None:
        return []
    if measured.peak_bytes is None:
        return [f"Memory was not measured: {measured.why_not}."]
    if measured.num_replicas > 1:
        return [
            f"The measured memory is that of the {measured.num_replicas} replicas of one process "
            "together; the planned memory is that of each."
        ]
    return []


def _peak_lines(which: str, op: str, tensors: Mapping[str, int]) -> list[str]:
    """Return the largest tensors at a peak."""
    if not tensors:
        return []
    shown = sorted(tensors.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_AT_PEAK]
    lines = [f"The largest tensors at the {which} peak ({op or UNNAMED}):"]
    return lines + [f"  {size_text(num_bytes):>12}  {name or UNNAMED}" for name, num_bytes in shown]


def counts(plan: Plan) -> str:
    """Return how many tensors are treated in which way."""
    in_slabs = f"{len(plan.split)} are split, " if plan.split else ""
    swapped = f"{plan.count('swap')} are swapped"
    return f"{in_slabs}{swapped} and {plan.count('recompute')} recomputed"


def mib(num_bytes: float) -> str:
    """Return an amount of memory as people read it."""
    return f"{num_bytes / MIB:,.0f} MiB"


def size_text(num_bytes: float) -> str:
    """Return the size of a tensor, which may be small."""
    return f"{num_bytes / MIB:,.1f} MiB" if num_bytes < 10 * MIB else mib(num_bytes)


def seconds_text(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
