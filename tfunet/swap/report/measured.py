"""What a step of a run took, to compare with the prediction of its plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_type_hints

from tfunet.files.typed import Amount, Count, Positive, check_known_fields
from tfunet.swap.plan.diagnosis import largest

if TYPE_CHECKING:
    from tfunet.timing.xplane import Allocation

# A curve of more points would be larger than the plan, and no finer in a picture.
MOST_POINTS = 300
NOT_TOLD = "the record is of a tfunet that did not measure it"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The memory of one more step after the last of a run, and the time of the steps of the run.

    Args:
        peak_bytes: The most that the ops of a step held at once of their device's memory, beyond
            what was held before; None if it was not measured.
        curve: Memory in use over the step: (share of its time, bytes), the peak of each of a few
            hundred parts.
        peak_op: The op that asked for the block with which the peak was reached.
        peak_tensors: The largest blocks that were held then, by the ops that had asked for them.
        num_replicas: Number of replicas whose memory this is together: those of one process share
            the allocator of a CPU.
    """

    step_seconds: Amount | None = None
    peak_bytes: Count | None = None
    why_not: str = ""
    curve: Sequence[tuple[Amount, Amount]] = ()
    peak_op: str = ""
    peak_tensors: Mapping[str, Count] = field(default_factory=dict)
    num_replicas: Positive = 1

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Measured:
        """Return what a table of `swap.json` holds; raise FieldError for a wrong one."""
        check_known_fields(table, get_type_hints(cls, include_extras=True))
        return cls(**{**table, "curve": tuple(map(tuple, table.get("curve", ())))})


def account(allocations: Sequence[Allocation]) -> Measured:
    """Return the memory in use over the step that was profiled.

    With several GPUs, that of the first. Host memory beside a GPU does not count, nor do batches
    that tf.data made meanwhile.

    Raises ValueError if there are no allocations.
    """
    blocks = _of_the_step(_of_one_device(allocations))
    held: dict[int, Allocation] = {}
    in_use: list[int] = []
    total = 0
    for block in blocks:
        gone = held.pop(block.address, None)  # What was there before is not counted.
        total -= 0 if gone is None else gone.num_bytes
        if block.begins:
            held[block.address] = block
            total += block.num_bytes
        in_use.append(total)
    peak_bytes = max(in_use, default=0)
    if peak_bytes == 0:
        raise ValueError("TensorFlow's profile has no allocations")
    at = in_use.index(peak_bytes)
    return Measured(
        peak_bytes=peak_bytes,
        curve=_curve([block.seconds for block in blocks], in_use),
        peak_op=blocks[at].op,
        peak_tensors=_largest(blocks[: at + 1]),
    )


def _of_one_device(allocations: Sequence[Allocation]) -> Sequence[Allocation]:
    gpus = sorted({block.allocator for block in allocations if block.allocator.startswith("GPU_")})
    return [block for block in allocations if block.allocator == gpus[0]] if gpus else allocations


def _of_the_step(blocks: Sequence[Allocation]) -> list[Allocation]:
    """Return the blocks of the call that asked for most bytes, and those of no known call."""
    asked_bytes: dict[int, int] = {}
    for block in blocks:
        if block.begins and block.call:
            asked_bytes[block.call] = asked_bytes.get(block.call, 0) + block.num_bytes
    calls = {0, max(asked_bytes, key=lambda call: asked_bytes[call], default=0)}
    # Any call may give a block back.
    return [block for block in blocks if not block.begins or block.call in calls]


def _largest(blocks: Sequence[Allocation]) -> dict[str, int]:
    """Return the largest blocks that are held after these, by op."""
    held: dict[int, Allocation] = {}
    for block in blocks:
        held.pop(block.address, None)
        if block.begins:
            held[block.address] = block
    sizes: dict[str, int] = {}
    for block in held.values():
        sizes[block.op] = sizes.get(block.op, 0) + block.num_bytes
    return largest(sizes)


def _curve(seconds: Sequence[float], in_use: Sequence[int]) -> tuple[tuple[float, int], ...]:
    """Return (share of the time, bytes): the highest point of each part of the time."""
    begin, duration = seconds[0], (seconds[-1] - seconds[0]) or 1.0
    points: dict[int, tuple[float, int]] = {}
    for at, num_bytes in zip(seconds, in_use, strict=True):
        share = (at - begin) / duration
        part = min(int(share * MOST_POINTS), MOST_POINTS - 1)
        if part not in points or num_bytes > points[part][1]:
            points[part] = round(share, 4), num_bytes
    return tuple(points.values())
