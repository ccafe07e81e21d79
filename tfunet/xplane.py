"""Reads what TensorFlow's profiler wrote: ops and when they ran. Imports TensorFlow."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfunet.bench.traces import OpSpan, read_spans

# The event that begins when the profile does, by our clock.
CLOCK = "tfunet.clock"
# Shorter ones are thousands, and too thin to be seen.
LEAST_SECONDS = 2e-5


def read_ops(run: str | Path) -> dict[int, list[OpSpan]]:
    """Return the ops of the profiled steps of a run's last attempt, by process.

    TensorFlow's times count from somewhere in the start of its profile. Where its begin by our
    clock was, an event tells.
    """
    found: dict[int, list[OpSpan]] = {}
    for process, spans in read_spans(run).items():
        begins = [one.begin_seconds for one in spans if one.name == "profile"]
        folder = Path(run) / "profile" / f"process-{process}"
        paths = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
        if begins and paths:
            found[process] = list(_read(paths[-1], begins[-1]))
    return found


def _read(path: Path, begin_seconds: float) -> Iterator[OpSpan]:
    found = list(_events(path))
    clock = min((one.begin_seconds for one in found if one.name == CLOCK), default=0.0)
    for one in found:
        if one.seconds >= LEAST_SECONDS:
            yield replace(one, begin_seconds=begin_seconds + one.begin_seconds - clock)


def _events(path: Path) -> Iterator[OpSpan]:
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            thread = f"{plane.name} {line.display_name or line.name} {line.id}".strip()
            for event in line.events:
                about = plane.event_metadata[event.metadata_id]
                yield OpSpan(
                    thread=thread,
                    name=about.display_name or about.name,
                    begin_seconds=line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12,
                    seconds=event.duration_ps * 1e-12,
                )
