"""Plans by the rule of IBM's TFLMS v2: what is swapped, and when, by distances in the graph. Pure.

T. D. Le, H. Imai, Y. Negishi and K. Kawachiya, "Automatic GPU memory management for large neural
models in TensorFlow", ISMM 2019. The level of an op is the length of the longest path to it in the
graph, and the distance of two ops the difference of their levels.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from tfunet.config.amount import GIB
from tfunet.graph.step import ALIASES, Trace, fused, root
from tfunet.swap.plan import split
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import WAYS, Decision, Plan, Way
from tfunet.swap.plan.schedule import Action, Copy, memory, schedule
from tfunet.swap.plan.timeline import Moves, moved, overlap, timeline
from tfunet.swap.plan.traffic import traffic
from tfunet.swap.search import planner
from tfunet.swap.search.search import may_go

AUTO = -1  # What TFLMS v2 has where a value is to be found.
NO_LIMIT_BYTES = 2**62
# A level, or a slice of levels with a step that is not 0.
LEVELS = r"-?\d+|(-?\d+)?:(-?\d+)?(:(-?0*[1-9]\d*)?)?"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The parameters of TFLMS v2, with its meanings and defaults.

    The first three are found for the budget where they are None (or -1, as there): the largest
    threshold with which the step is predicted to fit, then the largest of the others. Where none
    fits, it is the value that needs least memory: 1, 0 and 0.

    Args:
        swapout_threshold: A tensor that an op of the backward pass reads at a greater distance than
            this from the op that made it is swapped, for all such readers; a nearer one reads it
            where it is. At least 0.
        swapin_ahead: A copy back begins after an op that is so many levels, and one more, before
            its first reader, on a longest path to it; after that has left the device at the
            earliest. At least 0; without effect where `sync_mode` is 2 or 3, as there.
        swapin_groupby: Readers share a copy back while from one to the next there are at most so
            many levels; with 0 each has its own. At least 0.
        sync_mode: 0: copies run beside computation. 1: the step waits for copies to the host,
            2: copies back begin right before they are read, 3: both. None is 0.
        serialization: Levels whose ops run one after the other, as numbers or slices: [1, "3:5"].
        serialization_by_size: So do the ops of levels which read and make more than so many GiB; 0
            for none.
    """

    swapout_threshold: int | None = None
    swapin_ahead: int | None = None
    swapin_groupby: int | None = None
    sync_mode: int | None = None
    serialization: Sequence[int | str] = ()
    serialization_by_size: float = 0.0

    def __post_init__(self) -> None:
        for name in ("swapout_threshold", "swapin_ahead", "swapin_groupby"):
            value = getattr(self, name)
            if value is not None and (not _is_whole(value) or value < AUTO):
                raise ValueError(
                    f"{name} must be a number of levels, at least 0, or -1 to have it found; "
                    f"got {value!r}."
                )
        if self.sync_mode not in (None, 0, 1, 2, 3) or isinstance(self.sync_mode, bool):
            raise ValueError(
                f"sync_mode must be 0 (copies are not waited for), 1 (those to the host are), 2 "
                f"(those back are) or 3 (both are), got {self.sync_mode!r}."
            )
        if isinstance(self.serialization, str | int):
            raise ValueError(
                f"serialization must be a list of levels such as [4, '3:20', '10:'], got "
                f"{self.serialization!r}."
            )
        for one in self.serialization:
            _as_slice(one)
        if not self.serialization_by_size >= 0:
            raise ValueError(
                f"serialization_by_size must be an amount in GiB, at least 0, got "
                f"{self.serialization_by_size!r}."
            )

    @property
    def is_given(self) -> bool:
        """Whether any of it is, beside -1, which stands for no value."""
        values = (self.swapout_threshold, self.swapin_ahead, self.swapin_groupby)
        return (
            any(one not in (None, AUTO) for one in values)
            or self.sync_mode is not None
            or bool(self.serialization)
            or self.serialization_by_size > 0
        )


