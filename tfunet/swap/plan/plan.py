"""What large-model support does with each tensor that the backward pass needs. Pure."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_type_hints

from tfunet.files.typed import Amount, Count, check_known_fields

Decision = Literal["keep", "recompute", "swap"]
# What may be done with a tensor beside keeping it.
Way = Literal["recompute", "split", "swap"]
WAYS: tuple[Way, ...] = ("swap", "recompute", "split")
# Keys of earlier versions, which say nothing where they are empty.
FORMER = ("compressed_bytes", "compression", "copies", "fetched_again", "rule", "serialized")
# The names of a replica's ops and tensors begin so in the graph of a process that has several.
REPLICA = re.compile(r"replica_\d+/")


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What a step does, by names of the graph.

    Args:
        decisions: "swap" or "recompute" for a tensor's name; other tensors are kept or split.
        awaited: Tensor to the op after which the step waits for its copy to the host. By default
            that is the op that made it.
        fetched: Tensor to the op after which its copy to the device begins. By default it begins
            right before the tensor is read.
        on_disk: Swapped tensors that lie on disk; the others are in host memory.
        from_outputs: Gradients of activations that read the activation's output instead of its
            input, which then need not stay.
        detours: Tensors that leave the device for the host for a while, so that the allocator finds
            room: each with the actions before which it leaves and returns
            (`tfunet.swap.arena.detours`).
        is_placed: Whether TensorFlow's allocator was played through the step, so that the step has
            to run in the order that was played: the place of each tensor depends on it.
    """

    decisions: Mapping[str, Decision] = field(default_factory=dict)
    awaited: Mapping[str, str] = field(default_factory=dict)
    fetched: Mapping[str, str] = field(default_factory=dict)
    on_disk: Sequence[str] = ()
    from_outputs: Sequence[str] = ()
    detours: Sequence[tuple[str, str, str]] = ()
    is_placed: bool = False

    def count(self, decision: Decision) -> int:
        """Return how many tensors are treated so."""
        return sum(made == decision for made in self.decisions.values())


@dataclass(frozen=True, kw_only=True)
class SlabDecisions:
    """Which ops run in slabs.

    Args:
        split: Tensors that are never whole on the device: the ops around them run in slabs.
        slab_rows: Rows of a slab, by the last op of each chain of ops that run in slabs.
    """

    split: Sequence[str] = ()
    slab_rows: Mapping[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the decisions come to in a step, as predicted; times are 0 where no op was timed.

    Args:
        finds_room: TensorFlow's allocator is played through a step several times, within the budget
            of the whole training. This is the share of times when it had room.
        floor_bytes: The largest working set of one op; no plan needs less.
        peak_tensors: Bytes of the largest tensors that are held at the peak, by name.
        obstacles: If the budget is not met: the ops that alone need more, with their bytes.
        advice: If the budget is not met: what would help.
        disk_bytes: Room for the tensors on disk. A step writes and reads as many bytes.
        out_bytes: Copied from device to host, also what goes on to the disk.
        in_bytes: Copied from host to device.
        host_budget_bytes: The limit on host memory that the plan was made for; None for none.
        disk_budget_bytes: The same for the disk; 0 without a disk.
        wanted_host_bytes: Room, in host memory or on disk, with which `peak_bytes` would be
            `wanted_peak_bytes`; 0 unless the limits of both stand in the way.
        wanted_peak_bytes: See `wanted_host_bytes`.
        repeat_seconds: The part of a step in which ops are run again.
        copy_seconds: All copies, hidden behind computation or not.
        exposed_seconds: The part in which the step waits for copies.
        curve: Memory in use over the step, (seconds, bytes) wherever it changes.
        unlimited_curve: The same with every tensor kept.
        tensor_bytes: Bytes of the tensors in `decisions` and `split`.
    """

    budget_bytes: Count = 0
    peak_bytes: Count = 0
    unlimited_peak_bytes: Count = 0
    finds_room: Amount = 1.0
    floor_bytes: Count = 0
    floor_op: str = ""
    peak_op: str = ""
    peak_tensors: Mapping[str, Count] = field(default_factory=dict)
    obstacles: Mapping[str, Count] = field(default_factory=dict)
    advice: Sequence[str] = ()
    host_bytes: Count = 0
    disk_bytes: Count = 0
    out_bytes: Count = 0
    in_bytes: Count = 0
    host_budget_bytes: Count | None = None
    disk_budget_bytes: Count | None = 0
    wanted_host_bytes: Count = 0
    wanted_peak_bytes: Count = 0
    step_seconds: Amount = 0.0
    unlimited_step_seconds: Amount = 0.0
    repeat_seconds: Amount = 0.0
    copy_seconds: Amount = 0.0
    exposed_seconds: Amount = 0.0
    curve: Sequence[tuple[Amount, Amount]] = ()
    unlimited_curve: Sequence[tuple[Amount, Amount]] = ()
    tensor_bytes: Mapping[str, Count] = field(default_factory=dict)

    @property
    def hidden_seconds(self) -> float:
        """The part of `copy_seconds` that runs beside computation."""
        return max(0.0, self.copy_seconds - self.exposed_seconds)


# Fields are in the order of the bases from the last to the first, and so are the keys of swap.json.
@dataclass(frozen=True, kw_only=True)
class Plan(Figures, SlabDecisions, Decisions):
    """What is done with each tensor, by its name in the graph, and what that comes to."""

    @property
    def gives_up(self) -> bool:
        """Whether anything does not stay that would without the plan."""
        return bool(self.decisions or self.split or self.from_outputs or self.detours)

    def to_json(self) -> str:
        """Return the plan as JSON, in one order always, so that two can be compared by lines."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` wrote."""
        return cls.from_table(json.loads(text))

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the plan of a table as `swap.json` holds it; raise FieldError for a wrong one."""
        table = {key: value for key, value in table.items() if value or key not in FORMER}
        check_known_fields(table, get_type_hints(cls, include_extras=True))
        # Plans of earlier versions lack these two, and have no split tensors.
        sizes = table.get("tensor_bytes", {})
        decisions = table.get("decisions", {}).items()
        swapped = sum(sizes.get(name, 0) for name, way in decisions if way == "swap")
        return cls(**{"out_bytes": swapped, "in_bytes": swapped, **_with_tuples(table)})


def of_one_replica(plan: Plan) -> Plan:
    """Return the plan with the names of a process that has one replica."""
    return Plan(**_with_tuples(vars(plan), lambda name: REPLICA.sub("", name)))


def _with_tuples(value: Any, renamed: Callable[[str], str] = str) -> Any:
    """Return a value as JSON has it, with tuples for lists, and all text renamed."""
    if isinstance(value, str):
        return renamed(value)
    if isinstance(value, Mapping):
        return {
            _with_tuples(key, renamed): _with_tuples(item, renamed) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return tuple(_with_tuples(item, renamed) for item in value)
    return value
