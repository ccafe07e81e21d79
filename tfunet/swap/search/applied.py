"""A plan, which names tensors and ops, applied to a step that was traced. Pure."""

from collections.abc import Collection

from tfunet.graph.step import Trace
from tfunet.swap.arena.detours import Detour, name_of, with_detours
from tfunet.swap.plan import split
from tfunet.swap.plan.activations import reading_outputs
from tfunet.swap.plan.exact import uncompressed
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import Action, schedule
from tfunet.swap.plan.timeline import Moves, moved

OF_ANOTHER = ": it is of another model or batch. Leave plan out to make a new one."


def as_planned(step: Trace, plan: Plan) -> Trace:
    """Return a step in which what a plan compresses is compressed, and nothing else, and in which
    those gradients read outputs that it names; ValueError if it is a plan of another step."""
    _check_names(plan.from_outputs, [one.name for one in step.ops if one.instead >= 0])
    others = [
        index
        for index, one in enumerate(step.tensors)
        if one.compressed_bytes and one.name not in plan.compressed_bytes
    ]
    return reading_outputs(uncompressed(step, others), plan.from_outputs)


def cut(step: Trace, plan: Plan) -> split.Cut:
    """Return a step with what a plan splits; ValueError if it is a plan of another step."""
    tensors = {one.name: index for index, one in enumerate(step.tensors)}
    ops = {one.name: index for index, one in enumerate(step.ops)}
    _check_names({*plan.split}, tensors)
    _check_names({*plan.slab_rows}, ops)
    found = {tensors[one] for one in plan.split}
    if not found <= split.splittable(step):
        raise ValueError(f"The plan splits what cannot be split here{OF_ANOTHER}")
    return split.cut(step, found, heights={ops[one]: rows for one, rows in plan.slab_rows.items()})


def scheduled(step: Trace, plan: Plan) -> list[Action]:
    """Return the actions of a step under a plan; ValueError if it is a plan of another step.

    Args:
        step: From `cut`.
        plan: The plan.
    """
    tensors = {one.name: index for index, one in enumerate(step.tensors)}
    ops = {one.name: index for index, one in enumerate(step.ops)}
    places = [*plan.awaited.items(), *plan.fetched.items()]
    places += [(one, op) for one, others in plan.fetched_again.items() for op in others.values()]
    reads = [(one, op) for one, numbers in plan.copies.items() for op in numbers]
    _check_names({*plan.decisions, *(one for one, _ in places + reads)}, tensors)
    _check_names({*plan.serialized, *(op for _, op in places + reads)}, ops)
    actions = schedule(
        step,
        {tensors[name]: what for name, what in plan.decisions.items()},
        {
            tensors[one]: {ops[op]: number for op, number in numbers.items()}
            for one, numbers in plan.copies.items()
        },
    )
    moves = Moves(
        awaited={tensors[one]: ops[op] for one, op in plan.awaited.items()},
        fetched={tensors[one]: ops[op] for one, op in plan.fetched.items()},
        fetched_again={
            (tensors[one], int(number)): ops[op]
            for one, others in plan.fetched_again.items()
            for number, op in others.items()
        },
    )
    actions = moved(actions, moves)
    if not plan.detours:
        return actions
    known = {*(name_of(step, one) for one in actions), *tensors}
    _check_names({name for one in plan.detours for name in one}, known)
    detours = [Detour(tensors[one], leaves, returns) for one, leaves, returns in plan.detours]
    return with_detours(step, actions, detours)


def _check_names(wanted: Collection[str], known: Collection[str]) -> None:
    missing = sorted(set(wanted) - set(known))
    if missing:
        raise ValueError(
            f"The plan names {missing[0]} and {len(missing) - 1} more tensors and ops that this "
            f"step does not have{OF_ANOTHER}"
        )