def checked(
    rule: Rule, *, plan: Plan | None, allowed: Sequence[Way], compression: str | None = None
) -> Rule | None:
    """Return the rule, or None where nothing of it is given.

    Raises ValueError where a plan or a compression is given too, or where its one way is not
    allowed.
    """
    if not rule.is_given:
        return None
    if plan is not None:
        raise ValueError(
            "plan says what is done with each tensor, and the parameters of TFLMS v2 "
            "(swapout_threshold and the like) say how to make one: give one of the two."
        )
    if sorted(allowed) != sorted(WAYS) and list(allowed) != ["swap"]:
        raise ValueError(
            f"By the rule of TFLMS v2 tensors are swapped and nothing else, and allowed is "
            f"{tuple(allowed)}. Leave it out beside swapout_threshold and the like, or leave those "
            "out."
        )
    if compression is not None:
        raise ValueError(
            f"compression={compression!r} is for the planner, and swapout_threshold and the like "
            "are in its place. Leave out one of the two: TFLMS swapped tensors as they are."
        )
    return rule


def make_plan(
    trace: Trace,
    rule: Rule,
    *,
    budget_bytes: int,
    costs: Costs,
    threshold_bytes: int,
    scratch: Mapping[int, int] | None = None,
) -> Plan:
    """Return the plan of a rule, whether or not its predicted peak is within the budget.

    Where host memory and disk have no room for all, those tensors are kept that are least far from
    their readers. Raises ValueError for levels that the step does not have.

    Args:
        trace: The step.
        rule: What it leaves open is found for the budget.
        budget_bytes: For what the step itself holds: not variables, not the batch.
        costs: Of its ops and copies, with the room for swapped tensors.
        threshold_bytes: Smaller tensors are kept, and ops on them run in any order.
        scratch: See `tfunet.swap.plan.schedule.memory`.
    """
    levels = Levels(trace)
    serialized = _serialized(trace, levels, rule, threshold_bytes)
    # Distances are counted after that, as there.
    levels = Levels(trace, serialized)
    readers = _readers(trace, threshold_bytes)

    def fits(trial: _Values) -> bool:
        actions = _swapped(trace, levels, readers, trial, costs).actions(trace)
        return int(memory(trace, actions, scratch).max(initial=0)) <= budget_bytes

    values = _filled(rule, fits, levels.count, costs.copies_overlap)
    found = _swapped(trace, levels, readers, values, costs)
    actions = found.actions(trace)
    costs = costs.placed(trace, found.decisions)
    best = planner.Candidate(
        decisions=found.decisions,
        moves=found.moves,
        in_use=memory(trace, actions, scratch),
        times=timeline(trace, actions, costs),
        on_disk=costs.on_disk,
    )
    unlimited = planner.weigh(trace, {}, costs, budget_bytes=budget_bytes, scratch=scratch)
    cut = split.cut(trace, ())
    again_bytes = sum(
        trace.tensors[one.index].num_bytes
        for one in actions
        if one.kind == "in" and one.outputs[0][1] > 1
    )
    copied = traffic(trace, cut, found.decisions, costs)
    copied = replace(copied, in_bytes=copied.in_bytes + again_bytes)
    plan = planner.described(
        trace, cut, best, unlimited, budget_bytes, scratch or {}, copied, actions
    )
    tensors, ops = trace.tensors, trace.ops
    again: dict[str, dict[str, str]] = {}
    for (tensor, number), op in sorted(found.moves.fetched_again.items()):
        again.setdefault(tensors[tensor].name, {})[str(number)] = ops[op].name
    return replace(
        plan,
        copies={
            tensors[one].name: {ops[op].name: number for op, number in sorted(read.items())}
            for one, read in sorted(found.copies.items())
        },
        fetched_again=again,
        serialized=tuple(ops[one].name for one in serialized if not ops[one].is_backward),
        rule=f"{values} of {levels.count} levels",
        host_budget_bytes=costs.tiers.host_bytes,
        disk_budget_bytes=costs.tiers.disk_bytes,
    )


