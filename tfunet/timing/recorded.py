"""Reads the spans that the processes of a run recorded. No TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tfunet.record import RunFolder
from tfunet.timing.spans import Span

COPIES = ("swap out", "swap in")


# What happens inside of other spans, each in rows of its own below "run".
INSIDE = ("input", "all-reduce", *COPIES, "profile")


@dataclass(frozen=True, kw_only=True)
class OpSpan:
    """An op of TensorFlow's as its profiler saw it, in a thread of a process; Unix time."""

    thread: str
    name: str
    begin_seconds: float
    seconds: float


def read_spans(run: str | Path) -> dict[int, list[Span]]:
    """Return what each process of a run did, by its index; ValueError if that is not recorded.

    A step that traced a graph, the first of each attempt, is named "first step".
    """
    found = {
        process: list(_first_steps_named([_span(row) for row in rows]))
        for process, rows in RunFolder(Path(run)).read_spans().items()
    }
    if not any(found.values()):
        raise ValueError(
            f"{run} does not tell what its processes did. Train with --trace true, or in a study "
            "with trace = true in [base]."
        )
    return found


def inside_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Return what a step is made of, by name: medians over the steady steps, summed over each.

    "all" is the whole of a step.
    """
    steady = _steady(spans)
    whole = {"all": median(one.seconds for one in steady.values())} if steady else {}
    return {**whole, **{name: median(of.values()) for name, of in _by_step(spans).items()}}


def copied_seconds(run: str | Path) -> float | None:
    """Return the time of all copies of large-model support in a steady step of process 0.

    None where the run was not traced, or copied nothing that the host knows of.
    """
    copies = [median(of.values()) for of in copied_by_step(run).values()]
    return sum(copies) if copies else None


def copied_by_step(run: str | Path) -> dict[str, dict[int, float]]:
    """Return the time of the copies in each steady step of process 0, in seconds.

    By "swap out" and "swap in", as far as the run was traced and the host knows of them.
    """
    rows = RunFolder(Path(run)).read_spans().get(0, [])
    found = _by_step(list(_first_steps_named([_span(row) for row in rows])))
    return {name: found[name] for name in COPIES if name in found}


def _span(row: Mapping[str, str]) -> Span:
    return Span(
        step=int(row["step"]),
        name=row["name"],
        begin_seconds=float(row["begin_seconds"]),
        seconds=float(row["seconds"]),
    )


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
    return {one.step: one for one in spans if one.name == "step"}


def _by_step(spans: Sequence[Span]) -> dict[str, dict[int, float]]:
    """Return the seconds of what is inside of each steady step, summed, by name and step."""
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
