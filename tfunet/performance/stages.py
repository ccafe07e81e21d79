"""Plans the stages of a network: their balance, a step of a schedule, and memory. Pure."""

from dataclasses import dataclass

from tfunet.pipeline.balance import Balance, balances
from tfunet.pipeline.chain import Chain, Stage
from tfunet.pipeline.schedules import check_schedule
from tfunet.pipeline.simulation import (
    Link,
    Simulation,
    Work,
    recomputed_shares,
    scheduled,
    work_of,
)


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A network in stages under one schedule.

    Args:
        chunks: What runs in one go: a stage, or half of a device's work under schedule "v".
        memory_bytes: Predicted peak of each device.
    """

    schedule: str
    balance: Balance
    chunks: tuple[Stage, ...]
    work: Work
    step: Simulation
    memory_bytes: tuple[int, ...]
    is_recomputed: bool = False


def plan_stages(
    chain: Chain,
    num_stages: int,
    *,
    schedule: str,
    micro_batches: int,
    link: Link,
    memory_bytes: int | None = None,
    recompute: bool = False,
) -> StagePlan:
    """Return the best cut of a chain for a schedule, and the step that it is predicted to take.

    Raises ValueError if the chain cannot be cut so.
    """
    check_schedule(schedule, micro_batches)
    recomputed = recomputed_shares(schedule, num_stages, micro_batches) if recompute else None
    found = balances(
        chain,
        num_stages,
        schedule=schedule,
        micro_batches=micro_batches,
        memory_bytes=memory_bytes,
        recomputed=recomputed,
    )
    plans = [
        planned(
            chain,
            one,
            schedule=schedule,
            micro_batches=micro_batches,
            link=link,
            recompute=recompute,
        )
        for one in found
    ]
    return min(plans, key=lambda plan: plan.step.step_seconds)


def planned(
    chain: Chain,
    found: Balance,
    *,
    schedule: str,
    micro_batches: int,
    link: Link,
    recompute: bool = False,
) -> StagePlan:
    """Return the step that a cut of a chain is predicted to take."""
    num_stages = max(found.devices) + 1
    recomputed = recomputed_shares(schedule, num_stages, micro_batches) if recompute else None
    chunks = chain.stages(found.cuts)
    work = work_of(chain, found, link, recomputed)
    step = scheduled(schedule, work, micro_batches)
    fixed = [0] * work.num_devices
    for chunk, device, kept in zip(chunks, found.devices, work.kept_bytes, strict=True):
        # What is recomputed is there for one micro-batch at a time.
        fixed[device] += chunk.fixed_bytes + chunk.kept_bytes - kept
    return StagePlan(
        schedule=schedule,
        balance=found,
        chunks=chunks,
        work=work,
        step=step,
        memory_bytes=tuple(map(sum, zip(fixed, step.peak_bytes, strict=True))),
        is_recomputed=recomputed is not None,
    )
