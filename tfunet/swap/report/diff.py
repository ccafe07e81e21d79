"""What two plans do differently. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tfunet.swap.plan.plan import Plan, of_one_replica
from tfunet.swap.report.measured import Measured
from tfunet.swap.report.text import mib, seconds_text, size_text

# Figures of plans, and their names in words.
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
# Places of copies, ops and slabs. Only the number of those that differ is told.
PLACES = {
    "awaited": "copies out that are awaited elsewhere",
    "fetched": "copies back that begin elsewhere",
    "from_outputs": "gradients of activations that read the output under one plan only",
    "detours": "tensors that leave for a while, to make room, elsewhere or under one plan only",
    "is_placed": "convolutions and copies back run in a fixed order under one plan only",
    "slab_rows": "ops that run in slabs of another height, or not in slabs",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A tensor that two plans treat differently; its size is 0 if neither plan tells.

    Treatments are "keep", "swap", "swap to disk", "recompute" and "split".
    """

    name: str
    num_bytes: int
    first: str
    second: str


@dataclass(frozen=True, kw_only=True)
class PlanDifference:
    """What two plans do differently, and what they come to.

    Args:
        moved: By the names of PLACES, how many places differ.
        figures: By the names of BYTES and SECONDS, and "measured_peak_bytes" and
            "measured_step_seconds": (of the first plan, of the second); None if not known.
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
) -> PlanDifference:
    """Return what two plans do differently, with what was measured under each."""
    first, second = of_one_replica(first), of_one_replica(second)
    first_way, second_way = _treatments(first), _treatments(second)
    sizes = {**second.tensor_bytes, **first.tensor_bytes}
    changes = [
        Change(
            name=name,
            num_bytes=sizes.get(name, 0),
            first=first_way.get(name, "keep"),
            second=second_way.get(name, "keep"),
        )
        for name in {**first_way, **second_way}
        if first_way.get(name) != second_way.get(name)
    ]
    changes.sort(key=lambda change: (-change.num_bytes, change.name))
    figures: dict[str, tuple[float | None, float | None]] = {
        name: (vars(first)[name], vars(second)[name]) for name in (*BYTES, *SECONDS)
    }
    for name in ("peak_bytes", "step_seconds"):
        figures[f"measured_{name}"] = (
            None if first_measured is None else vars(first_measured)[name],
            None if second_measured is None else vars(second_measured)[name],
        )
    changed = {change.name for change in changes}
    return PlanDifference(
        changes=tuple(changes),
        moved={name: _num_moved(vars(first)[name], vars(second)[name], changed) for name in PLACES},
        figures=figures,
    )


def difference_json(difference: PlanDifference) -> dict[str, Any]:
    """Return a difference as JSON knows it."""
    return {
        "same": difference.is_same,
        "tensors": [vars(change) for change in difference.changes],
        "moved": dict(difference.moved),
        **{
            name: {"first": first, "second": second}
            for name, (first, second) in difference.figures.items()
        },
    }


def difference_text(difference: PlanDifference) -> str:
    """Return a difference in words."""
    rows: list[tuple[str, ...]] = [("", "first", "second")]
    for name, about in {**BYTES, **SECONDS}.items():
        if not any(difference.figures[name]):
            continue
        rows.append((about, *(_figure(name, value) for value in difference.figures[name])))
        measured = difference.figures.get(f"measured_{name}", (None, None))
        if measured != (None, None):
            rows.append(("- measured", *(_figure(name, value) for value in measured)))
    lines = [f"{row[0]:<26} {row[1]:>12} {row[2]:>12}".rstrip() for row in rows]
    if difference.is_same:
        return "\n".join([*lines, "The plans do the same with every tensor."])
    if difference.changes:
        lines.append(f"{len(difference.changes)} tensors are treated differently:")
    for change in difference.changes:
        treatments = f"{change.first} -> {change.second}"
        lines.append(f"  {treatments:<26} {size_text(change.num_bytes):>12}  {change.name}")
    lines += [f"{PLACES[name]}: {count}" for name, count in difference.moved.items() if count]
    return "\n".join(lines)


def _treatments(plan: Plan) -> dict[str, str]:
    ways = {
        **dict.fromkeys(plan.split, "split"),
        **plan.decisions,
        **dict.fromkeys(plan.on_disk, "swap to disk"),
    }
    return {name: way for name, way in ways.items() if way != "keep"}


def _num_moved(first: Any, second: Any, changed: Collection[str]) -> int:
    """Return how many places differ, without those of tensors whose treatment has changed; of a
    list in another order, how many items stand elsewhere."""
    if isinstance(first, bool):
        return int(first != second)
    if isinstance(first, Mapping):
        names = {*first, *second} - set(changed)
        return sum(first.get(name) != second.get(name) for name in names)
    in_one_only = {*first} ^ {*second}
    return len(in_one_only) or sum(a != b for a, b in zip(first, second, strict=True))


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return mib(value) if name in BYTES else seconds_text(value)
