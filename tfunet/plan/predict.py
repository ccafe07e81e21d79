"""What a step takes in a layout: its time by parts, and the memory of a device. Pure.

    step = computation + halo + average + transfer + bubble + imbalance + copies + input
             |            \____ nothing else runs meanwhile ____/           |       |
             all devices alike                     what computation does not hide   what a device
                                                                            waits for its samples

Where cores compute, they prepare samples, too, and `input` is all the time that this takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple, final

from tfunet.geometry.grid import Grid, grid
from tfunet.performance.stages import StagePlan, plan_stages
from tfunet.pipeline.balance import NoBalanceError
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.simulation import Link, scheduled
from tfunet.plan.facts import Border, RunFacts, part_share, pass_bytes
from tfunet.plan.layout import Layout
from tfunet.plan.machine import Machine, hosts_of, speedup

# What a part holds beside its share: margins, and tensors joined with them.
PART_COPIES = 1.1
# Horovod packs gradients in a buffer of this size, others in one as large as all gradients.
FUSION_BYTES = 128 * 2**20
# The share of a computation under which copies to and from the host can hide.
HIDING = 0.8
LEAST_SURE = 0.95


class Doubt(NamedTuple):
    """How predicted memory errs: what is needed over what is predicted, its median and spread as
    logarithms, and bytes that no prediction knows of."""

    median: float
    spread: float
    more_bytes: int = 0


# Kernels of a GPU take scratch that only a run shows.
ON_GPU = Doubt(0.06, 0.06)
# The allocator of a CPU leaves gaps.
ON_CPU = Doubt(0.04, 0.04)


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """The seconds of a step by what they go to."""

    input: float = 0.0
    computation: float = 0.0
    halo: float = 0.0
    average: float = 0.0
    transfer: float = 0.0
    bubble: float = 0.0
    imbalance: float = 0.0
    copies: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(vars(self).values())

    @property
    def largest(self) -> str:
        """The part that takes most."""
        return max(vars(self), key=lambda name: getattr(self, name))


PARTS = tuple(key.name for key in fields(Parts))


@final
@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step takes in a layout.

    Args:
        num_bytes: Memory of the device that needs most.
        limit_bytes: What it has.
        sure: How likely the step fits in that, from 0 to 1.
        device_hours: Hours of an epoch's training steps, of all devices together.
    """

    layout: Layout
    parts: Parts
    num_bytes: int
    limit_bytes: int
    sure: float
    samples_per_second: float
    device_hours: float

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.parts.seconds

    @property
    def fits(self) -> bool:
        """Whether at least 95 of 100 such runs fit."""
        return self.sure >= LEAST_SURE


class _Stages(NamedTuple):
    """A pipeline without what several replicas and parts add."""

    plan: StagePlan
    free_seconds: float


class _Costs(NamedTuple):
    parts: Parts
    num_bytes: int


