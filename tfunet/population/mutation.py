"""How hyperparameters change when they are taken over with a model."""

from collections.abc import Mapping

from tfunet.config.tournament import Mutation
from tfunet.population.pairing import dice


def mutated(
    values: Mapping[str, float],
    rules: Mapping[str, Mutation],
    *,
    seed: int,
    round: int,
    trainer: int,
) -> dict[str, float]:
    """Return the values of a better model, each multiplied by a factor and kept in its bounds."""
    changed = {}
    for name, rule in rules.items():
        factor = dice("mutation", name, seed, round, trainer).choice(rule.factors)
        changed[name] = min(max(values[name] * factor, rule.low), rule.high)
    return changed
