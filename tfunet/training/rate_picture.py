"""A picture of losses over learning rates. Imports no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path

from tfunet.files.atomic import replacing


def draw_rates(
    rates: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    path: Path,
    *,
    advised: float,
    best: float,
) -> None:
    """Draw the loss of each step, the smoothed loss, and the rates that stand out.

    Raises ValueError without matplotlib, WriteError if the file cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError("A picture needs matplotlib: pip install 'tfunet[report]'.") from error

    with mpl.rc_context({"font.size": 9.5, "svg.fonttype": "none", "svg.hashsalt": "tfunet"}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(rates, losses, ".", color="#999999", markersize=4, label="loss of a step")
        axes.plot(rates, smoothed, color="#0072B2", label="smoothed")
        axes.axvline(best, color="#999999", linestyle=":", label=f"lowest loss, {best:.1e}")
        axes.axvline(advised, color="#D55E00", linestyle="--", label=f"a tenth, {advised:g}")
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.legend(frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with replacing(path) as partial:
            figure.savefig(partial, dpi=120, metadata=metadata)
