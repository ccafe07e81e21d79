"""Shows how many repeats a precision needs: in sentences, and as JSON."""

import math
from typing import Any

from tfunet.bench.analysis.repeats_needed import POWER, Need
from tfunet.bench.study.trial_plan import StudyPlan
from tfunet.process.terminal import counted


def need_json(need: Need) -> dict[str, Any]:
    """Return the repeats that a precision needs, for JSON."""
    return {
        "precision": need.precision,
        "repeats": need.repeats,
        "power": POWER,
        "half_width": need.half_width,
        "comparisons": need.num_comparisons,
        "noise": need.noise.deviation,
        "noise_freedom": need.noise.freedom,
        "noise_source": need.noise.source,
    }


def need_text(need: Need, planned: StudyPlan) -> str:
    """Return the repeats that a precision needs in sentences, with advice for the study."""
    have = planned.study.repeats
    cells = len({trial.cell for trial in planned.trials})
    folds = len({trial.config.fold for trial in planned.trials})
    needed = math.ceil(need.repeats / folds)
    each = "" if folds == 1 else f" of {folds} folds, which count as repeats"
    if have >= needed:
        advice = f"The study has repeats = {have}{each}, which is enough."
    else:
        advice = (
            f"The study has repeats = {have}{each}: set repeats = {needed} "
            f"({needed * cells} trials instead of {len(planned.trials)}), and ask again when "
            "they have run, because more records know the noise better."
        )
    return "\n".join(
        [
            f"Precision: {need.repeats} repeats find a difference of {100 * need.precision:g} % "
            f"between two ways in {100 * POWER:g} of 100 sweeps, judged among "
            f"{counted(need.num_comparisons, 'comparison')}. A ratio "
            f"then has a 95 % interval of about {100 * need.half_width:.2g} % to both sides.",
            "Noise: the ratio of two trials of a repeat has a standard deviation of "
            f"{100 * need.noise.deviation:.2g} % ({need.noise.source}).",
            advice,
        ]
    )
