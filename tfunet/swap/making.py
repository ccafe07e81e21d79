"""Makes the plan of a traced step: times its ops, then searches for what fits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfunet.graph.step import Trace
from tfunet.machine.device import device_bytes
from tfunet.swap.arena.device_memory import more_bytes
from tfunet.swap.arena.memory import Memory
from tfunet.swap.arena.pieces import free_pieces
from tfunet.swap.measure import profile
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.placement import Tiers, with_advice
from tfunet.swap.plan.plan import Plan, Way
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.swap.search import planner, tflms
from tfunet.swap.search.applied import as_planned, cut
from tfunet.swap.search.fitting import fitted
from tfunet.swap.storage.room import Room

# A step whose tensors fill no such part of the budget fits with any scratch, and in any order.
FAR = 1 / 4


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user wants of a plan; see `tfunet.swap.LargeModelSupport`."""

    threshold_bytes: int
    allowed: Sequence[Way]
    margin: float | None
    rule: tflms.Rule | None


def make_plan(
    step: Trace,
    ops: Sequence[tf.Operation],
    room: Room,
    device: Memory,
    wanted: Wanted,
    timed: dict[Any, Any],
) -> Plan:
    """Return a plan for a step within the memory of a device.

    Args:
        step: As `tfunet.graph.reader.read` returns it.
        ops: Of its graph, in the same order.
        room: For what is given up.
        device: Before the step.
        wanted: Of the plan.
        timed: See `tfunet.swap.measure.profile`: what is known of the steps of a model. It grows.
    """
    tiers = room.left(ops[0].graph, ops[0].device)
    costs = Costs(
        op_seconds=[0.0] * len(ops),
        out_bytes_per_second=1.0,
        in_bytes_per_second=1.0,
        tiers=tiers,
    )
    scratch: dict[int, int] = {}
    device = replace(device, more_bytes=device.more_bytes + step.constant_bytes)
    # TFLMS's rule is about the backward pass; of its ways the planner has swapping.
    rule = None if step.is_forward else wanted.rule
    allowed = ("swap",) if wanted.rule and step.is_forward else wanted.allowed
    # What takes how long is known of most ops when an evaluation begins.
    known = timed if step.is_forward else {}
    is_near = bool(rule) or _needs(step) > FAR * device.step_bytes
    if is_near:
        with tf.init_scope():
            costs, scratch = profile.measure(step, ops, room.host, known)
        costs = replace(costs, tiers=room.timed(tiers))

    def planned(tiers: Tiers, step_bytes: int) -> Plan:
        if rule is not None:
            return tflms.make_plan(
                step,
                rule,
                budget_bytes=step_bytes,
                costs=replace(costs, tiers=tiers),
                threshold_bytes=wanted.threshold_bytes,
                scratch=scratch,
            )
        return planner.make_plan(
            step,
            budget_bytes=step_bytes,
            costs=replace(costs, tiers=tiers),
            threshold_bytes=wanted.threshold_bytes,
            scratch=scratch,
            allowed=allowed,
        )

    # Meanwhile a pipeline of data has filled what it keeps ready.
    now_bytes = more_bytes(device.resident, device.limit_bytes) + step.constant_bytes
    device = replace(device, more_bytes=max(device.more_bytes, now_bytes))
    # Not of a forward pass alone, which takes no detours: meanwhile data may be read for it.
    looks = wanted.margin is None and not step.is_forward and is_near
    if looks and device.limit_bytes == device_bytes() and (pieces := free_pieces()):
        *small, largest = pieces
        # What is known to come: constants, and the batch where the step itself fetches it.
        coming = step.constant_bytes + device.more_bytes - now_bytes
        device = replace(device, pieces=(*small, max(0, largest - coming)))

    def best(most_bytes: int | None = None) -> Plan:
        def make(step_bytes: int) -> Plan:
            return with_advice(lambda tiers: planned(tiers, step_bytes), costs.tiers)

        if wanted.margin is not None:
            left = device.limit_bytes * (1 - wanted.margin) - sum(device.resident)
            return make(max(0, int(left) - step.constant_bytes))
        return fitted(step, device, make, scratch, costs, most_bytes=most_bytes)

    plan = best()
    if plan.split:
        with tf.init_scope():
            found = as_planned(step, plan)
            costs = profile.with_slabs(found, cut(found, plan), ops, room.host, costs, known)
        plan = best(plan.budget_bytes)
    timed |= known
    return plan


def _needs(step: Trace) -> int:
    return int(memory(step, schedule(step, {})).max(initial=0))
