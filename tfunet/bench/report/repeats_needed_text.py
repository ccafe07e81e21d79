"""Shows how many repeats a precision needs: in sentences, and as JSON."""

import math
from typing import Any

from tfunet.bench.analysis.repeats_needed import Need
from tfunet.bench.analysis.trial_noise import FEASIBLE_REPEATS, POWER
from tfunet.bench.report.number_text import percent_text, too_noisy_text
from tfunet.bench.study.trial_plan import StudyPlan
from tfunet.learning.student_t import MIN_INTERVAL
from tfunet.process.terminal import counted


def need_json(need: Need) -> dict[str, Any]:
    """Return the repeats that a precision needs, for JSON."""
    return {
        "precision": need.precision,
        "repeats": need.repeats,
        "power": POWER,
        "half_width": need.half_width,
        "finest": need.finest(FEASIBLE_REPEATS),
        "comparisons": need.num_comparisons,
        "noise": need.noise.deviation,
        "noise_freedom": need.noise.freedom,
        "noise_source": need.noise.source,
    }


def need_text(need: Need, planned: StudyPlan) -> str:
    """Return the repeats that a precision needs in sentences, with advice for the study."""
    folds = len({trial.config.fold for trial in planned.trials})
    own = planned.study.repeats * folds
    lines = (
        _too_noisy(need, own)
        if need.repeats is None or need.repeats > max(own, FEASIBLE_REPEATS)
        else _enough(need, need.repeats, planned, folds)
    )
    noise = (
        "Noise: the ratio of two trials of a repeat has a standard deviation of "
        f"{100 * need.noise.deviation:.2g} % ({need.noise.source})."
    )
    return "\n".join([lines[0], noise, lines[1]])


def _too_noisy(need: Need, own: int) -> tuple[str, str]:
    most = max(own, FEASIBLE_REPEATS)
    few = (
        f" The study's {own} repeats find none below {percent_text(need.finest(own))}."
        if MIN_INTERVAL <= own < most
        else ""
    )
    return (
        f"Precision: {too_noisy_text(need.finest(most), most)}, which find such a difference "
        f"between two ways {_judged(need)}.{few}",
        "Make trials longer or the machine quieter, or ask for a coarser precision.",
    )


def _enough(need: Need, repeats: int, planned: StudyPlan, folds: int) -> tuple[str, str]:
    have, needed = planned.study.repeats, math.ceil(repeats / folds)
    cells = len({trial.cell for trial in planned.trials})
    each = "" if folds == 1 else f" of {folds} folds, which count as repeats"
    if have >= needed:
        advice = f"The study has repeats = {have}{each}, which is enough."
    else:
        advice = (
            f"The study has repeats = {have}{each}: set repeats = {needed} "
            f"({needed * cells} trials instead of {len(planned.trials)}), and ask again when "
            "they have run, because more records know the noise better."
        )
    return (
        f"Precision: {repeats} repeats find a difference of {100 * need.precision:g} % between two "
        f"ways {_judged(need)}. A ratio then has a 95 % interval of about "
        f"{100 * (need.half_width or 0):.2g} % to both sides.",
        advice,
    )


def _judged(need: Need) -> str:
    return (
        f"in {100 * POWER:g} of 100 sweeps, judged among "
        f"{counted(need.num_comparisons, 'comparison')}"
    )