class Levels:
    """The level of each op of a step: how many ops the longest path to it has.

    Args:
        trace: The step.
        chain: Ops of which each waits for the one before, by index, in order.
    """

    def __init__(self, trace: Trace, chain: Sequence[int] = ()) -> None:
        before = {after: first for first, after in pairwise(chain)}
        self.of: list[int] = []
        self._parents: list[int] = []  # the op before on a longest path; the last such
        for position, op in enumerate(trace.ops):
            awaited = [trace.tensors[one].producer for one in op.inputs]
            awaited.append(before.get(position, -1))
            parent = max(
                (one for one in awaited if one >= 0),
                key=lambda one: (self.of[one], one),
                default=-1,
            )
            self._parents.append(parent)
            self.of.append(0 if parent < 0 else self.of[parent] + 1)
        self.count = max(self.of, default=-1) + 1

    def before(self, op: int, num_levels: int) -> int:
        """Return the op that is so many levels before another on a longest path to it; the first
        of that path where it is shorter."""
        for _ in range(min(num_levels, self.of[op])):
            op = self._parents[op]
        return op


@dataclass(frozen=True, kw_only=True)
class _Values:
    """A rule that leaves nothing open; at first what needs least memory."""

    swapout_threshold: int = 1
    swapin_ahead: int = 0
    swapin_groupby: int = 0
    sync_mode: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass(frozen=True, kw_only=True)
class _Swapped:
    """What a rule does in a step; see `schedule` and `moved`."""

    decisions: Mapping[int, Decision]
    copies: Mapping[int, Mapping[int, int]]
    moves: Moves

    def actions(self, trace: Trace) -> list[Action]:
        return moved(schedule(trace, self.decisions, self.copies), self.moves)


def _swapped(
    trace: Trace,
    levels: Levels,
    readers: Mapping[int, Sequence[int]],
    values: _Values,
    costs: Costs,
) -> _Swapped:
    """Return what is done with these values."""
    distances = {
        tensor: {one: levels.of[one] - levels.of[trace.tensors[tensor].producer] for one in read}
        for tensor, read in readers.items()
    }
    decisions: dict[int, Decision] = {}
    for tensor in sorted(distances, key=lambda one: (-max(distances[one].values()), one)):
        is_far = max(distances[tensor].values()) > values.swapout_threshold
        if is_far and costs.swap_seconds(trace, tensor, decisions) is not None:
            decisions[tensor] = "swap"
    awaited: Mapping[int, int] = {}
    if values.sync_mode not in (1, 3):
        own_costs, actions = costs.placed(trace, decisions), schedule(trace, decisions)
        awaited = overlap(trace, actions, own_costs, budget_bytes=NO_LIMIT_BYTES).awaited
    last_forward = max((at for at, op in enumerate(trace.ops) if not op.is_backward), default=-1)
    copies: dict[int, dict[int, int]] = {}
    begins: dict[Copy, int] = {}
    for tensor in decisions:
        far = {one for one, apart in distances[tensor].items() if apart > values.swapout_threshold}
        near = set(readers[tensor]) - far
        groups = _grouped(far, levels, values.swapin_groupby)
        numbers = {one: number for number, group in enumerate(groups, 1) for one in group}
        if near or len(groups) > 1:
            copies[tensor] = {**dict.fromkeys(near, 0), **numbers}
        earliest = max(awaited.get(tensor, -1), last_forward, *near)
        for number, group in enumerate(groups, 1):
            first = min(group, key=lambda one: (levels.of[one], one))
            after = max(earliest, levels.before(first, values.swapin_ahead + 1))
            if values.sync_mode not in (2, 3) and after < min(group) - 1:
                begins[tensor, number] = after
    moves = Moves(
        awaited=awaited,
        fetched={tensor: after for (tensor, number), after in begins.items() if number == 1},
        fetched_again={copy: after for copy, after in begins.items() if copy[1] > 1},
    )
    return _Swapped(decisions=decisions, copies=copies, moves=moves)


