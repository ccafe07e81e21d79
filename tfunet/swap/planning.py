"""Plans a traced step: times its ops, asks the strategy for what fits, and follows the plan."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfunet.graph.step import Trace
from tfunet.machine.device import device_bytes
from tfunet.process.start_up import uncollected
from tfunet.swap.arena.arena import Memory
from tfunet.swap.arena.device_memory import free_pieces, more_bytes
from tfunet.swap.measure import profile
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import memory as memory_of
from tfunet.swap.plan.schedule import schedule
from tfunet.swap.report import text
from tfunet.swap.rewrite import rewrite
from tfunet.swap.search.applied import as_planned, cut_as_planned, scheduled
from tfunet.swap.search.fitting import fitted
from tfunet.swap.search.strategy import Problem, Strategy
from tfunet.swap.storage.room import Room

# A step that needs less than this share of the budget fits with any scratch, and in any order.
FAR = 1 / 4


def make_plan(
    trace: Trace,
    ops: Sequence[tf.Operation],
    room: Room,
    memory: Memory,
    timed: dict[Any, Any],
    *,
    strategy: Strategy,
    threshold_bytes: int,
    margin: float | None,
    say: Callable[[str], None],
) -> Plan:
    """Return a plan for a traced step within the memory of a device, which is as before the step.

    `timed` is what is known of the steps of a model (`tfunet.swap.measure.profile`), and grows. The
    arguments from `strategy` on are described at `tfunet.swap.LargeModelSupport`; `say` is told
    before a planning that may take long.
    """
    tiers = room.left(ops[0].graph, ops[0].device)
    costs = Costs(
        op_seconds=[0.0] * len(ops),
        out_bytes_per_second=1.0,
        in_bytes_per_second=1.0,
        tiers=tiers,
    )
    scratch: dict[int, int] = {}
    memory = replace(memory, more_bytes=memory.more_bytes + trace.constant_bytes)
    # Training has timed most ops of an evaluation already.
    known = timed if trace.is_forward else {}
    needed_bytes = int(memory_of(trace, schedule(trace, {})).max(initial=0))
    is_near = needed_bytes > FAR * memory.step_bytes
    if is_near:
        say(text.planning_line(trace, memory.limit_bytes))
        with tf.init_scope():
            costs, scratch = profile.measure(trace, ops, room.host, known)
        costs = replace(costs, tiers=room.timed(tiers))
    memory = _as_found(memory, trace, has_margin=margin is not None, is_near=is_near)

    problem = Problem(
        trace=trace, costs=costs, budget_bytes=0, threshold_bytes=threshold_bytes, scratch=scratch
    )

    def best(problem: Problem, most_bytes: int | None = None) -> Plan:
        if margin is None:
            with uncollected():  # A search makes millions of small objects, and no cycles.
                return fitted(problem, memory, strategy, most_bytes)
        left_bytes = memory.limit_bytes * (1 - margin) - sum(memory.resident)
        budget_bytes = max(0, int(left_bytes) - trace.constant_bytes)
        return strategy.advised(replace(problem, budget_bytes=budget_bytes))

    plan = best(problem)
    if plan.split and is_near:
        with tf.init_scope():
            cut = cut_as_planned(as_planned(trace, plan), plan)
            costs = profile.with_slabs(cut, ops, room.host, costs, known)
        plan = best(replace(problem, costs=costs), plan.budget_bytes)
    timed |= known
    return plan


def follow(
    plan: Plan,
    trace: Trace,
    ops: Sequence[tf.Operation],
    handles: Sequence[tf.Tensor],
    room: Room,
    threshold_bytes: int,
) -> None:
    """Make the graph of a step, as `as_planned` returns it, run as a plan says."""
    cut = cut_as_planned(trace, plan)
    rewrite.follow(
        cut,
        ops,
        handles,
        plan,
        scheduled(cut.trace, plan),
        tier=room.tier(plan, trace, ops[0].graph, ops[0].device),
        threshold_bytes=threshold_bytes,
    )


def _as_found(memory: Memory, trace: Trace, *, has_margin: bool, is_near: bool) -> Memory:
    """Return the memory as a step finds it after its ops were timed."""
    # Meanwhile a pipeline of data has filled what it keeps ready.
    now_bytes = more_bytes(memory.resident, memory.limit_bytes) + trace.constant_bytes
    memory = replace(memory, more_bytes=max(memory.more_bytes, now_bytes))
    # Not for a forward pass alone: it takes no detours, and data may be read for it meanwhile.
    looks = is_near and not has_margin and not trace.is_forward
    if looks and memory.limit_bytes == device_bytes() and (pieces := free_pieces()):
        *small, largest = pieces
        # What is known to come: constants, and the batch if the step itself fetches it.
        coming_bytes = trace.constant_bytes + memory.more_bytes - now_bytes
        memory = replace(memory, pieces=(*small, max(0, largest - coming_bytes)))
    return memory
