"""The tournament that a run takes part in: a population of trainers that exchange models.

Imports no TensorFlow.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfunet.config.augmentation import KINDS as AUGMENTATIONS
from tfunet.config.augmentation import read_augmentation
from tfunet.config.section import FIXED, Section
from tfunet.config.typed_values import convert, read
from tfunet.config.words import check_known, near_match

SELECTIONS = ("pairwise", "truncation", "none")
EXCHANGES = ("weights", "weights_bfloat16")
# Options of optimizers that a step only multiplies by, with the least number that none may reach.
OPTIMIZER_OPTIONS = {
    "weight_decay": math.inf,
    **dict.fromkeys(("momentum", "beta_1", "beta_2", "rho"), 1.0),
}
# Settings that can change between two steps and leave the network and its variables as they are.
HYPERPARAMETERS = (
    "learning_rate",
    *(f"optimizer_options.{name}" for name in OPTIMIZER_OPTIONS),
    *(f"augmentation.{name}" for name in AUGMENTATIONS),
)
MOST_TRAINERS = 1000


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """How a hyperparameter changes when it is taken over from a better model.

    Args:
        factors: One of these, drawn at random, multiplies the value.
        low: The least value.
        high: The greatest value.
    """

    factors: tuple[float, ...]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Tournament:
    """A population of trainers, and how they compete.

    Args:
        trainers: Number of trainers. Each is a run with a seed of its own.
        round_steps: Number of optimizer steps between rounds.
        round_epochs: Number of epochs between rounds, instead of `round_steps`.
        selection: "pairwise": two trainers meet, and each keeps the better of their two models.
            "truncation": all are ranked, and the last take the models of the first `keep`. "none":
            independent runs.
        partition: Whether each trainer has its own share of the training cases.
        share: Share of the training cases that only decide rounds. With `partition` and
            "pairwise", each trainer takes them from its own share; otherwise all have the same.
        keep: Number of trainers that keep their models in "truncation"; by default half.
        exchange: "weights": models and optimizer states, to the bit. "weights_bfloat16": rounded,
            with half the bytes.
        wait_seconds: A trainer that is later than this misses the round.
        mutate: How hyperparameters change when they are taken over, by their keys with dots;
            others are kept.
    """

    trainers: int
    round_steps: int | None = None
    round_epochs: int | None = None
    selection: str = "pairwise"
    partition: bool = False
    share: float = 0.2
    keep: int | None = None
    exchange: str = "weights"
    wait_seconds: float = 600.0
    mutate: Mapping[str, Mutation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_known("selection", self.selection, SELECTIONS)
        check_known("exchange", self.exchange, EXCHANGES)
        if not 2 <= self.trainers <= MOST_TRAINERS:
            raise ValueError(
                f"A tournament needs 2 to {MOST_TRAINERS} trainers, got trainers={self.trainers}. "
                "Leave out [tournament] to train one model."
            )
        if (self.round_steps is None) == (self.round_epochs is None):
            raise ValueError(
                "A tournament needs the length of a round: give one of round_steps and "
                "round_epochs."
            )
        for name in ("round_steps", "round_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if not 0 < self.share < 1:
            raise ValueError(f"share must lie between 0 and 1, got {self.share}.")
        if not 0 < self.wait_seconds < math.inf:
            raise ValueError(f"wait_seconds must be positive and finite, got {self.wait_seconds}.")
        if self.keep is not None and self.selection != "truncation":
            raise ValueError(
                f'keep={self.keep} has a meaning with selection = "truncation" only. Leave it out.'
            )
        if self.keep is not None and not 1 <= self.keep < self.trainers:
            raise ValueError(
                f"keep must lie between 1 and {self.trainers - 1} with trainers={self.trainers}, "
                f"got {self.keep}."
            )

    @property
    def num_kept(self) -> int:
        """Number of trainers that keep their models in "truncation"."""
        return self.keep or max(1, self.trainers // 2)

    @property
    def has_own_cases(self) -> bool:
        """Whether each trainer decides rounds on cases of its own."""
        return self.partition and self.selection != "truncation"

    def trainer_of(self, seed: int) -> int:
        """Return which trainer, from 0, the run with this seed is."""
        return seed % self.trainers

    def population_of(self, seed: int) -> int:
        """Return the number of the population that the run with this seed is in."""
        return seed // self.trainers

    def seed_of(self, population: int, trainer: int) -> int:
        """Return the seed of a trainer: the inverse of `trainer_of` and `population_of`."""
        return population * self.trainers + trainer


def read_tournament(table: Mapping[str, Any]) -> Tournament | None:
    """Return the tournament that a table of a configuration describes; None for an empty one."""
    if not table:
        return None
    rules = convert("mutate in [tournament]", dict[str, Any], table.get("mutate", {}))
    mutate = {name: _mutation(name, rule) for name, rule in _dotted(rules).items()}
    others = {key: value for key, value in table.items() if key != "mutate"}
    advice = " A tournament needs trainers: the number of runs that meet."
    return replace(read(Tournament, others, "[tournament]", advice), mutate=mutate)


def _dotted(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return rules by the keys of their settings. In TOML a key with a dot is a table."""
    found: dict[str, Any] = {}
    for key, value in rules.items():
        if key in ("optimizer_options", "augmentation") and isinstance(value, Mapping):
            found |= {f"{key}.{name}": rule for name, rule in value.items()}
        else:
            found[key] = value
    return found


