"""Says in what two plans differ. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tfunet.swap.plan.plan import Plan, of_one_replica
from tfunet.swap.report.measured import Measured
from tfunet.swap.report.text import mib, seconds_text, size_text

# Figures of plans, and what they are in words.
BYTES = {
    "budget_bytes": "budget of a step",
    "peak_bytes": "memory of a step",
    "host_bytes": "memory on the host",
    "disk_bytes": "on disk, there and back",
    "out_bytes": "copied to the host",
    "in_bytes": "copied back",
}
SECONDS = {
    "step_seconds": "time of a step",
    "repeat_seconds": "- run again",
    "exposed_seconds": "- waiting for copies",
    "copy_seconds": "all copies, hidden or not",
}
# Where copies stand and slabs end, which is told by their number only.
PLACES = {
    "awaited": "copies out that are awaited elsewhere",
    "fetched": "copies back that begin elsewhere",
    "copies": "tensors whose readers share copies back otherwise",
    "fetched_again": "tensors whose further copies back begin elsewhere",
    "serialized": "ops that run one after the other under one of them only",
    "from_outputs": "gradients of activations that read the output under one of them only",
    "detours": "tensors that leave for a while, to make room, elsewhere or under one of them only",
    "is_placed": "convolutions and copies back run in a fixed order under one of them only",
    "slab_rows": "ops that run in slabs of another height, or not in slabs",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A tensor with which two plans do different things.

    Args:
        name: In the graph; of several replicas in one process, without the replica's.
        num_bytes: Of the tensor; 0 where neither plan tells.
        first: "keep", "swap", "swap to disk", "recompute" or "split"; of a tensor that is swapped
            in fewer bits with these, "swap as bfloat16".
        second: The same of the second plan.
    """

    name: str
    num_bytes: int
    first: str
    second: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What two plans do differently, and what they come to.

    Args:
        changes: Tensors that are treated differently, the largest first.
        moved: By the names of PLACES, how many places differ.
        figures: By the names of BYTES and SECONDS, and "measured_peak_bytes" and
            "measured_step_seconds": of the first and of the second, None where not known.
    """

    changes: tuple[Change, ...]
    moved: Mapping[str, int]
    figures: Mapping[str, tuple[float | None, float | None]]

    @property
    def is_same(self) -> bool:
        """Whether a step runs alike under both; times differ from measurement to measurement."""
        return not self.changes and not any(self.moved.values())


def difference(
    first: Plan,
    second: Plan,
    first_measured: Measured | None = None,
    second_measured: Measured | None = None,
) -> Difference:
    """Return in what two plans differ, with what was measured under each."""
    first, second = of_one_replica(first), of_one_replica(second)
    one, other = _done(first), _done(second)
    sizes = {**second.tensor_bytes, **first.tensor_bytes}
    changes = [
        Change(
            name=name,
            num_bytes=sizes.get(name, 0),
            first=one.get(name, "keep"),
            second=other.get(name, "keep"),
        )
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    ]
    changes.sort(key=lambda change: (-change.num_bytes, change.name))
    figures: dict[str, tuple[float | None, float | None]] = {
        name: (vars(first)[name], vars(second)[name]) for name in (*BYTES, *SECONDS)
    }
    for name in ("peak_bytes", "step_seconds"):
        values = [
            None if one is None else vars(one)[name] for one in (first_measured, second_measured)
        ]
        figures[f"measured_{name}"] = values[0], values[1]
    return Difference(
        changes=tuple(changes),
        moved={
            name: _num_moved(vars(first)[name], vars(second)[name], {one.name for one in changes})
            for name in PLACES
        },
        figures=figures,
    )


def difference_json(found: Difference) -> dict[str, Any]:
    """Return a difference as JSON knows it."""
    return {
        "same": found.is_same,
        "tensors": [vars(one) for one in found.changes],
        "moved": dict(found.moved),
        **{
            name: {"first": values[0], "second": values[1]}
            for name, values in found.figures.items()
        },
    }


def difference_text(found: Difference) -> str:
    """Return a difference in words."""
    rows: list[tuple[str, ...]] = [("", "first", "second")]
    for name, about in {**BYTES, **SECONDS}.items():
        if not any(found.figures[name]):
            continue
        rows.append((about, *(_figure(name, one) for one in found.figures[name])))
        measured = found.figures.get(f"measured_{name}", (None, None))
        if measured != (None, None):
            rows.append(("- measured", *(_figure(name, one) for one in measured)))
    lines = [f"{row[0]:<26} {row[1]:>12} {row[2]:>12}".rstrip() for row in rows]
    if found.is_same:
        return "\n".join([*lines, "The plans do the same with every tensor."])
    if found.changes:
        lines.append(f"{len(found.changes)} tensors are treated differently:")
    for change in found.changes:
        what = f"{change.first} -> {change.second}"
        lines.append(f"  {what:<26} {size_text(change.num_bytes):>12}  {change.name}")
    lines += [f"{PLACES[name]}: {count}" for name, count in found.moved.items() if count]
    return "\n".join(lines)


def _done(plan: Plan) -> dict[str, str]:
    """Return what is done with each tensor that is not kept."""
    on_disk = {*plan.on_disk}

    def described(name: str, what: str) -> str:
        place = "swap to disk" if name in on_disk else what
        return f"{place} as {plan.compression}" if name in plan.compressed_bytes else place

    found = {**dict.fromkeys(plan.split, "split"), **plan.decisions}
    return {name: described(name, what) for name, what in found.items() if what != "keep"}


def _num_moved(first: Any, second: Any, told: Collection[str]) -> int:
    """Return how many places differ, but those of the tensors that are told of themselves; where
    both have the same, in another order, how many stand elsewhere."""
    if isinstance(first, bool):
        return int(first != second)
    if isinstance(first, Mapping):
        names = {*first, *second} - set(told)
        return sum(first.get(name) != second.get(name) for name in names)
    alone = {*first} ^ {*second}
    return len(alone) or sum(one != other for one, other in zip(first, second, strict=True))


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return mib(value) if name in BYTES else seconds_text(value)
