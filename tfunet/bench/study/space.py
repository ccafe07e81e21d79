"""The values that a setting may take: a list, or a range of numbers. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from tfunet.config.keys import flat
from tfunet.config.typed_values import read


@final
@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value at a share of the space, from 0 to below 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def every(self) -> list[Any]:
        """Return the values of a grid."""
        return list(self.values)

    def ends(self) -> list[Any]:
        """Return values which are right only if all are."""
        return list(self.values)

    def table(self) -> Any:
        """Return what a study file has for it."""
        return list(self.values)


@final
@dataclass(frozen=True, kw_only=True)
class Range:
    """The numbers from `low` to `high`: whole ones if both are, evenly spread on a log scale with
    `log`, in steps with `step`. A grid has `points` of them.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None
    points: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all numbers are whole."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    def at(self, share: float) -> float:
        """Return the number at a share of the range, from 0 to below 1."""
        if self.step is not None or (self.is_whole and not self.log):
            count = self._num_steps() + 1
            return self.low + min(int(share * count), count - 1) * (self.step or 1)
        if self.is_whole:
            value = int(self.low * ((self.high + 1) / self.low) ** share)
            return min(max(value, self.low), self.high)
        return self._between(share)

    def every(self) -> list[float]:
        """Return the numbers of a grid; ValueError without `points` or `step`."""
        if self.points is None:
            if self.step is None and not self.is_whole:
                raise ValueError(
                    "a grid over a range needs `points = 5` or `step = 0.1`, or a list of values"
                )
            return [self.low + number * (self.step or 1) for number in range(self._num_steps() + 1)]
        values = [self._between(number / max(1, self.points - 1)) for number in range(self.points)]
        return list(dict.fromkeys(map(round, values))) if self.is_whole else values

    def ends(self) -> list[float]:
        """Return values which are right only if all are."""
        return [self.low, self.high]

    def table(self) -> Any:
        """Return what a study file has for it."""
        return {key: value for key, value in vars(self).items() if value is not None}

    def _num_steps(self) -> int:
        # A step of 0.1 fits three times into 0.3.
        return int((self.high - self.low) / (self.step or 1) + 1e-9)

    def _between(self, share: float) -> float:
        if self.log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(value, self.low), self.high)


Space = Mapping[str, Choice | Range]


def read_space(table: Any, title: str) -> Space:
    """Return the table of a study that the file calls `title`; ValueError names what is wrong."""
    if not isinstance(table, Mapping) or not table:
        raise ValueError(
            f"{title} must say what varies, as `learning_rate = {{low = 1e-4, high = 1e-1}}` or "
            f"`replica_batch = [2, 4]`, got {table!r}."
        )
    return {key: _read(key, value, title) for key, value in flat(table).items()}


def _read(key: str, value: Any, title: str) -> Choice | Range:
    if isinstance(value, list) and value:
        return Choice(tuple(value))
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{key} in {title} must be a list of values, or a range {{low = .., high = ..}}, got "
            f"{value!r}."
        )
    span = read(Range, value, f"{key} in {title}", " A range needs low and high.")
    for name, number in span.table().items():
        is_least = name not in ("step", "points") or number > 0
        if not math.isfinite(number) or not is_least:
            least = "finite" if is_least else "above 0"
            raise ValueError(f"{name} of {key} in {title} must be {least}, got {number!r}.")
    if not span.low < span.high:
        raise ValueError(
            f"low of {key} in {title} must be below high, got {span.low:g} and {span.high:g}."
        )
    if span.log and span.low <= 0:
        raise ValueError(
            f"low of {key} in {title} must be above 0 on a log scale, got {span.low:g}."
        )
    if span.log and span.step is not None:
        raise ValueError(f"{key} in {title} has log and step. Give one of them, or use points.")
    return span