def _mutation(name: str, rule: Any) -> Mutation:
    if name not in HYPERPARAMETERS:
        # Most people leave out the table.
        known = {known.rpartition(".")[2]: known for known in HYPERPARAMETERS}
        entry = name.rpartition(".")[2]
        near = f" Did you mean {known[entry]!r}?" if entry in known else near_match(entry, known)
        raise ValueError(
            f"mutate in [tournament] names {name!r}, which is no hyperparameter that can change "
            f"during training.{near} Known: {', '.join(HYPERPARAMETERS)}."
        )
    shape = f"{name} = {{factors = [0.8, 1.2], low = 1e-5, high = 1e-1}}"
    if not isinstance(rule, Mapping) or set(rule) != {"factors", "low", "high"}:
        raise ValueError(f"mutate in [tournament] needs {shape}, got {rule!r}.")
    factors = rule["factors"]
    factors = list(factors) if isinstance(factors, list | tuple) else []
    numbers = [*factors, rule["low"], rule["high"]]
    is_right = bool(factors) and all(_is_positive(number) for number in numbers)
    if not is_right or rule["low"] > rule["high"]:
        raise ValueError(
            f"mutate in [tournament] needs {shape} with positive numbers, and low at most high; "
            f"got {dict(rule)!r}."
        )
    below = OPTIMIZER_OPTIONS.get(name.rpartition(".")[2], math.inf)
    if rule["high"] >= below:
        raise ValueError(
            f"high of mutate.{name} in [tournament] must be below {below:g}, got {rule['high']!r}."
        )
    return Mutation(
        factors=tuple(float(factor) for factor in factors),
        low=float(rule["low"]),
        high=float(rule["high"]),
    )


def first_values(tournament: Tournament, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the mutated hyperparameters with a dot in their key, as the settings give them.

    Raises ValueError for one that is not given as a positive number, and for bounds that it cannot
    have.
    """
    values = {}
    for name, rule in tournament.mutate.items():
        option, _, entry = name.partition(".")
        if not entry:
            continue
        table = settings.get(option, {})
        value = table.get(entry)
        if isinstance(value, Mapping):  # An augmentation with a range, a probability, axes.
            value = value.get("range")
        if not _is_positive(value):
            raise ValueError(
                f"mutate in [tournament] changes {name}, so it needs a positive number to begin "
                f"with, as {name} = 0.1; got {value!r}."
            )
        if option == "augmentation":
            for bound in (rule.low, rule.high):
                try:
                    read_augmentation(with_values(table, option, {name: bound}))
                except ValueError as error:
                    raise ValueError(f"mutate.{name} in [tournament]: {error}") from error
        values[name] = float(value)
    return values


def with_values(
    table: Mapping[str, Any], option: str, values: Mapping[str, float]
) -> dict[str, Any]:
    """Return a table of the configuration with the values that hyperparameters have now.

    Args:
        table: The value of the key `option`.
        values: By their keys with dots; those of other tables are left out.
    """
    changed = dict(table)
    for name, value in values.items():
        key, _, entry = name.partition(".")
        if key == option:
            before = table.get(entry)
            changed[entry] = {**before, "range": value} if isinstance(before, Mapping) else value
    return changed


def _is_positive(number: Any) -> bool:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and 0 < number < math.inf


@dataclass(frozen=True, kw_only=True)
class TournamentKeys(Section):
    """The population that the run is a trainer of.

    Args:
        tournament: The table [tournament] of a study: trainers, round_steps or round_epochs,
            selection, partition, share, keep, exchange, wait_seconds, mutate. The runs with the
            seeds `n * trainers` to `n * trainers + trainers - 1` are a population. Their folders
            must lie beside each other.
    """

    tournament: dict[str, Any] = field(default_factory=dict, metadata=FIXED)

    def _check(self) -> None:
        read_tournament(self.tournament)


def meeting_name(settings: Mapping[str, Any], free: tuple[str, ...], population: int) -> str:
    """Return the name of the folder where the trainers of a population meet.

    It is the same for all runs whose settings differ only in the seed, or in the keys `free`.
    """
    values = {key: value for key, value in settings.items() if key not in ("seed", *free)}
    text = json.dumps(values, sort_keys=True, default=str)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:12]}-{population}"
