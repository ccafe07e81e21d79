"""Plans the stages of a network: their balance, a step of every schedule, and memory, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfunet.config.amount import MIB
from tfunet.config.placement_keys import SCHEDULES
from tfunet.pipeline.balance import Balance, Bottleneck, balance, balances, bottleneck, folded
from tfunet.pipeline.chain import Chain, Stage
from tfunet.pipeline.drawing import LEGEND, drawn
from tfunet.pipeline.schedules import check_schedule
from tfunet.pipeline.simulation import (
    Link,
    Simulation,
    Work,
    recomputed_shares,
    scheduled,
    work_of,
)
from tfunet.process.terminal import columns, counted


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
    recomputed = None
    if recompute:
        if schedule == "v":
            raise ValueError("recompute is not built for v. Choose gpipe or 1f1b.")
        recomputed = recomputed_shares(schedule, num_stages, micro_batches)
    plans = [
        _planned(chain, found, schedule, micro_batches, link, recomputed)
        for found in balances(
            chain,
            num_stages,
            schedule=schedule,
            micro_batches=micro_batches,
            memory_bytes=memory_bytes,
            recomputed=recomputed,
        )
    ]
    return min(plans, key=lambda plan: plan.step.step_seconds)


def _planned(
    chain: Chain,
    found: Balance,
    schedule: str,
    micro_batches: int,
    link: Link,
    recomputed: Sequence[float] | None,
) -> StagePlan:
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


def stages_text(
    chain: Chain,
    plan: StagePlan,
    *,
    title: str,
    costs_from: str,
    memory_bytes: int | None = None,
) -> str:
    """Return a plan in words, with the other schedules and a drawing of the step."""
    num_devices, micro_batches = plan.work.num_devices, _micro_batches(plan)
    lines = [
        f"{title} in {counted(num_devices, 'stage')}, micro_batches {micro_batches}, schedule "
        f"{plan.schedule}{', recomputed' if plan.is_recomputed else ''}",
        costs_from,
        "",
        *columns(_stage_rows(chain, plan)),
        "",
        *_balance_lines(chain, plan),
        *_step_lines(chain, plan),
        *_memory_lines(plan, memory_bytes),
        "",
        *columns(_schedule_rows(chain, plan, memory_bytes)),
        "",
        *drawn(plan.step),
        LEGEND,
    ]
    return "\n".join(lines)


def _micro_batches(plan: StagePlan) -> int:
    return 1 + max(event.action.micro_batch for event in plan.step.events)


def _stage_rows(chain: Chain, plan: StagePlan) -> list[Sequence[str]]:
    mean = chain.seconds / plan.work.num_devices
    names = chain.layers
    rows: list[Sequence[str]] = [
        (
            *("device", "layers", "time (ms)", "of the mean", "parameters"),
            *("keeps (MiB)", "sends (MiB)", "memory (MiB)"),
        )
    ]
    for at, (chunk, device) in enumerate(zip(plan.chunks, plan.balance.devices, strict=True)):
        sends = [
            f"{plan.work.devices[reader] + 1}: {num_bytes / MIB:,.1f}"
            for reader, num_bytes in plan.work.readers[at]
            if plan.work.devices[reader] != device
        ]
        rows.append(
            (
                str(device + 1),
                f"{names[chunk.begin].name} to {names[chunk.end - 1].name}",
                f"{1e3 * chunk.seconds:.2f}",
                f"{chunk.seconds / mean:.2f}" if mean else "",
                f"{chunk.num_parameters:,}",
                f"{plan.work.kept_bytes[at] / MIB:,.1f}",
                ", ".join(sends) or "-",
                f"{plan.memory_bytes[device] / MIB:,.0f}",
            )
        )
    return rows


def _balance_lines(chain: Chain, plan: StagePlan) -> list[str]:
    num_devices = plan.work.num_devices
    why = "no allowed cut of these layers in this order does better"
    if plan.schedule == "v" and folded(balance(chain, 2 * num_devices)).cuts == plan.balance.cuts:
        why = "chunks are as alike as can be, for a faster step than with devices that are"
    lines = [
        f"balance   the slowest device takes {plan.balance.imbalance:.3f} times the mean; {why}"
    ]
    slow = bottleneck(chain, num_devices)
    if slow is not None:
        lines.append(f"          {_bottleneck_text(slow, num_devices)}")
    return lines


def _bottleneck_text(slow: Bottleneck, num_devices: int) -> str:
    return (
        f"layer {slow.layer} takes {slow.share:.0%} of all time, more than one device's share; "
        f"with its stage split in space over {slow.width} devices, and the others on one each, "
        f"the slowest of {num_devices} would take {slow.split_imbalance:.3f} times the mean, "
        "before the exchange of halos"
    )


def _step_lines(chain: Chain, plan: StagePlan) -> list[str]:
    micro_batches, num_devices = _micro_batches(plan), plan.work.num_devices
    one_device = micro_batches * chain.seconds
    chunks_a_device = len(plan.chunks) // num_devices
    equal = (num_devices - 1) / (chunks_a_device * micro_batches + num_devices - 1)
    step = plan.step
    faster = one_device / step.step_seconds if step.step_seconds else 1.0
    return [
        f"step      {1e3 * step.step_seconds:.1f} ms, {faster:.2f} times as fast as one device "
        f"({faster / num_devices:.2f} a device)",
        f"bubble    devices wait {step.bubble:.1%} of the time; {equal:.1%} with equal stages and "
        "no transfer",
        f"traffic   {sum(step.sent_bytes) / MIB:,.1f} MiB a step in both directions; most by one "
        f"device: {max(step.sent_bytes) / MIB:,.1f} MiB",
    ]


def _memory_lines(plan: StagePlan, memory_bytes: int | None) -> list[str]:
    peak = max(plan.memory_bytes)
    lines = [
        f"memory    {peak / MIB:,.0f} MiB at most, with Adam; up to "
        f"{max(plan.step.peak_micro_batches)} passes kept on a device"
    ]
    if memory_bytes is not None and peak > memory_bytes:
        lines.append(
            f"          that is more than the {memory_bytes / MIB:,.0f} MiB given: tensors that "
            "were sent ahead wait there, too"
        )
    return lines


def _schedule_rows(chain: Chain, plan: StagePlan, memory_bytes: int | None) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("schedule", "step (ms)", "bubble", "memory (MiB)", "max/mean")]
    for schedule in SCHEDULES:
        try:
            other = plan_stages(
                chain,
                plan.work.num_devices,
                schedule=schedule,
                micro_batches=_micro_batches(plan),
                link=plan.work.link,
                memory_bytes=memory_bytes,
                recompute=plan.is_recomputed,
            )
        except ValueError as error:
            rows.append((schedule, str(error).partition(".")[0], "", "", ""))
            continue
        rows.append(
            (
                schedule,
                f"{1e3 * other.step.step_seconds:.1f}",
                f"{other.step.bubble:.1%}",
                f"{max(other.memory_bytes) / MIB:,.0f}",
                f"{other.balance.imbalance:.3f}",
            )
        )
    return rows