def _readers(trace: Trace, threshold_bytes: int) -> dict[int, list[int]]:
    """Return the ops of the backward pass that read each tensor that may be swapped, or a view."""
    found: dict[int, list[int]] = {}
    for position, op in enumerate(trace.ops):
        if op.is_backward:
            for one in {root(trace, one) for one in op.inputs if _is_forward(trace, one)}:
                if may_go(trace, one, threshold_bytes):
                    found.setdefault(one, []).append(position)
    return found


def _is_forward(trace: Trace, tensor: int) -> bool:
    producer = trace.tensors[tensor].producer
    return producer >= 0 and not trace.ops[producer].is_backward


def _grouped(readers: Collection[int], levels: Levels, num_levels: int) -> list[list[int]]:
    """Return the readers that share a copy, those groups first that run first."""
    groups: list[list[int]] = []
    previous = -1
    for level, one in sorted((levels.of[one], one) for one in readers):
        if num_levels > 0 and groups and level - previous <= num_levels:
            groups[-1].append(one)
        else:
            groups.append([one])
        previous = level
    return sorted(groups, key=min)


def _filled(
    rule: Rule, fits: Callable[[_Values], bool], most: int, copies_overlap: bool
) -> _Values:
    """Return the values of a rule; what it leaves open as large as fits, one after the other."""
    given = {
        name: value
        for name in ("swapout_threshold", "swapin_ahead", "swapin_groupby")
        if (value := getattr(rule, name)) not in (None, AUTO)
    }
    values = _Values(**given, sync_mode=rule.sync_mode or 0)
    for name in asdict(values):
        # Where copies take turns with computation, nothing is gained by beginning them earlier.
        is_late = not copies_overlap or values.sync_mode in (2, 3)
        if name in given or name == "sync_mode" or (name == "swapin_ahead" and is_late):
            continue
        low, high = getattr(values, name), most
        while low <= high:
            middle = (low + high) // 2
            trial = replace(values, **{name: middle})
            if fits(trial):
                values, low = trial, middle + 1
            else:
                high = middle - 1
    return values


def _serialized(trace: Trace, levels: Levels, rule: Rule, threshold_bytes: int) -> list[int]:
    """Return the ops that run one after the other, in order.

    Raises ValueError where none of the levels that are named is there.
    """
    chosen: set[int] = set()
    for one in rule.serialization:
        named = range(levels.count)[_as_slice(one)]
        if not named:
            raise ValueError(
                f"serialization has {one!r}, and the step has the levels 0 to {levels.count - 1}."
            )
        chosen.update(named)
    sizes = [
        [trace.tensors[one].num_bytes for one in (*op.inputs, *op.outputs)] for op in trace.ops
    ]
    if rule.serialization_by_size > 0:
        totals = [0] * levels.count
        for level, num_bytes in zip(levels.of, sizes, strict=True):
            totals[level] += sum(num_bytes)
        least_bytes = rule.serialization_by_size * GIB
        chosen.update(level for level, total in enumerate(totals) if total > least_bytes)
    found = {
        position
        for position, op in enumerate(trace.ops)
        if levels.of[position] in chosen
        and op.kind not in ALIASES
        and max(sizes[position], default=0) >= max(1, threshold_bytes)
    }
    pairs = fused(trace)
    for one, other in [*pairs.items(), *reversed(pairs.items())]:
        found |= {one, other} if {one, other} & found else set()
    return sorted(found)


def _as_slice(levels: int | str) -> slice:
    """Return the slice of a number or of text such as "3:20"; ValueError for anything else."""
    text = str(levels).replace(" ", "")
    if isinstance(levels, bool) or not re.fullmatch(LEVELS, text):
        raise ValueError(
            f"serialization has {levels!r}, which is neither a level such as 4 nor a slice of "
            "levels such as '3:20' or '10:'."
        )
    if ":" not in text:
        return slice(int(text), int(text) + 1 or None)
    return slice(*(int(one) if one else None for one in text.split(":")))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
