"""A plan, which names tensors and ops, applied to a step that was traced. Pure."""

from collections.abc import Collection

from tfunet.graph.step import Trace
from tfunet.swap.arena.detours import Detour, name_of, with_detours
from tfunet.swap.plan import split
from tfunet.swap.plan.activations import reading_outputs
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import Action, schedule
from tfunet.swap.plan.timeline import Moves, moved

OF_ANOTHER = ": it is of another model or batch. Leave plan out to make a new one."


def as_planned(trace: Trace, plan: Plan) -> Trace:
    """Return a step in which those gradients read outputs that a plan names; ValueError if it is
    the plan of another step."""
    _check_names(plan.from_outputs, [op.name for op in trace.ops if op.instead >= 0])
    return reading_outputs(trace, plan.from_outputs)


def cut_as_planned(trace: Trace, plan: Plan) -> split.Cut:
    """Return a step cut as a plan says; ValueError if it is the plan of another step."""
    tensors, ops = _indices(trace)
    _check_names({*plan.split}, tensors)
    _check_names({*plan.slab_rows}, ops)
    to_split = {tensors[name] for name in plan.split}
    if not to_split <= split.splittable(trace):
        raise ValueError(f"The plan splits what cannot be split here{OF_ANOTHER}")
    heights = {ops[name]: rows for name, rows in plan.slab_rows.items()}
    return split.cut(trace, to_split, heights=heights)


def scheduled(trace: Trace, plan: Plan) -> list[Action]:
    """Return the actions of a step under a plan; ValueError if it is the plan of another step."""
    tensors, ops = _indices(trace)
    places = [*plan.awaited.items(), *plan.fetched.items()]
    _check_names({*plan.decisions, *(name for name, _ in places)}, tensors)
    _check_names({op for _, op in places}, ops)
    actions = schedule(trace, {tensors[name]: way for name, way in plan.decisions.items()})
    moves = Moves(
        awaited={tensors[name]: ops[op] for name, op in plan.awaited.items()},
        fetched={tensors[name]: ops[op] for name, op in plan.fetched.items()},
    )
    actions = moved(actions, moves)
    if not plan.detours:
        return actions
    known = {*(name_of(trace, action) for action in actions), *tensors}
    _check_names({name for detour in plan.detours for name in detour}, known)
    detours = [Detour(tensors[name], leaves, returns) for name, leaves, returns in plan.detours]
    return with_detours(trace, actions, detours)


def _indices(trace: Trace) -> tuple[dict[str, int], dict[str, int]]:
    tensors = {tensor.name: index for index, tensor in enumerate(trace.tensors)}
    return tensors, {op.name: index for index, op in enumerate(trace.ops)}


def _check_names(wanted: Collection[str], known: Collection[str]) -> None:
    missing = sorted(set(wanted) - set(known))
    if missing:
        raise ValueError(
            f"The plan names {missing[0]} and {len(missing) - 1} more tensors and ops that this "
            f"step does not have{OF_ANOTHER}"
        )
