"""Merges the traces of a run's processes into one, which ui.perfetto.dev opens.

It is JSON in the Trace Event Format of Chromium
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): a row for each
process, and below it rows for what happens inside its steps.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from tfunet.files.typed import Count, FieldError, Finite, RecordError, read_record, typed
from tfunet.timing.recorded import INSIDE, OpSpan, read_spans
from tfunet.timing.spans import Span

# Horovod's rows are processes with numbers from here on.
HOROVOD = 1_000_000
# How many ends of tables are tried as that of the last complete event.
MOST_ENDS = 100


def trace(run: str | Path, ops: Mapping[int, Sequence[OpSpan]] | None = None) -> dict[str, Any]:
    """Return the trace of a run, for JSON, with the `ops` of its profiled steps by process."""
    processes = read_spans(run)
    zero = min(span.begin_seconds for spans in processes.values() for span in spans)
    events: list[dict[str, Any]] = []
    for process, spans in processes.items():
        events += _named("process", f"process {process}", process, pid=process)
        rows = {"run": [span for span in spans if span.name not in INSIDE]}
        for name in INSIDE:
            lanes = _lanes([span for span in spans if span.name == name])
            rows |= {name if at == 1 else f"{name} {at}": lane for at, lane in enumerate(lanes, 1)}
        for number, (name, spans_of_row) in enumerate(rows.items()):
            events += _named("thread", name, number, pid=process, tid=number)
            events += [
                {**_event(span, process, number, zero), "args": {"step": span.step}}
                for span in spans_of_row
            ]
        threads: dict[str, list[OpSpan]] = {}
        for op in (ops or {}).get(process, ()):
            threads.setdefault(op.thread, []).append(op)
        for number, (name, ops_of_row) in enumerate(threads.items(), len(rows)):
            events += _named("thread", f"TensorFlow: {name}", number, pid=process, tid=number)
            events += [{**_event(op, process, number, zero), "cat": "op"} for op in ops_of_row]
    for path in sorted(Path(run).glob("profile/process-*/horovod.json")):
        events += _horovod_events(path, zero)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": Path(run).resolve().name, "begin_unix_seconds": zero},
        "traceEvents": events,
    }


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans in as few rows as possible; the spans of a row do not overlap."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.begin_seconds):
        for lane in lanes:
            if lane[-1].begin_seconds + lane[-1].seconds <= span.begin_seconds:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _event(span: Span | OpSpan, process: int, row: int, zero: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "ts": round((span.begin_seconds - zero) * 1e6, 1),
        "dur": round(span.seconds * 1e6, 1),
        "pid": process,
        "tid": row,
    }


def _named(kind: str, name: str, place: int, **ids: int) -> list[dict[str, Any]]:
    """Return the events that name a process or a thread, and put it into its place."""
    head = {"ph": "M", **ids}
    return [
        {**head, "name": f"{kind}_name", "args": {"name": name}},
        {**head, "name": f"{kind}_sort_index", "args": {"sort_index": place}},
    ]


class _HorovodEvent(TypedDict):
    pid: Count
    name: NotRequired[str]
    ts: NotRequired[Finite]
    args: NotRequired[dict[str, Any]]


class _HorovodArguments(TypedDict):
    start_time_since_epoch_in_micros: NotRequired[Count]
    name: NotRequired[str]


def _horovod_events(path: Path, zero: float) -> Iterator[dict[str, Any]]:
    """Yield Horovod's timeline, a row for each tensor, relative to the begin of the run."""
    begin = 0.0
    try:
        events = _whole_events(read_record(path) or "")
        typed(events, list[_HorovodEvent])
        for number, event in enumerate(events):
            typed(event.get("args", {}), _HorovodArguments, f"[{number}].args")
    except (FieldError, RecursionError) as error:
        raise RecordError(path, error) from error
    for event in events:
        arguments = event.get("args", {})
        # The first event has the Unix time of its zero, in us.
        begin = arguments.get("start_time_since_epoch_in_micros", begin)
        moved = {**event, "pid": HOROVOD + event["pid"]}
        if event.get("name") == "process_name":
            moved["args"] = {"name": f"Horovod: {arguments.get('name', 'timeline')}"}
        if "ts" in event:
            moved["ts"] = round(event["ts"] + begin - zero * 1e6, 1)
        yield moved


def _whole_events(text: str) -> list[dict[str, Any]]:
    """Return the complete events of a list, which has no end if Horovod was killed."""
    end = len(text)
    for _ in range(MOST_ENDS):
        with contextlib.suppress(ValueError):
            return json.loads(text[:end].rstrip().rstrip(",").removesuffix("]") + "]")
        end = text.rfind("}", 0, max(0, end - 1)) + 1
    return []
