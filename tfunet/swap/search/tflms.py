"""The rule of IBM's TFLMS v2: distances in the graph say what is swapped, and when. Pure.

T. D. Le, H. Imai, Y. Negishi and K. Kawachiya, "Automatic GPU memory management for large neural
models in TensorFlow", ISMM 2019. The level of an op is the length of the longest path to it in the
graph, and the distance of two ops the difference of their levels.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import ClassVar, final

from tfunet.config.amount import GIB
from tfunet.graph.step import ALIASES, Trace, fused, root
from tfunet.swap.plan import split
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import WAYS, Decision, Plan, Way
from tfunet.swap.plan.schedule import Action, Copy, schedule
from tfunet.swap.plan.timeline import Moves, moved, overlap
from tfunet.swap.search.candidates import may_go
from tfunet.swap.search.planner import Planner, as_plan
from tfunet.swap.search.strategy import Problem, Strategy

AUTO = -1  # In TFLMS v2 this value means: find the best one.
NO_LIMIT_BYTES = 2**62
# A level, or a slice of levels with a step that is not 0.
LEVELS = r"-?\d+|(-?\d+)?:(-?\d+)?(:(-?0*[1-9]\d*)?)?"


@final
@dataclass(frozen=True, kw_only=True)
class Rule(Strategy):
    """Swaps by the rule of TFLMS v2, whether or not the predicted peak is within the budget.

    The parameters have the meanings and defaults of TFLMS v2. The first three are found for the
    budget where they are None (or -1, as there): the largest threshold with which the step is
    predicted to fit, then the largest of the others. Where no value fits, it is the one that needs
    least memory: 1, 0 and 0. Where host memory and disk have no room for all tensors, those stay
    on the device that are nearest to their readers.

    Args:
        swapout_threshold: A tensor is swapped for those ops of the backward pass that read it at a
            greater distance than this from the op that made it. Nearer ops read the tensor itself.
            At least 0.
        swapin_ahead: A copy back begins after an op that is so many levels, and one more, before
            its first reader, on a longest path to it; but not before the tensor has left the
            device. At least 0; without effect where `sync_mode` is 2 or 3, as there.
        swapin_groupby: Readers share a copy back while from one to the next there are at most so
            many levels; with 0 each has its own. At least 0.
        sync_mode: 0: copies run beside computation. 1: the step waits for copies to the host,
            2: copies back begin right before they are read, 3: both. None is 0.
        serialization: Levels whose ops run one after the other, as numbers or slices: [1, "3:5"].
        serialization_by_size: Ops of a level run one after the other, too, if the level reads and
            makes more than so many GiB; 0 for none.
    """

    needs_costs: ClassVar[bool] = True
    takes_detours: ClassVar[bool] = False

    swapout_threshold: int | None = None
    swapin_ahead: int | None = None
    swapin_groupby: int | None = None
    sync_mode: int | None = None
    serialization: Sequence[int | str] = ()
    serialization_by_size: float = 0.0

    def __post_init__(self) -> None:
        for name in ("swapout_threshold", "swapin_ahead", "swapin_groupby"):
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and (not is_whole or value < AUTO):
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
        for levels in self.serialization:
            _as_slice(levels)
        if not self.serialization_by_size >= 0:
            raise ValueError(
                f"serialization_by_size must be an amount in GiB, at least 0, got "
                f"{self.serialization_by_size!r}."
            )

    @property
    def is_given(self) -> bool:
        """Whether any parameter has a value; -1 is none."""
        values = (self.swapout_threshold, self.swapin_ahead, self.swapin_groupby)
        return (
            any(value not in (None, AUTO) for value in values)
            or self.sync_mode is not None
            or bool(self.serialization)
            or self.serialization_by_size > 0
        )

    def for_forward_pass(self) -> Strategy:
        """Return a planner that swaps: the rule is about the backward pass."""
        return Planner(("swap",))

    def check(self, *, plan: Plan | None, allowed: Sequence[Way]) -> None:
        """Raise ValueError beside a plan, or where swapping is not all that is allowed."""
        if plan is not None:
            raise ValueError(
                "plan says what is done with each tensor, and the parameters of TFLMS v2 "
                "(swapout_threshold and the like) say how to make one: give one of the two."
            )
        if sorted(allowed) != sorted(WAYS) and list(allowed) != ["swap"]:
            raise ValueError(
                f"By the rule of TFLMS v2 tensors are swapped and nothing else, and allowed is "
                f"{tuple(allowed)}. Leave out allowed, or swapout_threshold and the like."
            )

    def plan(self, problem: Problem) -> Plan:
        """Return the plan; ValueError for levels that the step does not have."""
        trace, costs = problem.trace, problem.costs
        levels = Levels(trace)
        serialized = _serialized(trace, levels, self, problem.threshold_bytes)
        # Distances are counted after that, as there.
        levels = Levels(trace, serialized)
        readers = _readers(trace, problem.threshold_bytes)

        def fits(trial: _Values) -> bool:
            actions = _swaps(trace, levels, readers, trial, costs).actions(trace)
            return int(problem.memory(actions).max(initial=0)) <= problem.budget_bytes

        values = _filled(self, fits, levels.count, costs.copies_overlap)
        swaps = _swaps(trace, levels, readers, values, costs)
        actions = swaps.actions(trace)
        outcome = problem.outcome(swaps.decisions, swaps.moves, actions)
        plan = as_plan(problem, split.cut(trace, ()), outcome, problem.weigh({}))
        tensors, ops = trace.tensors, trace.ops
        more_in_bytes = sum(
            tensors[action.index].num_bytes
            for action in actions
            if action.kind == "in" and action.outputs[0][1] > 1
        )
        fetched_again: dict[str, dict[str, str]] = {}
        for (tensor, number), op in sorted(swaps.moves.fetched_again.items()):
            fetched_again.setdefault(tensors[tensor].name, {})[str(number)] = ops[op].name
        return replace(
            plan,
            copies={
                tensors[tensor].name: {ops[op].name: number for op, number in sorted(read.items())}
                for tensor, read in sorted(swaps.copies.items())
            },
            fetched_again=fetched_again,
            serialized=tuple(ops[op].name for op in serialized if not ops[op].is_backward),
            rule=f"{values} of {levels.count} levels",
            in_bytes=plan.in_bytes + more_in_bytes,
        )


def told(plan: Plan) -> str:
    """Return by which rule a plan was made, such as "the rule of TFLMS v2: ..."; "" for none."""
    return f"the rule of TFLMS v2: {plan.rule}" if plan.rule else ""


class Levels:
    """The level of each op, the length of the longest path to it; ops of `chain` wait in turn."""

    def __init__(self, trace: Trace, chain: Sequence[int] = ()) -> None:
        before = {after: first for first, after in pairwise(chain)}
        self.of: list[int] = []
        self._parents: list[int] = []  # the op before on a longest path; the last such
        for position, op in enumerate(trace.ops):
            awaited = [trace.tensors[tensor].producer for tensor in op.inputs]
            awaited.append(before.get(position, -1))
            parent = max(
                (other for other in awaited if other >= 0),
                key=lambda other: (self.of[other], other),
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
    """A rule that leaves nothing open; the defaults need least memory."""

    swapout_threshold: int = 1
    swapin_ahead: int = 0
    swapin_groupby: int = 0
    sync_mode: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass(frozen=True, kw_only=True)
class _Swaps:
    """What a rule does in a step; see `schedule` and `moved`."""

    decisions: Mapping[int, Decision]
    copies: Mapping[int, Mapping[int, int]]
    moves: Moves

    def actions(self, trace: Trace) -> list[Action]:
        return moved(schedule(trace, self.decisions, self.copies), self.moves)


def _swaps(
    trace: Trace,
    levels: Levels,
    readers: Mapping[int, Sequence[int]],
    values: _Values,
    costs: Costs,
) -> _Swaps:
    distances = {
        tensor: {op: levels.of[op] - levels.of[trace.tensors[tensor].producer] for op in ops}
        for tensor, ops in readers.items()
    }
    decisions: dict[int, Decision] = {}
    for tensor in sorted(distances, key=lambda tensor: (-max(distances[tensor].values()), tensor)):
        is_far = max(distances[tensor].values()) > values.swapout_threshold
        if is_far and costs.swap_seconds(trace, tensor, decisions) is not None:
            decisions[tensor] = "swap"
    awaited: Mapping[int, int] = {}
    if values.sync_mode not in (1, 3):
        placed_costs, actions = costs.placed(trace, decisions), schedule(trace, decisions)
        awaited = overlap(trace, actions, placed_costs, budget_bytes=NO_LIMIT_BYTES).awaited
    last_forward = max((at for at, op in enumerate(trace.ops) if not op.is_backward), default=-1)
    copies: dict[int, dict[int, int]] = {}
    begins: dict[Copy, int] = {}
    for tensor in decisions:
        far = {op for op, apart in distances[tensor].items() if apart > values.swapout_threshold}
        near = set(readers[tensor]) - far
        groups = _grouped(far, levels, values.swapin_groupby)
        numbers = {op: number for number, group in enumerate(groups, 1) for op in group}
        if near or len(groups) > 1:
            copies[tensor] = {**dict.fromkeys(near, 0), **numbers}
        earliest = max(awaited.get(tensor, -1), last_forward, *near)
        for number, group in enumerate(groups, 1):
            first = min(group, key=lambda op: (levels.of[op], op))
            after = max(earliest, levels.before(first, values.swapin_ahead + 1))
            if values.sync_mode not in (2, 3) and after < min(group) - 1:
                begins[tensor, number] = after
    moves = Moves(
        awaited=awaited,
        fetched={tensor: after for (tensor, number), after in begins.items() if number == 1},
        fetched_again={copy: after for copy, after in begins.items() if copy[1] > 1},
    )
    return _Swaps(decisions=decisions, copies=copies, moves=moves)


def _readers(trace: Trace, threshold_bytes: int) -> dict[int, list[int]]:
    """Return the ops of the backward pass that read each tensor that may be swapped, or a view."""
    readers: dict[int, list[int]] = {}
    for position, op in enumerate(trace.ops):
        if op.is_backward:
            for tensor in {root(trace, index) for index in op.inputs if trace.is_of_forward(index)}:
                if may_go(trace, tensor, threshold_bytes):
                    readers.setdefault(tensor, []).append(position)
    return readers


def _grouped(readers: Collection[int], levels: Levels, num_levels: int) -> list[list[int]]:
    """Return the readers that share a copy, those groups first that run first."""
    groups: list[list[int]] = []
    previous = -1
    for level, reader in sorted((levels.of[reader], reader) for reader in readers):
        if num_levels > 0 and groups and level - previous <= num_levels:
            groups[-1].append(reader)
        else:
            groups.append([reader])
        previous = level
    return sorted(groups, key=min)


def _filled(
    rule: Rule, fits: Callable[[_Values], bool], most: int, copies_overlap: bool
) -> _Values:
    """Return the values of a rule; those it leaves open are as large as fits, one by one."""
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
    """Return the ops that run one after the other; ValueError for levels that are not there."""
    chosen: set[int] = set()
    for item in rule.serialization:
        named = range(levels.count)[_as_slice(item)]
        if not named:
            raise ValueError(
                f"serialization has {item!r}, and the step has the levels 0 to {levels.count - 1}."
            )
        chosen.update(named)
    sizes = [
        [trace.tensors[tensor].num_bytes for tensor in (*op.inputs, *op.outputs)]
        for op in trace.ops
    ]
    if rule.serialization_by_size > 0:
        totals = [0] * levels.count
        for level, num_bytes in zip(levels.of, sizes, strict=True):
            totals[level] += sum(num_bytes)
        least_bytes = rule.serialization_by_size * GIB
        chosen.update(level for level, total in enumerate(totals) if total > least_bytes)
    serialized = {
        position
        for position, op in enumerate(trace.ops)
        if levels.of[position] in chosen
        and op.kind not in ALIASES
        and max(sizes[position], default=0) >= max(1, threshold_bytes)
    }
    pairs = fused(trace)
    for pair in [*pairs.items(), *reversed(pairs.items())]:
        serialized |= set(pair) if serialized.intersection(pair) else set()
    return sorted(serialized)


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
    return slice(*(int(part) if part else None for part in text.split(":")))
