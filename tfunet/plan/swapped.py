"""Plans large-model support for the best layouts of a ranking, which takes seconds for each."""

from collections.abc import Callable
from dataclasses import replace

from tfunet.config.amount import MIB
from tfunet.performance.forecast import Forecast, forecast
from tfunet.plan.predict import Predictor
from tfunet.plan.prediction import Prediction
from tfunet.plan.rank import Ranking, by_time

# Weights are allocated to trace a step: not more than these.
MOST_WEIGHT_BYTES = 4 * 2**30
MOST_PLANNED = 3


def with_plans(ranking: Ranking, say: Callable[[str], None] = lambda line: None) -> Ranking:
    """Return a ranking in which the first layout, if it swaps, has been planned tensor by tensor.

    Layouts in parts or stages keep their estimate: their steps cannot be traced here.
    """
    planned: set[int] = set()
    while (best := ranking.best) is not None and len(planned) < MOST_PLANNED:
        if best.layout.swap is None or id(best) in planned or not _can_be_traced(ranking, best):
            return ranking
        say(f"planning large-model support for {best.layout}")
        found = _planned(ranking, best)
        planned.add(id(found))
        left = [one for one in ranking.fitting if one is not best]
        if found.fits:
            ranking = replace(ranking, fitting=tuple(by_time([found, *left])))
        else:
            ranking = replace(ranking, fitting=tuple(left), others=(found, *ranking.others))
    return ranking


def _can_be_traced(ranking: Ranking, one: Prediction) -> bool:
    layout = one.layout
    is_whole = layout.parts == 1 and layout.stages == 1 and not layout.tiling
    return is_whole and ranking.facts.variable_bytes <= MOST_WEIGHT_BYTES


def _planned(ranking: Ranking, one: Prediction) -> Prediction:
    """Return a prediction with the times and the memory of the planner."""
    config = one.layout.applied(ranking.config)
    machine = ranking.machine
    device = replace(machine.device, link_bytes_per_second=machine.copy_rate())
    found = forecast(config, device, memory_bytes=one.limit_bytes)
    plan = found.plan
    kept = Predictor(ranking.facts, machine).predict(replace(one.layout, swap=None))
    longer = plan.step_seconds / plan.unlimited_step_seconds if plan.unlimited_step_seconds else 1.0
    parts = replace(kept.parts, copies=kept.parts.computation * (longer - 1.0))
    seconds = parts.seconds
    return replace(
        one,
        parts=parts,
        num_bytes=found.resident_bytes + plan.peak_bytes,
        sure=1.0 if found.fits else 0.0,
        samples_per_second=ranking.facts.global_samples / seconds,
        device_hours=one.device_hours * seconds / one.seconds,
        note=note(found),
    )


def note(found: Forecast) -> str:
    """Return in a line what a plan does."""
    plan = found.plan
    return (
        f"{plan.count('swap')} tensors swapped, {plan.count('recompute')} recomputed, "
        f"{len(plan.split)} split; {plan.host_bytes / MIB:,.0f} MiB on the host"
    )
