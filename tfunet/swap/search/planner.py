"""The default strategy: keeps, swaps, recomputes or splits, whichever is fastest. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from tfunet.swap.plan import split
from tfunet.swap.plan.activations import from_outputs, reading_outputs
from tfunet.swap.plan.diagnosis import at_peak, in_the_way, largest_op
from tfunet.swap.plan.placement import total_bytes
from tfunet.swap.plan.plan import WAYS, Plan, Way
from tfunet.swap.plan.timeline import curve
from tfunet.swap.search.decisions import best_outcome
from tfunet.swap.search.strategy import Outcome, Problem, Strategy


@final
@dataclass(frozen=True)
class Planner(Strategy):
    """Searches for the plan with the shortest step whose predicted peak is within the budget.

    Where no plan is, it returns the one with the lowest peak. Where not everything can be kept,
    gradients of activations read the activation's output, which costs nothing
    (`plan.activations`), or the input where that is not enough. Tensors are split only where
    nothing else is enough: first those of the ops that are larger than the budget, then more, from
    the largest on.

    Raises ValueError for a way that does not exist.
    """

    allowed: Sequence[Way] = WAYS

    def __post_init__(self) -> None:
        unknown = sorted(set(self.allowed) - set(WAYS))
        if unknown:
            known = ", ".join(map(repr, WAYS))
            raise ValueError(f"allowed={tuple(self.allowed)} has {unknown}. Known: {known}.")

    def plan(self, problem: Problem) -> Plan:
        """Return the plan, as `Strategy.plan` says."""
        trace, budget_bytes = problem.trace, problem.budget_bytes
        all_kept = problem.weigh({})
        choices: list[list[str]] = [[]]
        if all_kept.peak_bytes > budget_bytes and not trace.is_forward:
            # An output that is read twice stays in between, where its input would not have to.
            gradients = from_outputs(trace, problem.threshold_bytes)
            choices = [gradients, []] if gradients else choices
        best = self._with_split(problem, (), choices, all_kept)
        if "split" not in self.allowed:
            return best
        for tensors in split.trials(
            trace, budget_bytes=budget_bytes, threshold_bytes=problem.threshold_bytes
        ):
            # Slabs come from and go to host memory.
            host_bytes = problem.costs.tiers.host_bytes
            has_room = host_bytes is None or total_bytes(trace, tensors) <= host_bytes
            if best.peak_bytes <= budget_bytes or not has_room:
                break
            plan = self._with_split(problem, tensors, choices, all_kept)
            if plan.peak_bytes < best.peak_bytes:
                best = plan
        return best

    def _with_split(
        self,
        problem: Problem,
        tensors: Collection[int],
        choices: Sequence[Sequence[str]],
        all_kept: Outcome,
    ) -> Plan:
        """Return the best plan that splits these tensors, with gradients of one of the choices."""
        plans: list[Plan] = []
        for gradients in choices:
            trace = reading_outputs(problem.trace, gradients)
            plan = self._of_trace(replace(problem, trace=trace), tensors, all_kept)
            plans.append(replace(plan, from_outputs=tuple(gradients)))
            if plan.peak_bytes <= problem.budget_bytes:
                break
        return min(plans, key=lambda plan: plan.peak_bytes)

    def _of_trace(self, problem: Problem, tensors: Collection[int], all_kept: Outcome) -> Plan:
        slab_bytes = int(problem.budget_bytes * split.SLAB_SHARE) if tensors else 0
        cut = split.cut(problem.trace, tensors, slab_bytes=slab_bytes)
        ways = [way for way in self.allowed if way != "split"]
        best = best_outcome(_cut_problem(problem, cut), ways)
        if cut.chains:
            cut, best = _taller(problem, cut, best)
        plan = as_plan(problem, cut, best, all_kept)
        if plan.peak_bytes <= plan.budget_bytes:
            return plan
        obstacles, advice = in_the_way(
            cut.trace,
            budget_bytes=problem.budget_bytes,
            scratch=cut.scratch_with(problem.scratch),
            held=plan.peak_tensors,
            allowed=self.allowed,
        )
        return replace(plan, obstacles=obstacles, advice=advice)


def _cut_problem(problem: Problem, cut: split.Cut) -> Problem:
    return replace(
        problem,
        trace=cut.trace,
        costs=cut.costs(problem.costs),
        scratch=cut.scratch_with(problem.scratch),
    )


def _taller(problem: Problem, cut: split.Cut, best: Outcome) -> tuple[split.Cut, Outcome]:
    """Return the step in slabs as tall as there is room for, if it is shorter so."""
    scratch = cut.scratch_with(problem.scratch)
    room = {
        action.index: problem.budget_bytes - int(in_use) + scratch[action.index]
        for action, in_use in zip(best.actions, best.in_use, strict=True)
        if action.kind == "op" and action.index in cut.chains
    }
    taller = split.cut(problem.trace, cut.split, slab_bytes=room)
    outcome = _cut_problem(problem, taller).weigh(best.decisions)
    if problem.badness(outcome) < problem.badness(best):
        return taller, outcome
    return cut, best


def as_plan(problem: Problem, cut: split.Cut, best: Outcome, all_kept: Outcome) -> Plan:
    """Return an outcome as a plan, by names; `problem` is the step before it was cut."""
    trace, tiers = cut.trace, problem.costs.tiers
    names = [tensor.name for tensor in trace.tensors]
    scratch = cut.scratch_with(problem.scratch)
    copied = cut.traffic(best.decisions, problem.costs)
    floor_bytes, floor_op = largest_op(trace, scratch)
    peak_op, peak_tensors = at_peak(trace, best.actions, best.in_use, scratch)
    given_up = [*sorted(cut.on_host), *sorted(best.decisions.keys() - cut.on_host)]
    away = {tensor for tensor in given_up if best.decisions.get(tensor, "swap") == "swap"}
    on_host = away - best.on_disk

    def places(ops: Mapping[int, int]) -> dict[str, str]:
        return {names[tensor]: trace.ops[op].name for tensor, op in sorted(ops.items())}

    return Plan(
        decisions={names[tensor]: way for tensor, way in sorted(best.decisions.items())},
        awaited=places(best.moves.awaited),
        fetched=places(best.moves.fetched),
        split=tuple(names[tensor] for tensor in sorted(cut.split)),
        slab_rows={
            trace.ops[last].name: chain.height for last, chain in sorted(cut.chains.items())
        },
        on_disk=tuple(names[tensor] for tensor in sorted(best.on_disk)),
        budget_bytes=problem.budget_bytes,
        peak_bytes=best.peak_bytes,
        unlimited_peak_bytes=all_kept.peak_bytes,
        floor_bytes=floor_bytes,
        floor_op=floor_op,
        peak_op=peak_op,
        peak_tensors=peak_tensors,
        host_bytes=total_bytes(problem.trace, on_host & cut.on_host)
        + total_bytes(trace, on_host - cut.on_host),
        disk_bytes=total_bytes(trace, best.on_disk),
        out_bytes=copied.out_bytes,
        in_bytes=copied.in_bytes,
        host_budget_bytes=tiers.host_bytes,
        disk_budget_bytes=tiers.disk_bytes,
        step_seconds=best.times.step_seconds,
        unlimited_step_seconds=all_kept.times.step_seconds,
        repeat_seconds=best.times.repeat_seconds,
        copy_seconds=best.times.copy_seconds + copied.slab_seconds,
        exposed_seconds=best.times.exposed_seconds + copied.slab_seconds,
        curve=curve(best.times.ends, best.in_use.tolist()),
        unlimited_curve=curve(all_kept.times.ends, all_kept.in_use.tolist()),
        # In the cut step, split tensors have no bytes.
        tensor_bytes={names[index]: problem.trace.tensors[index].num_bytes for index in given_up},
    )
