"""Shows how the processes of a traced run spent their time. Needs matplotlib."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tfunet.bench.report.plot_style import legend_above, make_panels
from tfunet.timing.recorded import INSIDE, inside_seconds, read_spans
from tfunet.timing.spans import Span

STARTING = ("start", "opening the data", "decoding", "setting up the model")
STEPS = ("first step", "step")
COLOURS = {
    "first step": "#d9d9d9",
    "step": "#bdbdbd",
    "input": "#E69F00",
    "all-reduce": "#0072B2",
    "swap out": "#CC79A7",
    "swap in": "#56B4E9",
    "evaluation": "#009E73",
    "saving": "#D55E00",
}
OTHER = "#4d4d4d"
CAPTION = (
    "Steps of all processes",
    "Upper bars: what each process does in turn. Lower bars: what happens inside its steps. Times "
    "are from the clock of each host.",
)
HATCHES = {"all-reduce": "//", "input": "..", "swap out": "xx", "swap in": "++"}


def time_rows(run: str | Path) -> list[dict[str, str]]:
    """Return a row for each process of a run: seconds of each phase, and of the parts of a step.

    Parts are summed over a step. The row has medians over the steps, without the first, which
    traces.
    """
    rows = []
    for process, spans in read_spans(run).items():
        phases: dict[str, float] = {}
        for span in spans:
            if span.name not in INSIDE:
                name = _phase(span.name)
                phases[name] = phases.get(name, 0.0) + span.seconds
        row = {"process": str(process)}
        row |= {f"{name} (s)": f"{seconds:.2f}" for name, seconds in phases.items()}
        inside = inside_seconds(spans)
        row |= {
            f"{name} of a step (ms)": f"{1000 * seconds:.1f}" for name, seconds in inside.items()
        }
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "-") for name in names} for row in rows]


def step_timeline(run: str | Path, first_step: int, num_steps: int) -> Figure:
    """Draw a bar for each span of every process, and below it bars for what happened inside.

    Raises ValueError if the run does not have the first step.
    """
    processes = read_spans(run)
    shown = {index: _between(spans, first_step, num_steps) for index, spans in processes.items()}
    everything = [span for spans in shown.values() for span in spans]
    if not everything:
        last = max(span.step for spans in processes.values() for span in spans)
        raise ValueError(
            f"first_step must be one of the steps 1 to {last} of {run}, got {first_step}."
        )
    zero = min(span.begin_seconds for span in everything)
    figure, (axes,) = make_panels(1, 1, 1.1 + 0.8 * len(shown))
    labelled: set[str] = set()
    for index, spans in shown.items():
        for span in sorted(spans, key=lambda span: span.name in INSIDE):
            name = span.name if span.name in COLOURS else "other"
            axes.barh(
                index + (0.2 if span.name in INSIDE else -0.2),
                span.seconds,
                left=span.begin_seconds - zero,
                height=0.38,
                color=COLOURS.get(name, OTHER),
                hatch=HATCHES.get(name, ""),
                edgecolor="white",
                linewidth=0.5,
                label="_" if name in labelled else name,
            )
            labelled.add(name)
    axes.set_yticks(list(shown), [f"process {index}" for index in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("seconds")
    axes.grid(visible=False, axis="y")
    legend_above(figure, axes)
    return figure


def _between(spans: Sequence[Span], first_step: int, num_steps: int) -> list[Span]:
    steps = range(first_step, first_step + num_steps)
    # The last attempt counts if steps were repeated after a process was killed.
    begun = [span.begin_seconds for span in spans if span.name in STEPS and span.step == first_step]
    if not begun:
        return []
    starts = [span.begin_seconds for span in spans if span.name == "start"]
    end = min((begin for begin in starts if begin > begun[-1]), default=math.inf)
    return [span for span in spans if span.step in steps and begun[-1] <= span.begin_seconds < end]


def _phase(name: str) -> str:
    if name in STARTING:
        return "start"
    return "callbacks" if name.startswith("callbacks") else name
