"""Which model a trainer goes on with after a round."""

import math
from collections.abc import Mapping


def is_better(other: float | None, own: float | None) -> bool:
    """Whether a score beats one's own. Higher is better; NaN and None lose to any number."""
    if other is None or math.isnan(other):
        return False
    return own is None or math.isnan(own) or other > own


def pairwise(own: float | None, other: float | None) -> tuple[bool, str]:
    """Return whether a trainer takes its partner's model, and why."""
    if is_better(other, own):
        return True, "the partner's model is better"
    if is_better(own, other):
        return False, "the own model is better"
    if own is not None and own == other:
        return False, "a tie"
    return False, "neither model has a score"


def truncation(scores: Mapping[int, float | None], num_kept: int) -> dict[int, int]:
    """Return the trainer whose model each one goes on with.

    The first `num_kept` by score keep their own. The one in place i takes the model in place
    i mod `num_kept`. In a tie the lower number comes first. A model without a score is given to
    nobody, and a model is taken only if it is better.
    """

    def rank(trainer: int) -> tuple[float, int]:
        score = scores[trainer]
        return (math.inf if score is None or math.isnan(score) else -score), trainer

    order = sorted(scores, key=rank)
    source = {}
    for place, trainer in enumerate(order):
        best = order[place % num_kept]
        takes = place >= num_kept and is_better(scores[best], scores[trainer])
        source[trainer] = best if takes else trainer
    return source
