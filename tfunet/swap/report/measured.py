"""What a step of a run took, beside what its plan foretold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfunet.swap.plan.peak import largest

if TYPE_CHECKING:
    from tfunet.timing.xplane import Allocation

# A curve of more would be larger than the plan, and no finer in a picture.
MOST_POINTS = 300
NOT_TOLD = "the record is of a tfunet that did not measure it"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a step of a run took, as measured after its last one, and how long its steps took.

    Args:
        step_seconds: Median of the steady steps of the run; None where there is none.
        peak_bytes: Most that the ops of a step had asked their device's allocator for at once,
            beyond what it held before; None where it was not measured.
        why_not: Why memory was not measured; "" where it was.
        curve: Memory in use over the step: (share of its time, bytes), the most of each of a few
            hundred parts of it.
        peak_op: The op that asked for the block with which the peak was reached.
        peak_tensors: The largest blocks that were held then, by the ops that had asked for them.
        num_replicas: Replicas whose memory this is together: those of one process share the
            allocator of a CPU.
    """

    step_seconds: float | None = None
    peak_bytes: int | None = None
    why_not: str = ""
    curve: Sequence[Sequence[float]] = ()
    peak_op: str = ""
    peak_tensors: Mapping[str, int] = field(default_factory=dict)
    num_replicas: int = 1

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Measured:
        """Return what a table of `swap.json` holds."""
        return cls(**{**table, "curve": tuple(tuple(one) for one in table.get("curve", ()))})


def account(allocations: Sequence[Allocation]) -> Measured:
    """Return the memory in use over the step that was profiled.

    Of several GPUs, that of the first; of what its host holds beside a GPU, nothing; of batches
    that tf.data made beside it, nothing.

    Raises ValueError where nothing was asked for.
    """
    blocks = _of_the_step(_of_one_device(allocations))
    held: dict[int, Allocation] = {}
    in_use: list[int] = []
    total = 0
    for one in blocks:
        gone = held.pop(one.address, None)  # What was there before is not counted.
        total -= 0 if gone is None else gone.num_bytes
        if one.begins:
            held[one.address] = one
            total += one.num_bytes
        in_use.append(total)
    peak_bytes = max(in_use, default=0)
    if peak_bytes == 0:
        raise ValueError("TensorFlow's profile has no allocations")
    at = in_use.index(peak_bytes)
    return Measured(
        peak_bytes=peak_bytes,
        curve=_curve([one.seconds for one in blocks], in_use),
        peak_op=blocks[at].op,
        peak_tensors=_largest(blocks[: at + 1]),
    )


def _of_one_device(allocations: Sequence[Allocation]) -> Sequence[Allocation]:
    gpus = sorted({one.allocator for one in allocations if one.allocator.startswith("GPU_")})
    return [one for one in allocations if one.allocator == gpus[0]] if gpus else allocations


def _of_the_step(blocks: Sequence[Allocation]) -> list[Allocation]:
    """Return what the call asked for that asked for most, and what no call is known of."""
    asked: dict[int, int] = {}
    for one in blocks:
        if one.begins and one.call:
            asked[one.call] = asked.get(one.call, 0) + one.num_bytes
    of_step = {0, max(asked, key=lambda one: asked[one], default=0)}
    # What is given back, is so by any.
    return [one for one in blocks if not one.begins or one.call in of_step]


def _largest(blocks: Sequence[Allocation]) -> dict[str, int]:
    """Return the largest of what is held after these, by op."""
    held: dict[int, Allocation] = {}
    for one in blocks:
        held.pop(one.address, None)
        if one.begins:
            held[one.address] = one
    sizes: dict[str, int] = {}
    for one in held.values():
        sizes[one.op] = sizes.get(one.op, 0) + one.num_bytes
    return largest(sizes)


def _curve(seconds: Sequence[float], in_use: Sequence[int]) -> tuple[tuple[float, int], ...]:
    """Return (share of the time, bytes): of each part of the time the point with the most."""
    begin, whole = seconds[0], (seconds[-1] - seconds[0]) or 1.0
    points: dict[int, tuple[float, int]] = {}
    for at, num_bytes in zip(seconds, in_use, strict=True):
        share = (at - begin) / whole
        part = min(int(share * MOST_POINTS), MOST_POINTS - 1)
        if part not in points or num_bytes > points[part][1]:
            points[part] = round(share, 4), num_bytes
    return tuple(points.values())
