"""The table [search] of a study: a search for the best settings with Optuna."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfunet.bench.records.objectives import DIRECTIONS, OBJECTIVES, check_objective, objective_of
from tfunet.bench.study.space import Space, read_space
from tfunet.config.typed_values import convert, read

SAMPLERS = ("tpe", "random", "qmc")
PRUNERS = ("none", "median", "halving")


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search: so many trials, each with settings that follow from the scores of earlier ones.

    Args:
        direction: By default that in which the objective is better.
        pruner: How a trial is judged after each of its epochs; "none" lets all end.
    """

    sampler: str = "tpe"
    trials: int = 50
    objective: str = "val_dice"
    direction: str = ""
    pruner: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        allowed = {
            "sampler": SAMPLERS,
            "direction": ("", *DIRECTIONS),
            "pruner": PRUNERS,
        }
        for name, known in allowed.items():
            if getattr(self, name) not in known:
                words = ", ".join(word for word in known if word)
                raise ValueError(
                    f"{name} in [search] must be one of {words}, got {getattr(self, name)!r}."
                )
        if not 1 <= self.trials <= 100_000:
            raise ValueError(f"trials in [search] must lie in 1..100000, got {self.trials}.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed in [search] must lie in 0..{2**32 - 1}, got {self.seed}.")
        objective = objective_of(self.objective)
        if self.pruner != "none" and objective.of_epoch is None:
            of_epochs = [name for name, each in OBJECTIVES.items() if each.of_epoch is not None]
            raise ValueError(
                f"pruner = {self.pruner!r} needs an objective that every evaluation gives: "
                f"{', '.join(of_epochs)}, or a metric; got {self.objective!r}."
            )
        object.__setattr__(self, "direction", self.direction or objective.direction)

    def check_objective(self, metrics: Iterable[str]) -> None:
        """Raise ValueError for an objective that a run with these metrics does not have."""
        check_objective(self.objective, metrics)
        if not self.direction:
            raise ValueError(
                f"Neither more nor less of the objective {self.objective!r} is known to be better. "
                'Give direction = "minimize" or "maximize" in [search].'
            )


def read_search(table: Any) -> tuple[Search, Space] | None:
    """Return the table [search] of a study with its space, checked; None without one."""
    if table is None:
        return None
    table = convert("[search]", dict[str, Any], table)
    given = {key: value for key, value in table.items() if key != "space"}
    advice = " What varies goes into [search.space]."
    search = read(Search, given, "[search]", advice)
    return search, read_space(table.get("space"), "[search.space]")
