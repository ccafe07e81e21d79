"""Reads what TensorFlow's profiler wrote: ops and when they ran. Imports TensorFlow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfunet.files.regular import read_bytes
from tfunet.timing.recorded import OpSpan, read_spans

# The event that begins when the profile does, by our clock.
CLOCK = "tfunet.clock"
# Shorter ones are thousands, and too thin to be seen.
LEAST_SECONDS = 2e-5
# The largest profile that protobuf takes.
MOST_BYTES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A block of memory that an op ("" if not known) asked its device's allocator for (`begins`),
    or gave back, which has 0 bytes.

    Args:
        allocator: Such as "GPU_0_bfc".
        call: A number of the function call that asked for it, those of tf.data included; 0 where
            that is not known.
        seconds: When, from somewhere on.
    """

    op: str
    address: int
    num_bytes: int
    begins: bool
    allocator: str = ""
    call: int = 0
    seconds: float = 0.0


def read_allocations(path: Path) -> list[Allocation]:
    """Return what a profile of host level 2 says about memory, in order of time.

    Empty where the allocator tells the profiler nothing: a CPU's own, unless it is TensorFlow's
    (TF_CPU_ALLOCATOR_USE_BFC=true).
    """
    space = xplane_pb2.XSpace.FromString(read_bytes(path, MOST_BYTES))
    allocations = []
    for plane in space.planes:
        names = {key: stat.name for key, stat in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                kind = plane.event_metadata[event.metadata_id].name
                if kind not in ("MemoryAllocation", "MemoryDeallocation"):
                    continue
                when = line.timestamp_ns * 1000 + event.offset_ps
                stats = {names[stat.metadata_id]: stat for stat in event.stats}
                allocation = Allocation(
                    op=_text(stats.get("tf_op"), names),
                    address=_number(stats.get("addr")),
                    num_bytes=_number(stats.get("requested_bytes")),
                    begins=kind == "MemoryAllocation",
                    allocator=_text(stats.get("allocator_name"), names),
                    call=_number(stats.get("id")),
                    seconds=when * 1e-12,
                )
                allocations.append((when, allocation))
    return [allocation for _, allocation in sorted(allocations, key=lambda pair: pair[0])]


def _text(stat: xplane_pb2.XStat | None, names: Mapping[int, str]) -> str:
    text = "" if stat is None else stat.str_value or names.get(stat.ref_value, "")
    return "" if text == "(null)" else text


def _number(stat: xplane_pb2.XStat | None) -> int:
    return 0 if stat is None else int(stat.int64_value or stat.uint64_value)


def read_ops(run: str | Path) -> dict[int, list[OpSpan]]:
    """Return the ops of the profiled steps of a run's last attempt, by process.

    TensorFlow's times count from somewhere in the start of its profile. Where its begin by our
    clock was, an event tells.
    """
    ops: dict[int, list[OpSpan]] = {}
    for process, spans in read_spans(run).items():
        begins = [span.begin_seconds for span in spans if span.name == "profile"]
        folder = Path(run) / "profile" / f"process-{process}"
        paths = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
        if begins and paths:
            ops[process] = list(_read(paths[-1], begins[-1]))
    return ops


def _read(path: Path, begin_seconds: float) -> Iterator[OpSpan]:
    spans = list(_events(path))
    clock = min((span.begin_seconds for span in spans if span.name == CLOCK), default=0.0)
    for span in spans:
        if span.seconds >= LEAST_SECONDS:
            yield replace(span, begin_seconds=begin_seconds + span.begin_seconds - clock)


def _events(path: Path) -> Iterator[OpSpan]:
    space = xplane_pb2.XSpace.FromString(read_bytes(path, MOST_BYTES))
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
