r"""What a step takes in a layout: its time by parts, and the memory of a device. Pure.

    step = computation + halo + average + transfer + bubble + imbalance + copies + input
             |            \____ nothing else runs meanwhile ____/           |       |
             all devices alike                     what computation does not hide   what a device
                                                                            waits for its samples

Where cores compute, they prepare samples, too, and `input` is all the time that this takes.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, final

from tfunet.backend import facts_of
from tfunet.config.amount import MIB
from tfunet.geometry.grid import Grid, grid
from tfunet.performance.stages import plan_stages, planned
from tfunet.pipeline.balance import Balance, NoBalanceError
from tfunet.pipeline.chain import Chain, Stage
from tfunet.pipeline.schedules import most_live
from tfunet.pipeline.simulation import Link, recomputed_shares, scheduled
from tfunet.plan.facts import RunFacts, exchanges, part_share, pass_bytes
from tfunet.plan.layout import Layout
from tfunet.plan.machine import Machine, hosts_of, speedup
from tfunet.plan.prediction import ON_CPU, ON_GPU, Parts, Prediction, how_sure
from tfunet.swap.plan.leaving import chosen

# What a part holds beside its share: margins, and tensors joined with them.
PART_COPIES = 1.1
# Horovod packs gradients in a buffer of this size, which it has from its first step on; others pack
# them in one as large as all gradients.
FUSION_BYTES = 128 * 2**20
# What convolutions of a CPU work in, and tensors of ops side by side, as a share of a step.
WORK_SPACE = 0.1
# Where layers are cut does not depend on the number of micro-batches, if it is large.
MANY = 2
# The share of a computation under which copies to and from the host can hide.
HIDING = 0.8
# Large-model support fills so much of a device, and moves at most so much of what a pass holds.
SWAP_SHARE, MOST_AWAY = 0.85, 0.9
# How sure it is that such a run fits where 4 of 4 did not: docs/layouts.md.
TIGHT = 0.2
# Up to this share of it, forward passes may be run again instead, which are a part of the step.
MOST_AGAIN, FORWARD_SHARE = 0.6, 1 / 3


# Weights of so many layers, as large as the largest, are on the device at once where all others are
# off it: one that is read, and what its convolution makes of it.
LAYERS_HERE = 2
# What the memory of a host moves in a second: two channels of DDR4.
HOST_BYTES_PER_SECOND = 2e10


class _Pipeline(NamedTuple):
    """A step of one replica in stages.

    Args:
        busy: Seconds of each device.
        free_seconds: Seconds of the step if messages took no time.
    """

    chunks: Sequence[Stage]
    busy: Sequence[float]
    free_seconds: float
    seconds: float
    num_bytes: int


class _Costs(NamedTuple):
    parts: Parts
    num_bytes: int


@final
@dataclass(frozen=True)
class Predictor:
    """Predicts the layouts of one run on one machine; what several of them share is kept.

    Args:
        quick: Whether steps of stages are estimated, not played through.
        cuts: What is known of the best cuts, which hang on the run only.
    """

    facts: RunFacts
    machine: Machine
    quick: bool = False
    cuts: dict[object, Balance] = field(default_factory=dict)

    @cached_property
    def _known(self) -> dict[object, _Pipeline]:
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
        limit = self.machine.device_bytes(layout.backend, layout.num_devices)
        parts, num_bytes = cost
        if self.machine.is_cpu:
            num_bytes += int(WORK_SPACE * num_bytes)
        if layout.backend == "horovod" and layout.num_devices > 1:
            num_bytes += FUSION_BYTES
        cost = cost._replace(num_bytes=num_bytes)
        if layout.swap is not None:
            parts, num_bytes = self._swapped(layout, cost, limit)
        parts = replace(parts, input=self._input(layout, parts))
        seconds = parts.seconds
        epoch = self.facts.steps_per_epoch * seconds * layout.num_devices / 3600
        sure = how_sure(num_bytes, limit, ON_CPU if self.machine.is_cpu else ON_GPU)
        return Prediction(
            layout=layout,
            parts=parts,
            num_bytes=num_bytes,
            limit_bytes=limit,
            sure=min(sure, TIGHT) if self._is_tight(layout) else sure,
            samples_per_second=self.facts.global_samples / seconds if seconds else math.inf,
            device_hours=epoch,
        )

    def _is_tight(self, layout: Layout) -> bool:
        """Whether large-model support may find less room than its plan has: on CPUs, between passes
        of a step, and where parts of a sample share one allocator."""
        is_shared = layout.parts > 1 and self.machine.shares_pool(
            layout.backend, layout.num_devices
        )
        return (
            self.machine.is_cpu
            and layout.swap is not None
            and (layout.accumulation > 1 or is_shared)
        )

    def _chain(self, layout: Layout, samples: float) -> tuple[Chain, float]:
        """Return the costs of so many samples, and by what the seconds of a device differ."""
        count = layout.num_devices
        cores = self.machine.device_cores(layout.backend, count)
        known = self.facts.cores_known(cores)
        times = 1.0
        if cores and not known:
            times = 1 / speedup(cores)
        elif cores:
            times = speedup(known) / speedup(cores)
        is_shared = self.machine.shares_pool(layout.backend, count)
        # Measured costs are those of busy cores.
        if is_shared or self.facts.costs_from != "measured":
            times *= self.machine.slowdown(layout.backend, count)
        else:
            times *= self.machine.crowd(count)
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
        for layer, num_bytes, count in exchanges(self.facts, layout.split):
            seconds[layer] += count * self.machine.exchange_seconds(
                samples * num_bytes, layout.parts, layout.backend
            )
        return seconds

    def _average(self, layout: Layout, num_bytes: int) -> float:
        holders = layout.num_replicas * layout.parts
        # Devices that hold the same weights may lie on all hosts.
        spread = layout.num_devices if holders > 1 else 1
        if spread <= self.machine.devices:
            spread = holders
        seconds = self.machine.average_seconds(num_bytes, max(spread, holders), layout.backend)
        return seconds if holders > 1 else 0.0

    def _whole(self, layout: Layout) -> _Costs:
        """Return what a step takes where each device has the whole network."""
        facts = self.facts
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
        update = facts.update.seconds * self._update_times(layout) / self._sharing(layout)
        halo = passes * sum(self._halo(layout, samples)) if layout.parts > 1 else 0.0
        parts = Parts(
            computation=computation + update + passes * gathered * times,
            halo=halo,
            average=self._average(layout, facts.gradient_bytes) * self._exchanged(),
            imbalance=computation * (share / mean - 1),
        )
        sums = layout.accumulation > 1 or bool(layout.tiling)
        held = self._pass_bytes(samples * share, layout, kept_gradients=sums)
        if layout.parts > 1:
            held = int(held * PART_COPIES)
        is_packed = layout.num_devices > 1 and layout.backend != "horovod"
        packed = facts.gradient_bytes if is_packed else 0
        fed = int(facts.sample_bytes * samples * passes * (share if layout.parts > 1 else 1))
        at_average = facts.gradient_bytes * (2 if sums else 1) + packed
        variables = facts.variable_bytes - self._bytes_of_others(layout, facts.gradient_bytes)
        return _Costs(parts, variables + fed + max(held, at_average))

    def _sharing(self, layout: Layout) -> int:
        """Return how many devices share out the states of the same weights."""
        return layout.num_devices // layout.stages if self.facts.update.zero else 1

    def _bytes_of_others(self, layout: Layout, gradient_bytes: int) -> int:
        """Return the bytes of the states that other devices keep of a device's weights."""
        return int(self.facts.update.slots * gradient_bytes * (1 - 1 / self._sharing(layout)))

    def _exchanged(self) -> float:
        """Return what devices exchange for each gradient, as a multiple of an average."""
        # An average is a sum at an owner that is given back. Then weights are given back, too.
        return 1.5 if self.facts.update.zero == 1 else 1.0

    def _update_times(self, layout: Layout) -> float:
        cores = self.machine.device_cores(layout.backend, layout.num_devices)
        return self.machine.slowdown(layout.backend, layout.num_devices) / (
            speedup(cores) if cores else 1.0
        )

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
        mean_busy, most_busy = sum(found.busy) / len(found.busy), max(found.busy)
        free = found.free_seconds
        count = layout.num_devices
        if machine.shares_pool(layout.backend, count) or machine.crowd(count) > 1:
            # While one stage waits, the others have its threads or cores.
            free = most_busy = mean_busy
        weights = [chunk.weight_bytes for chunk in found.chunks]
        stage_share = max(weights) / max(1, sum(weights))
        halo = 0.0
        if layout.parts > 1:
            by_layer = self._halo(layout, samples)
            halo = in_flight * max(sum(by_layer[chunk.begin : chunk.end]) for chunk in found.chunks)
        update = facts.update.seconds * stage_share * self._update_times(layout)
        update /= self._sharing(layout)
        gradients = int(facts.gradient_bytes * stage_share)
        parts = Parts(
            computation=rounds * mean_busy + update,
            halo=rounds * halo,
            average=self._average(layout, gradients) * self._exchanged(),
            transfer=rounds * max(0.0, found.seconds - found.free_seconds),
            bubble=rounds * max(0.0, free - most_busy),
            imbalance=rounds * (most_busy * share / mean - mean_busy),
        )
        fed = int(facts.sample_bytes * samples * in_flight * (share if layout.parts > 1 else 1))
        held = found.num_bytes
        if layout.parts > 1:
            held = int(held * share / mean * PART_COPIES)
        more = gradients if layout.tiling else 0
        return _Costs(parts, held - self._bytes_of_others(layout, gradients) + fed + more)

    def _pipeline(self, layout: Layout, chain: Chain, times: float) -> _Pipeline:
        """Return a step of the best cut; within the memory of a device, if the fastest is not."""
        machine = self.machine
        limit = machine.device_bytes(layout.backend, layout.num_devices)
        near = 2 if hosts_of(machine, layout.num_devices) == 1 else layout.num_devices
        begin, end = (
            machine.exchange_seconds(num_bytes, near, layout.backend) / times
            for num_bytes in (0, MIB)
        )
        link = Link(bytes_per_second=MIB / max(end - begin, 1e-12), seconds=begin)
        key = (
            *(id(chain), layout.stages, layout.schedule, layout.micro_batches, layout.recompute),
            *(link, limit, self.quick),
        )
        if key not in self._known:
            self._known[key] = self._played(layout, chain, link, limit)
        chunks, busy, free, seconds, num_bytes = self._known[key]
        return _Pipeline(
            chunks, [one * times for one in busy], free * times, seconds * times, num_bytes
        )

    def _played(self, layout: Layout, chain: Chain, link: Link, limit: int) -> _Pipeline:
        found = self._best_cut(layout)
        if self.quick:
            return _estimated(layout, chain, found, link)
        if _estimated(layout, chain, found, link).num_bytes > limit:
            # If none fits, the fastest stands in the table, with what it needs.
            with contextlib.suppress(NoBalanceError):
                found = plan_stages(
                    chain,
                    layout.stages,
                    schedule=layout.schedule,
                    micro_batches=layout.micro_batches,
                    link=link,
                    memory_bytes=limit,
                    recompute=layout.recompute,
                ).balance
        plan = planned(
            chain,
            found,
            schedule=layout.schedule,
            micro_batches=layout.micro_batches,
            link=link,
            recompute=layout.recompute,
        )
        free = scheduled(layout.schedule, replace(plan.work, link=Link()), layout.micro_batches)
        return _Pipeline(
            plan.chunks,
            plan.step.busy_seconds,
            free.step_seconds,
            plan.step.step_seconds,
            max(plan.memory_bytes),
        )

    def _best_cut(self, layout: Layout) -> Balance:
        """Return the fastest cut of the network, whose layers' shares of the time are about the
        same for any number of samples."""
        cores = self.machine.device_cores(layout.backend, layout.num_devices)
        known = self.facts.cores_known(cores)
        is_folded = layout.schedule == "v"
        key = (known, layout.stages, is_folded, layout.recompute)
        if key not in self.cuts:
            chain = self.facts.costs[known][0][1]
            count = MANY * layout.stages
            self.cuts[key] = plan_stages(
                chain,
                layout.stages,
                schedule=layout.schedule if is_folded else "1f1b",
                micro_batches=count,
                link=Link(),
                recompute=layout.recompute,
            ).balance
        return self.cuts[key]

    def _input(self, layout: Layout, parts: Parts) -> float:
        """Return the seconds that a device prepares samples, or waits for them."""
        facts, machine = self.facts, self.machine
        samples = facts.global_samples / layout.num_replicas
        work = samples * facts.sample_seconds
        work *= min(layout.num_devices, machine.devices) / machine.cores
        return work if machine.is_cpu else max(0.0, work - parts.seconds)

    def _swapped(self, layout: Layout, cost: _Costs, limit: int) -> tuple[Parts, int]:
        """Return time and memory with large-model support, roughly: what is too much leaves in the
        forward pass and comes back in the backward pass, or is computed again."""
        usable = int(limit * SWAP_SHARE)
        cost, resident = self._without_states(layout, cost, usable)
        over = cost.num_bytes - usable
        if over <= 0:
            return cost
        _, passes = self._unit(layout)
        held = cost.num_bytes - resident
        if over > MOST_AWAY * held:
            return cost
        hidden = 0.0 if self.machine.is_cpu else HIDING * cost.parts.computation / 2
        seconds = self.machine.copies_seconds(
            passes * over, layout.num_devices, cost.parts.seconds, hidden
        )
        if over <= MOST_AGAIN * held:
            seconds = min(seconds, cost.parts.computation * FORWARD_SHARE * over / held)
        return replace(cost.parts, copies=cost.parts.copies + seconds), usable

    def _without_states(self, layout: Layout, cost: _Costs, budget: int) -> tuple[_Costs, int]:
        """Return the cost without what `swap_weights` takes off the device, and the bytes of
        weights and states that stay. The host's update takes as long as two copies of all rows."""
        facts = self.facts
        resident = facts.variable_bytes - self._bytes_of_others(layout, facts.gradient_bytes)
        large = sum(facts.large_weights)
        trained, largest = facts.gradient_bytes, max(facts.large_weights, default=0)
        in_one = facts_of(layout.backend).one_process and layout.num_devices > 1
        leaving = chosen(
            weight_bytes=facts.variable_bytes - facts.update.slots * trained,
            trained_bytes=trained,
            together_bytes=largest,
            slots=facts.update.slots,
            budget_bytes=budget,
        )
        is_one = layout.stages == 1 and not in_one and not facts.update.zero
        if cost.num_bytes <= budget or not is_one or not large or leaving == "none":
            return cost, resident
        off, copies = facts.update.slots * large, large
        if leaving == "weights":
            off, copies = off + large - LAYERS_HERE * largest, 2 * large
        # An average of several devices has all gradients at once.
        off += 0 if layout.num_devices > 1 else large - largest
        off = max(0, min(off, cost.num_bytes))
        seconds = self.machine.copies_seconds(copies, layout.num_devices, cost.parts.seconds, 0.0)
        rows = 2 * (2 + facts.update.slots) * large
        seconds += rows * layout.num_devices / HOST_BYTES_PER_SECOND
        parts = replace(cost.parts, copies=cost.parts.copies + seconds)
        return _Costs(parts, cost.num_bytes - off), max(0, facts.variable_bytes - off)


def _estimated(layout: Layout, chain: Chain, found: Balance, link: Link) -> _Pipeline:
    """Return about what a step in stages takes: the slowest device works all the time, but for one
    micro-batch of the others at its ends."""
    chunks, count = chain.stages(found.cuts), layout.micro_batches
    again = [0.0] * layout.stages
    if layout.recompute:
        again = recomputed_shares(layout.schedule, layout.stages, count)
    live = most_live("1f1b" if layout.schedule == "v" else layout.schedule, layout.stages, count)
    busy, num_bytes = [0.0] * layout.stages, [0] * layout.stages
    for chunk, device in zip(chunks, found.devices, strict=True):
        busy[device] += chunk.seconds + again[device] * chunk.forward_seconds
        num_bytes[device] += chunk.memory_bytes(live[device], recompute=layout.recompute)
    ends = (sum(busy) - max(busy)) / (2 if layout.schedule == "v" else 1)
    free = count * max(busy) + ends
    sent = sum(sum(chunk.receives.values()) for chunk in chunks)
    messages = 2 * (len(chunks) - 1) * link.seconds + 2 * sent / link.bytes_per_second
    return _Pipeline(chunks, [one * count for one in busy], free, free + messages, max(num_bytes))
