"""Copies, time and memory of a plan, under the names that TensorBoard shows. Pure."""

from collections.abc import Mapping

from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.measured import Measured


def scalars(
    plan: Plan, measured: Measured | None = None, *, num_passes: int = 1
) -> Mapping[str, float]:
    """Return the bytes that a step of a replica copies, and its times and memory as planned.

    A step has `num_passes` (`accumulation`), each with the copies of the plan. The measured memory
    is that of a step, beyond weights and batch.
    """
    values: dict[str, float] = {
        "swap/copied_out_bytes": num_passes * plan.out_bytes,
        "swap/copied_in_bytes": num_passes * plan.in_bytes,
        "swap/planned_hidden_seconds": num_passes * plan.hidden_seconds,
        "swap/planned_exposed_seconds": num_passes * plan.exposed_seconds,
        "swap/planned_peak_bytes": plan.peak_bytes,
    }
    if measured is not None and measured.peak_bytes is not None:
        values["swap/measured_peak_bytes"] = measured.peak_bytes
    return values
