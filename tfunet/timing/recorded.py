"""Reads the spans that the processes of a run recorded. No TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tfunet.record import RunFolder
from tfunet.timing.spans import Span

COPIES = ("swap out", "swap in")
# Spans within other spans; each has rows of its own below "run".
INSIDE = ("input", "all-reduce", "halo exchange", *COPIES, "profile")


@dataclass(frozen=True, kw_only=True)
class OpSpan:
    """A TensorFlow op in a thread of a process, as the profiler recorded it; Unix time."""

    thread: str
    name: str
    begin_seconds: float
    seconds: float


def read_spans(run: str | Path) -> dict[int, list[Span]]:
    """Return the spans of each process of a run, by its index; ValueError if there are none.

    A step that traced a graph, the first of each attempt, is named "first step".
    """
    spans = {
        process: list(_first_steps_named([_span(row) for row in rows]))
        for process, rows in RunFolder(Path(run)).read_spans().items()
    }
    if not any(spans.values()):
        raise ValueError(
            f"{run} has no record of what its processes did. Train with --trace true, or in a "
            "study with trace = true in [base]."
        )
    return spans


def inside_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Return the seconds of each part of a step, by name: medians over the steady steps.

    "all" is the whole step.
    """
    steady = _steady(spans)
    step = {"all": median(span.seconds for span in steady.values())} if steady else {}
    parts = {name: median(seconds.values()) for name, seconds in _by_step(spans).items()}
    return {**step, **parts}


def copied_seconds(run: str | Path) -> float | None:
    """Return the seconds of all copies of large-model support in a steady step of process 0.

    None if the run was not traced, or has no copies that the host knows of.
    """
    copies = [median(seconds.values()) for seconds in copied_by_step(run).values()]
    return sum(copies) if copies else None


def copied_by_step(run: str | Path) -> dict[str, dict[int, float]]:
    """Return the seconds of the copies in each steady step of process 0.

    The keys are "swap out" and "swap in", if the run was traced and the host knows of them.
    """
    rows = RunFolder(Path(run)).read_spans().get(0, [])
    by_name = _by_step(list(_first_steps_named([_span(row) for row in rows])))
    return {name: by_name[name] for name in COPIES if name in by_name}


def _span(row: Mapping[str, Any]) -> Span:
    return Span(**row)


def _first_steps_named(spans: Sequence[Span]) -> Iterator[Span]:
    is_first = True
    for span in spans:
        is_first = is_first or span.name == "start"
        if is_first and span.name == "step":
            is_first = False
            yield replace(span, name="first step")
        else:
            yield span


def _steady(spans: Sequence[Span]) -> dict[int, Span]:
    return {span.step: span for span in spans if span.name == "step"}


def _by_step(spans: Sequence[Span]) -> dict[str, dict[int, float]]:
    """Return the summed seconds of the parts of each steady step, by name and step."""
    steady = _steady(spans)
    totals: dict[str, dict[int, float]] = {}
    for span in spans:
        step = steady.get(span.step)
        if span.name in INSIDE and step and _within(span, step):
            of_step = totals.setdefault(span.name, {})
            of_step[span.step] = of_step.get(span.step, 0.0) + span.seconds
    return totals


def _within(span: Span, step: Span) -> bool:
    return step.begin_seconds <= span.begin_seconds <= step.begin_seconds + step.seconds
