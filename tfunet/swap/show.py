"""What a plan does, in words and as a picture of memory over the step. Imports no TensorFlow."""

import json
from collections.abc import Sequence
from pathlib import Path

from tfunet.record import replacing
from tfunet.swap.plan import Plan

MIB = 2**20
SHOWN_TENSORS = 20


def read_plans(path: Path) -> list[Plan]:
    """Return the plans of a run's folder, of its swap.json, or of a plan that was saved.

    Raises ValueError where there are none.
    """
    file = path / "swap.json" if path.is_dir() else path
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        tables = table.get("plans", [table])
        plans = [Plan.from_table(one) for one in tables]
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no {file}. A run with --swap writes it, and `tfunet swap plan --save`."
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} holds no plan of this version of tfunet: {error}.") from error
    if not plans:
        raise ValueError(f"{file} holds no plan: the run ended before its first step.")
    return plans


def limits_line(plan: Plan) -> str:
    """Return that host memory or disk stands in the plan's way, to end a sentence; "" if not."""
    if not plan.wanted_host_bytes:
        return ""
    has_disk = plan.disk_budget_bytes != 0
    which = "budgets of host and disk stand" if has_disk else "host budget stands"
    return (
        f". The {which} in the way: with {_mib(plan.wanted_host_bytes)} for the swapped tensors "
        f"of each replica it would be {_mib(plan.wanted_peak_bytes)}."
    )


def compressed(plan: Plan) -> str:
    """Return how swapped tensors are compressed, to follow "swapped"; "" where none is."""
    if plan.compression is None:
        return ""
    num = len(plan.compressed_bytes)
    some = "" if num == plan.count("swap") else f"{num} of them "
    return f", {some}compressed to {plan.compression}"


def text(plan: Plan) -> str:
    """Return a plan as a table: totals, then its largest tensors."""
    rows = [
        ("memory of a step", _mib(plan.unlimited_peak_bytes), _mib(plan.peak_bytes)),
        ("time of a step", _seconds(plan.unlimited_step_seconds), _seconds(plan.step_seconds)),
        ("- run again", "", _seconds(plan.repeat_seconds)),
        ("- waiting for copies", "", _seconds(plan.exposed_seconds)),
        ("all copies, hidden or not", "", _seconds(plan.copy_seconds)),
        ("memory on the host", "", _mib(plan.host_bytes)),
    ]
    if plan.on_disk:
        rows.append(("on disk", "", _mib(plan.disk_bytes)))
    lines = [f"{'':<26} {'all kept':>12} {'this plan':>12}"]
    lines += [f"{name:<26} {one:>12} {other:>12}" for name, one, other in rows]
    lines.append(f"{'budget of a step':<26} {'':>12} {_mib(plan.budget_bytes):>12}")
    lines.append(
        f"The largest single op needs {_mib(plan.floor_bytes)}: {plan.floor_op or 'none'}."
    )
    done = {**dict.fromkeys(plan.split, "split"), **plan.decisions}
    given_up = sorted(done, key=lambda one: -plan.tensor_bytes.get(one, 0))
    if given_up:
        lines.append(f"Of the tensors, {_counts(plan)}:")
    for name in given_up[:SHOWN_TENSORS]:
        num_bytes = plan.tensor_bytes.get(name, 0)
        facts = ["disk"] if name in plan.on_disk else []
        facts += [plan.compression or ""] if name in plan.compressed_bytes else []
        where = f" ({', '.join(facts)})" if facts else ""
        lines.append(f"  {done[name]:<9} {_mib(num_bytes):>12}  {name}{where}")
    if len(given_up) > SHOWN_TENSORS:
        lines.append(f"  ... and {len(given_up) - SHOWN_TENSORS} more.")
    return "\n".join(lines)


def _counts(plan: Plan) -> str:
    in_slabs = f"{len(plan.split)} are split, " if plan.split else ""
    swapped = f"{plan.count('swap')} are swapped{compressed(plan)}"
    return f"{in_slabs}{swapped} and {plan.count('recompute')} recomputed"


def draw(plan: Plan, path: Path) -> None:
    """Draw the memory in use over the step, as planned and with everything kept.

    Raises ValueError without matplotlib, WriteError where the file cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError("A picture needs matplotlib: pip install 'tfunet[report]'.") from error

    with mpl.rc_context({"font.size": 9.5, "svg.fonttype": "none", "svg.hashsalt": "tfunet"}):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        for curve, label, colour, style in (
            (plan.unlimited_curve, "everything kept", "#4d4d4d", "--"),
            (plan.curve, "this plan", "#0072B2", "-"),
        ):
            times, use = _steps(curve)
            axes.step(times, use, where="post", label=label, color=colour, linestyle=style)
            if curve is plan.curve:
                axes.fill_between(times, use, step="post", color=colour, alpha=0.15)
        axes.axhline(plan.budget_bytes / MIB, color="#D55E00", linestyle=":", label="budget")
        axes.set_xlabel("predicted time in the step (s)")
        axes.set_ylabel("memory of the step (MiB)")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.legend(frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.set_title(
            f"Tensors: {_counts(plan)}. "
            f"{_mib(plan.peak_bytes)} instead of {_mib(plan.unlimited_peak_bytes)}",
            loc="left",
        )
        with replacing(path) as partial:
            figure.savefig(
                partial, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None
            )


def _steps(curve: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in curve], [point[1] / MIB for point in curve]


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / MIB:,.0f} MiB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
