"""What large-model support does with each tensor that the backward pass needs. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Decision = Literal["keep", "recompute", "swap"]
# What may be done with a tensor beside keeping it.
Way = Literal["recompute", "split", "swap"]
WAYS: tuple[Way, ...] = ("swap", "recompute", "split")
# What names a replica in the graph of a process that has several.
REPLICA = re.compile(r"replica_\d+/")


# What of a plan has names of the graph.
NAMED = (
    "decisions",
    "awaited",
    "fetched",
    "copies",
    "fetched_again",
    "serialized",
    "from_outputs",
    "detours",
    "split",
    "slab_rows",
    "on_disk",
    "compressed_bytes",
    "peak_op",
    "peak_tensors",
    "floor_op",
    "obstacles",
    "tensor_bytes",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done with each tensor, by its name in the graph; what is not named is kept.

    Args:
        decisions: "swap" or "recompute" for a tensor's name.
        awaited: Tensor to the op after which the step waits for its copy to the host; where it is
            not named, right after the op that made it.
        fetched: Tensor to the op after which its copy to the device begins; where it is not
            named, right before it is read.
        copies: Of tensors that come back several times, the number of the copy that each op of the
            backward pass reads: 0 for the one that was copied out, 1 for the first that comes back.
            Where it is not named, the first.
        fetched_again: As `fetched`, of the second copy on: tensor to its numbers, as text, to ops.
        rule: How the plan was made, where not by the planner's search.
        serialized: Ops of the forward pass that run one after the other, as all large ones of the
            backward pass do.
        from_outputs: Gradients of activations that read the activation's output in the place of its
            input, which does not stay for them.
        detours: Tensors that leave the device for the host for a while, so that the allocator finds
            room: each with the actions before which it leaves and returns
            (`tfunet.swap.arena.detours`).
        split: Tensors that are never whole on the device: the ops around them run in slabs.
        slab_rows: Rows of a slab, by the last op of each chain of ops that run in slabs.
        on_disk: Of the swapped tensors, those that lie on disk; the others are in host memory.
        compression: How tensors are rounded before they are copied out; None where none is.
        compressed_bytes: What each swapped tensor that is rounded takes elsewhere; the others are
            swapped as they are.
        budget_bytes: Device memory that the plan was made for.
        peak_bytes: Most device memory in use at once, predicted.
        unlimited_peak_bytes: The same with every tensor kept, predicted.
        finds_room: How often, of the times that TensorFlow's allocator was played through a step,
            it had room for it within the budget of the whole training.
        is_placed: Whether it was played through so, and the step is to run in the order in which it
            was: where tensors come to lie hangs on it.
        floor_bytes: The largest working set of one op, which no plan can pass.
        floor_op: That op's name.
        peak_op: The op that runs, or the tensor that is copied, when most memory is in use.
        peak_tensors: Bytes of the largest tensors that are held then, by name.
        obstacles: Where the budget is not met: the ops that alone need more, with their bytes.
        advice: What would help then.
        host_bytes: Host memory that tensors take which are swapped or split.
        disk_bytes: What those on disk take there; so much is written to it, and read, in a step.
        out_bytes: Copied from device to host in a step, also what goes on to the disk.
        in_bytes: Copied from host to device in a step.
        host_budget_bytes: Host memory that the plan was made for; None for no limit.
        disk_budget_bytes: The same of the disk; 0 where there was none.
        wanted_host_bytes: Room, in host memory or on disk, with which `peak_bytes` would be
            `wanted_peak_bytes`; 0 where the limits of both do not stand in the way.
        wanted_peak_bytes: See `wanted_host_bytes`.
        step_seconds: Time of a step, predicted.
        unlimited_step_seconds: The same with every tensor kept, predicted.
        repeat_seconds: Of `step_seconds`, ops that are run again.
        copy_seconds: All copies of a step, hidden behind computation or not.
        exposed_seconds: Of `step_seconds`, waiting for copies.
        curve: Memory in use over the step, predicted: (seconds, bytes) wherever it changes.
        unlimited_curve: The same with every tensor kept.
        tensor_bytes: Of the tensors in `decisions` and `split`.
    """

    decisions: Mapping[str, Decision] = field(default_factory=dict)
    awaited: Mapping[str, str] = field(default_factory=dict)
    fetched: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    fetched_again: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rule: str = ""
    serialized: Sequence[str] = ()
    from_outputs: Sequence[str] = ()
    detours: Sequence[tuple[str, str, str]] = ()
    split: Sequence[str] = ()
    slab_rows: Mapping[str, int] = field(default_factory=dict)
    on_disk: Sequence[str] = ()
    compression: str | None = None
    compressed_bytes: Mapping[str, int] = field(default_factory=dict)
    budget_bytes: int = 0
    peak_bytes: int = 0
    unlimited_peak_bytes: int = 0
    finds_room: float = 1.0
    is_placed: bool = False
    floor_bytes: int = 0
    floor_op: str = ""
    peak_op: str = ""
    peak_tensors: Mapping[str, int] = field(default_factory=dict)
    obstacles: Mapping[str, int] = field(default_factory=dict)
    advice: Sequence[str] = ()
    host_bytes: int = 0
    disk_bytes: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    host_budget_bytes: int | None = None
    disk_budget_bytes: int | None = 0
    wanted_host_bytes: int = 0
    wanted_peak_bytes: int = 0
    step_seconds: float = 0.0
    unlimited_step_seconds: float = 0.0
    repeat_seconds: float = 0.0
    copy_seconds: float = 0.0
    exposed_seconds: float = 0.0
    curve: Sequence[Sequence[float]] = ()
    unlimited_curve: Sequence[Sequence[float]] = ()
    tensor_bytes: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the plan as JSON, in one order always, so that two can be compared by lines."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return what `to_json` wrote."""
        return cls.from_table(json.loads(text))

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Plan":
        """Return the plan of a table as `swap.json` holds it."""
        curves = {
            name: tuple(tuple(point) for point in table.get(name, ()))
            for name in ("curve", "unlimited_curve")
        }
        listed = ("split", "on_disk", "advice", "serialized", "from_outputs")
        names = {name: tuple(table.get(name, ())) for name in listed}
        names["detours"] = tuple(tuple(one) for one in table.get("detours", ()))
        # Plans of earlier versions do not tell, and split tensors are not in this.
        sizes = table.get("tensor_bytes", {})
        decisions = table.get("decisions", {}).items()
        swapped = sum(sizes.get(one, 0) for one, what in decisions if what == "swap")
        return cls(**{"out_bytes": swapped, "in_bytes": swapped, **table, **curves, **names})

    @property
    def hidden_seconds(self) -> float:
        """Of `copy_seconds`, what runs beside computation."""
        return max(0.0, self.copy_seconds - self.exposed_seconds)

    @property
    def gives_up(self) -> bool:
        """Whether anything does not stay that would without the plan."""
        return bool(self.decisions or self.split or self.from_outputs or self.detours)

    def count(self, decision: Decision) -> int:
        return sum(one == decision for one in self.decisions.values())


def of_one_replica(plan: Plan) -> Plan:
    """Return the plan with the names of a process that has one replica."""

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return REPLICA.sub("", value)
        if isinstance(value, Mapping):
            return {renamed(key): renamed(one) for key, one in value.items()}
        if isinstance(value, tuple | list):
            return tuple(renamed(one) for one in value)
        return value

    return replace(plan, **{name: renamed(vars(plan)[name]) for name in NAMED})


def check_plan(plan: Plan, compression: str | None) -> None:
    """Raise ValueError for a plan that rounds what nobody allowed it to."""
    if plan.compressed_bytes and plan.compression != compression:
        raise ValueError(
            f"The plan has {len(plan.compressed_bytes)} tensors compressed to {plan.compression}: "
            f"give compression={plan.compression!r} too, or leave plan out to have one made "
            "without."
        )