@final
@dataclass(frozen=True)
class Predictor:
    """Predicts the layouts of one run on one machine; what several of them share is kept."""

    facts: RunFacts
    machine: Machine
    corrections: dict[str, float] = field(default_factory=dict)

    @cached_property
    def _known(self) -> dict[object, _Stages]:
        return {}

    @cached_property
    def _bytes(self) -> dict[object, int]:
        return {}

    @cached_property
    def _grids(self) -> dict[tuple[int, ...], Grid]:
        return {}

    def predict(self, layout: Layout) -> Prediction:
        """Return what a step takes; NoBalanceError for stages that no cut makes fit."""
        cost = self._staged(layout) if layout.stages > 1 else self._whole(layout)
        limit = self.machine.device_bytes(layout.num_devices)
        parts, num_bytes = cost
        if layout.swap is not None:
            parts, num_bytes = self._swapped(layout, cost, limit)
        parts = replace(parts, input=self._input(layout, parts))
        seconds = parts.seconds
        epoch = self.facts.steps_per_epoch * seconds * layout.num_devices / 3600
        return Prediction(
            layout=layout,
            parts=parts,
            num_bytes=num_bytes,
            limit_bytes=limit,
            sure=how_sure(num_bytes, limit, ON_CPU if self.machine.is_cpu else ON_GPU),
            samples_per_second=self.facts.global_samples / seconds if seconds else math.inf,
            device_hours=epoch,
        )

    def _chain(self, layout: Layout, samples: float) -> tuple[Chain, float]:
        """Return the costs of so many samples, and by what the seconds of a device differ."""
        count = layout.num_devices
        cores = self.machine.device_cores(count)
        known = self.facts.cores_known(cores)
        times = 1.0
        if cores and not known:
            times = 1 / speedup(cores)
        elif cores:
            times = speedup(known) / speedup(cores)
        if not self.facts.costs_from == "measured":
            times *= self.machine.slowdown(count)
        return self.facts.chain(samples, known), times

    def _pass_bytes(self, samples: float, layout: Layout, *, kept_gradients: bool) -> int:
        chain, _ = self._chain(layout, samples)
        key = (id(chain), kept_gradients)
        if key not in self._bytes:
            self._bytes[key] = pass_bytes(chain, kept_gradients=kept_gradients)
        return self._bytes[key]

    def _grid(self, layout: Layout) -> Grid:
        if layout.tiling not in self._grids:
            facts = self.facts
            self._grids[layout.tiling] = grid(
                facts.patch, layout.tiling, facts.halo, facts.alignment
            )
        return self._grids[layout.tiling]

    def _unit(self, layout: Layout) -> tuple[float, int]:
        """Return the size of a pass in samples, before a sample is split, and their number."""
        facts = self.facts
        if layout.tiling:
            cut = self._grid(layout)
            tiles = facts.global_samples * layout.num_tiles // layout.num_replicas
            return math.prod(cut.largest_window) / math.prod(facts.patch), tiles
        count = layout.accumulation if layout.stages == 1 else layout.micro_batches
        return facts.global_samples / layout.num_replicas / count, count

    def _halo(self, layout: Layout, samples: float) -> list[float]:
        """Return the seconds of exchanges for each layer, both passes of so many samples."""
        seconds = [0.0] * self.facts.num_layers
        cut = [axis for axis, parts in enumerate(layout.split) if parts > 1]
        for number, border in enumerate(self.facts.borders):
            for num_bytes, is_backward in _sent(border, layout.split, cut, is_first=number == 0):
                one = self.machine.exchange_seconds(
                    samples * num_bytes, layout.parts, layout.backend
                )
                seconds[border.layer] += one * (2 if is_backward else 1)
        return seconds

    def _average(self, layout: Layout, num_bytes: int) -> float:
        holders = layout.num_replicas * layout.parts
        # Those that hold the same weights may lie on all hosts.
        spread = layout.num_devices if holders > 1 else 1
        if spread <= self.machine.devices:
            spread = holders
        seconds = self.machine.average_seconds(num_bytes, max(spread, holders), layout.backend)
        return seconds if holders > 1 else 0.0

    def _whole(self, layout: Layout) -> _Costs:
        """Return what a step takes where each device has the whole network."""
        facts, machine = self.facts, self.machine
        samples, passes = self._unit(layout)
        share, mean = 1.0, 1.0
        if layout.parts > 1:
            shape = self._grid(layout).largest_window if layout.tiling else facts.patch
            share, mean = part_share(shape, layout.split), 1 / layout.parts
        chain, times = self._chain(layout, samples * mean)
        computation = passes * chain.seconds * times
        gathered = 0.0
        if layout.parts > 1:
            whole, _ = self._chain(layout, samples)
            gathered = sum(
                whole.layers[border.layer].seconds - chain.layers[border.layer].seconds
                for border in facts.borders
                if border.is_gathered
            )
        update = facts.update.seconds * self._update_times(layout)
        halo = passes * sum(self._halo(layout, samples)) if layout.parts > 1 else 0.0
        parts = Parts(
            computation=computation + update + passes * gathered * times,
            halo=halo,
            average=self._average(layout, facts.gradient_bytes),
            imbalance=computation * (share / mean - 1),
        )
        sums = layout.accumulation > 1 or bool(layout.tiling)
        held = self._pass_bytes(samples * share, layout, kept_gradients=sums)
        if layout.parts > 1:
            held = int(held * PART_COPIES)
        packed = 0
        if layout.num_devices > 1:
            packed = FUSION_BYTES if layout.backend == "horovod" else facts.gradient_bytes
            packed = min(packed, facts.gradient_bytes)
        fed = int(facts.sample_bytes * samples * passes * (share if layout.parts > 1 else 1))
        at_average = facts.gradient_bytes * (2 if sums else 1) + packed
        return _Costs(parts, facts.variable_bytes + fed + max(held, at_average))

    def _update_times(self, layout: Layout) -> float:
        cores = self.machine.device_cores(layout.num_devices)
        return self.machine.slowdown(layout.num_devices) / (speedup(cores) if cores else 1.0)

    def _staged(self, layout: Layout) -> _Costs:
        """Return what a step takes where the network is in stages."""
        facts, machine = self.facts, self.machine
        samples, count = self._unit(layout)
        in_flight = layout.micro_batches
        rounds = max(1, count // in_flight) if layout.tiling else 1
        share, mean = 1.0, 1.0
        if layout.parts > 1:
            shape = self._grid(layout).largest_window if layout.tiling else facts.patch
            share, mean = part_share(shape, layout.split), 1 / layout.parts
        chain, times = self._chain(layout, samples * mean)
        found = self._pipeline(layout, chain, times)
        plan, step = found.plan, found.plan.step
        busy = [seconds * times for seconds in step.busy_seconds]
        average_busy = sum(busy) / len(busy)
        # Waiting for each other, and for messages, which the schedule without messages lacks.
        idle = max(0.0, found.free_seconds - max(busy))
        transfer = max(0.0, step.step_seconds * times - found.free_seconds)
        stage_share = max(chunk.weight_bytes for chunk in plan.chunks) / max(
            1, sum(chunk.weight_bytes for chunk in plan.chunks)
        )
        halo = 0.0
        if layout.parts > 1:
            by_layer = self._halo(layout, samples)
            halo = in_flight * max(
                sum(by_layer[chunk.begin : chunk.end]) for chunk in plan.chunks
            )
        update = facts.update.seconds * stage_share * self._update_times(layout)
        gradients = int(facts.gradient_bytes * stage_share)
        parts = Parts(
            computation=rounds * average_busy + update,
            halo=rounds * halo,
            average=self._average(layout, gradients),
            transfer=rounds * transfer,
            bubble=rounds * idle,
            imbalance=rounds * (max(busy) - average_busy + (share / mean - 1) * max(busy)),
        )
        fed = int(facts.sample_bytes * samples * in_flight * (share if layout.parts > 1 else 1))
        held = max(plan.memory_bytes)
        if layout.parts > 1:
            held = int(held * share / mean * PART_COPIES)
        more = gradients if layout.tiling else 0
        return _Costs(parts, held + fed + more)

    def _pipeline(self, layout: Layout, chain: Chain, times: float) -> _Stages:
        """Return the best cut; within the memory of a device, if the fastest is not."""
        machine = self.machine
        near = hosts_of(machine, layout.num_devices) == 1
        seconds = machine.exchange_seconds(0, layout.num_devices if not near else 2, layout.backend)
        size = 2**20
        more = machine.exchange_seconds(size, layout.num_devices if not near else 2, layout.backend)
        # The chain's clock runs `times` as fast as the device's.
        link = Link(
            bytes_per_second=size / max(more - seconds, 1e-12) * times, seconds=seconds / times
        )
        key = (
            *(id(chain), layout.stages, layout.schedule, layout.micro_batches, layout.recompute),
            *(link, times),
        )
        if key not in self._known:
            self._known[key] = self._cut(layout, chain, link, times)
        return self._known[key]

    def _cut(self, layout: Layout, chain: Chain, link: Link, times: float) -> _Stages:
        limit = self.machine.device_bytes(layout.num_devices)

        def planned(memory_bytes: int | None) -> StagePlan:
            return plan_stages(
                chain,
                layout.stages,
                schedule=layout.schedule,
                micro_batches=layout.micro_batches,
                link=link,
                memory_bytes=memory_bytes,
                recompute=layout.recompute,
            )

        plan = planned(None)
        if max(plan.memory_bytes) > limit:
            try:
                plan = planned(limit)
            except NoBalanceError:
                pass  # It does not fit, and the table says so.
        free = scheduled(layout.schedule, replace(plan.work, link=Link()), layout.micro_batches)
        return _Stages(plan, free.step_seconds * times)

    def _input(self, layout: Layout, parts: Parts) -> float:
        """Return the seconds that a device prepares samples, or waits for them."""
        facts, machine = self.facts, self.machine
        samples = facts.global_samples / layout.num_replicas
        work = samples * facts.sample_seconds
        if machine.is_cpu:
            return work / machine.device_cores(layout.num_devices)
        in_use = min(layout.num_devices, machine.devices)
        return max(0.0, work * in_use / machine.cores - parts.seconds)

    def _swapped(self, layout: Layout, cost: _Costs, limit: int) -> tuple[Parts, int]:
        """Return time and memory with large-model support, roughly: what is too much leaves in the
        forward pass, and comes back in the backward pass."""
        usable = int(limit * 0.9)
        over = cost.num_bytes - usable
        if over <= 0:
            return cost
        _, passes = self._unit(layout)
        held = cost.num_bytes - self.facts.variable_bytes
        if over > 0.9 * held:
            return cost
        moved = passes * over / self.machine.copy_rate()
        hidden = 0.0 if self.machine.is_cpu else HIDING * cost.parts.computation / 2
        seconds = 2 * max(0.0, moved - hidden)
        return replace(cost.parts, copies=seconds), usable


def _sent(
    border: Border, split: Sequence[int], cut: Sequence[int], *, is_first: bool
) -> list[tuple[float, bool]]:
    """Return the bytes of a sample that a device sends in each exchange of a layer, and whether as
    much goes back in the backward pass."""
    parts = math.prod(split)
    if border.is_gathered:
        return [(border.num_bytes, True)]
    if border.has_statistics:
        return [(0.0, True)]
    sent = []
    for axis in cut:
        if not border.rows[axis] or (border.is_shared and len(cut) == 1):
            continue
        share = border.rows[axis] / border.extents[axis]
        sent.append((border.num_bytes * share * split[axis] / parts, not is_first))
    return sent


def how_sure(num_bytes: int, limit_bytes: int, doubt: Doubt) -> float:
    """Return the probability that a step of so many predicted bytes fits in a limit."""
    left = limit_bytes - doubt.more_bytes
    if num_bytes <= 0:
        return 1.0
    if left <= 0:
        return 0.0
    return NormalDist(doubt.median, doubt.spread).cdf(math.log(left / num_bytes))
