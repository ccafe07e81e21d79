"""A picture of memory over the step under a plan. Imports no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path

from tfunet.config.amount import MIB
from tfunet.files.atomic import replacing
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.measured import Measured
from tfunet.swap.report.text import counts, mib


def draw(plan: Plan, path: Path, measured: Measured | None = None) -> None:
    """Draw the memory in use over the step, as planned, with everything kept, and as measured.

    If it was measured, each curve is drawn over the time of its own step: these times differ.

    Raises ValueError without matplotlib, WriteError if the file cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError("A picture needs matplotlib: pip install 'tfunet[report]'.") from error

    with mpl.rc_context({"font.size": 9.5, "svg.fonttype": "none", "svg.hashsalt": "tfunet"}):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        has_measured = measured is not None and bool(measured.curve)
        for curve, label, colour, style in (
            (plan.unlimited_curve, "everything kept", "#4d4d4d", "--"),
            (plan.curve, "this plan", "#0072B2", "-"),
        ):
            times, use = _coordinates(curve)
            times = _shares(times) if has_measured else times
            axes.step(times, use, where="post", label=label, color=colour, linestyle=style)
            if curve is plan.curve:
                axes.fill_between(times, use, step="post", color=colour, alpha=0.15)
        if measured is not None and has_measured:
            times, use = _coordinates(measured.curve)
            times = [100 * share for share in times]
            axes.step(times, use, where="post", label="measured", color="#009E73")
        axes.axhline(plan.budget_bytes / MIB, color="#D55E00", linestyle=":", label="budget")
        axes.set_xlabel(
            "share of the step (%)" if has_measured else "predicted time in the step (s)"
        )
        axes.set_ylabel("memory of the step (MiB)")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0, right=100 if has_measured else None)
        axes.legend(frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        title = f"{mib(plan.peak_bytes)} instead of {mib(plan.unlimited_peak_bytes)}"
        if measured and measured.peak_bytes:
            title += f", {mib(measured.peak_bytes)} measured"
        axes.set_title(f"Tensors: {counts(plan)}. {title}", loc="left")
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with replacing(path) as partial:
            figure.savefig(partial, dpi=120, metadata=metadata)


def _coordinates(curve: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in curve], [point[1] / MIB for point in curve]


def _shares(times: Sequence[float]) -> list[float]:
    if times and times[-1]:
        return [100 * (time / times[-1]) for time in times]
    # In a plan that was made without measured times, all are 0.
    return [100 * (place / len(times)) for place in range(len(times))]
