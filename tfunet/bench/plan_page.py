"""A plan as a page with two pictures: time against devices, and memory against layouts."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tfunet.bench.plan_text import plan_text
from tfunet.bench.planned import Plan
from tfunet.bench.report import plot_style
from tfunet.bench.report.plots import DrawnFigure, drawn
from tfunet.config.amount import MIB
from tfunet.files.atomic import write_atomic
from tfunet.plan.prediction import Prediction

# Layouts in the picture of memory.
MOST_BARS = 16
TIME = "Predicted time of a step against devices"
MEMORY = "Predicted memory of a device"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ margin: 0 auto; max-width: 76rem; padding: 1.5rem; color: #1c1c1c; background: #fff;
  font: 16px/1.5 system-ui, "DejaVu Sans", Verdana, Arial, sans-serif; }}
pre {{ overflow-x: auto; font-size: 13px; line-height: 1.4; }}
svg {{ max-width: 100%; height: auto; }}
figcaption {{ color: #555; max-width: 60rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
{figures}
<pre>{text}</pre>
</body>
</html>
"""


def write_page(plan: Plan, run: str, path: Path) -> None:
    """Write the page. Raises ValueError where no layout fits, and WriteError."""
    figures = [
        drawn("devices", TIME, _of_time(plan), lambda: _time(plan)),
        drawn("memory", MEMORY, _of_memory(), lambda: _memory(plan)),
    ]
    page = PAGE.format(
        title=html.escape(f"Plan of {run}"),
        figures="\n".join(map(_figure, figures)),
        text=html.escape(plan_text(plan, run)),
    )
    write_atomic(path, page)


def _figure(one: DrawnFigure) -> str:
    return (
        f"<figure><h2>{html.escape(one.title)}</h2>\n{one.svg}\n"
        f"<figcaption>{html.escape(one.caption)}</figcaption></figure>"
    )


def _of_time(plan: Plan) -> str:
    return (
        "The fastest layout of each backend that fits on so many devices of "
        f"{plan.ranking.machine.name}. The line is one device, or the fewest on which the run "
        "fits, shared out equally."
    )


def _of_memory() -> str:
    return (
        "The layouts that are fastest, and those that nearly fit. The line is the limit of each: "
        "a bar that ends near it may not fit."
    )


def best_by_devices(fitting: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Return for each backend the fastest layout on each number of devices, fewest first."""
    found: dict[str, dict[int, Prediction]] = {}
    for one in fitting:
        known = found.setdefault(one.layout.backend, {})
        before = known.get(one.layout.num_devices)
        if before is None or one.seconds < before.seconds:
            known[one.layout.num_devices] = one
    return {backend: [known[count] for count in sorted(known)] for backend, known in found.items()}


def _time(plan: Plan) -> Figure:
    figure, (axes,) = plot_style.make_panels(1, 1, 3.6)
    lines = best_by_devices(plan.ranking.fitting)
    counts = sorted({one.layout.num_devices for line in lines.values() for one in line})
    first = min(
        (one for line in lines.values() for one in line),
        key=lambda one: (one.layout.num_devices, one.seconds),
    )
    one_device = first.seconds * first.layout.num_devices
    axes.plot(
        counts,
        [1e3 * one_device / count for count in counts],
        color="#888888",
        linestyle="--",
        label="ideal",
    )
    for backend, line in lines.items():
        colour, marker = _style(backend)
        axes.plot(
            [one.layout.num_devices for one in line],
            [1e3 * one.seconds for one in line],
            color=colour,
            marker=marker,
            label=backend,
        )
    plot_style.replica_axis(axes, counts, "devices")
    axes.set_yscale("log")
    axes.set_ylabel("step (ms)")
    plot_style.legend_above(figure, axes)
    return figure


def _style(backend: str) -> tuple[str, str]:
    other = (plot_style.OTHER_COLOURS[0], plot_style.OTHER_MARKERS[0])
    return plot_style.STYLES.get(backend, other)


def _memory(plan: Plan) -> Figure:
    ranking = plan.ranking
    shown = [*ranking.fitting[: MOST_BARS * 3 // 4], *ranking.others][:MOST_BARS]
    figure, (axes,) = plot_style.make_panels(1, 1, plot_style.bars_height(len(shown)))
    for at, one in enumerate(shown):
        colour, _ = _style(one.layout.backend)
        bar: dict[str, Any] = {"height": 0.62, "color": colour, "alpha": 0.6 if one.fits else 0.25}
        axes.barh(at, one.num_bytes / MIB, **bar)
        limit = one.limit_bytes / MIB
        axes.plot([limit] * 2, [at - 0.4, at + 0.4], color="#000000", linewidth=1.4)
    axes.set_yticks(range(len(shown)), [str(one.layout) for one in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("memory (MiB)")
    return figure
