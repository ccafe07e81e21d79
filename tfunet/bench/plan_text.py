"""A plan in words and as a table for JSON, with what was measured. No TensorFlow."""

import math
from collections.abc import Sequence
from typing import Any

from tfunet.bench.planned import Plan
from tfunet.bench.short_runs import Measurement
from tfunet.config.amount import MIB
from tfunet.process.terminal import columns


def plan_text(plan: Plan, run: str) -> str:
    """Return a plan in words; `run` is the file of the run, as it was typed.

    Raises ValueError where no layout fits.
    """
    from tfunet.plan.text import line, ranking_text

    ranking = plan.ranking
    lines = [ranking_text(ranking)]
    if plan.corrections:
        times = ", ".join(f"{kind} by {times:.2f}" for kind, times in plan.corrections)
        lines += ["", f"Corrected by steps that were measured here before: {times}."]
    lines += measured_lines(plan)
    best = plan.best
    if best is not None:
        lines += ["", f"Train it so: {line(ranking, best, run)}"]
    return "\n".join(lines)


def measured_lines(plan: Plan) -> list[str]:
    """Return what was measured, and what that changed."""
    found = plan.measurements
    if not found:
        return []
    rows: list[Sequence[str]] = [
        ("measured", "step (ms)", "predicted", "measured/predicted", "memory (MiB)")
    ]
    rows += [_row(one) for one in sorted(found, key=lambda one: one.median)]
    lines = ["", *columns(rows)]
    best, first = plan.best, plan.ranking.best
    if best is None or first is None or best is first:
        lines.append("The first stays the first.")
    else:
        taken = {id(one.predicted): one for one in found}
        gain = ""
        if id(first) in taken and taken[id(first)].seconds:
            share = 1 - taken[id(best)].median / taken[id(first)].median
            gain = f", whose step is {share:.0%} shorter than that of {first.layout}"
        lines.append(f"Measured, {best.layout} is the first{gain}.")
    failed = [one for one in found if one.failure]
    lines += [f"{one.predicted.layout} failed: {one.failure}" for one in failed]
    return lines


def _row(one: Measurement) -> Sequence[str]:
    predicted = one.predicted.seconds
    if not one.seconds:
        return (str(one.predicted.layout), "failed", f"{1e3 * predicted:.1f}", "", "")
    low, high = min(one.seconds), max(one.seconds)
    spread = f" ({1e3 * low:.1f} to {1e3 * high:.1f})" if len(one.seconds) > 1 else ""
    return (
        str(one.predicted.layout),
        f"{1e3 * one.median:.1f}{spread}",
        f"{1e3 * predicted:.1f}",
        f"{one.median / predicted:.2f}",
        f"{one.num_bytes / MIB:,.0f}" if one.num_bytes else "-",
    )


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as a table for JSON."""
    from tfunet.plan.text import layout_json, ranking_json

    return {
        **ranking_json(plan.ranking),
        "corrections": dict(plan.corrections),
        "measured": [
            {
                "layout": layout_json(one.predicted.layout),
                "step_seconds": None if math.isinf(one.median) else one.median,
                "runs": list(one.seconds),
                "predicted_seconds": one.predicted.seconds,
                "memory_bytes": one.num_bytes,
                "failure": one.failure,
            }
            for one in plan.measurements
        ],
        "best": None if plan.best is None else layout_json(plan.best.layout),
    }
