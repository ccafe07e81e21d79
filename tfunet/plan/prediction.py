"""What a step takes in a layout: its seconds by parts, its memory, and how sure that is. Pure."""

import math
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import NamedTuple, final

from tfunet.plan.layout import Layout

# A step fits if at least so many of all such runs do.
LEAST_SURE = 0.95


class Doubt(NamedTuple):
    """How predicted memory errs: what is needed over what is predicted, its median and spread as
    logarithms, and bytes that no prediction knows of."""

    median: float
    spread: float
    more_bytes: int = 0


# Kernels of a GPU take scratch that only a run shows.
ON_GPU = Doubt(0.06, 0.06)
# The allocator of a CPU leaves gaps.
ON_CPU = Doubt(0.01, 0.04)


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """The seconds of a step by what they go to."""

    input: float = 0.0
    computation: float = 0.0
    halo: float = 0.0
    average: float = 0.0
    transfer: float = 0.0
    bubble: float = 0.0
    imbalance: float = 0.0
    copies: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(vars(self).values())

    def times(self, factor: float) -> "Parts":
        """Return parts that take so many times as long."""
        return Parts(**{name: factor * seconds for name, seconds in vars(self).items()})

    @property
    def largest(self) -> str:
        """The part that takes most."""
        return max(vars(self), key=lambda name: getattr(self, name))


PARTS = tuple(key.name for key in fields(Parts))


@final
@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step takes in a layout.

    Args:
        num_bytes: Memory of the device that needs most.
        limit_bytes: What it has.
        sure: How likely the step fits in that, from 0 to 1.
        device_hours: Hours of an epoch's training steps, of all devices together.
        note: What large-model support would do.
    """

    layout: Layout
    parts: Parts
    num_bytes: int
    limit_bytes: int
    sure: float
    samples_per_second: float
    device_hours: float
    note: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.parts.seconds

    @property
    def fits(self) -> bool:
        """Whether at least 95 of 100 such runs fit."""
        return self.sure >= LEAST_SURE


def how_sure(num_bytes: int, limit_bytes: int, doubt: Doubt) -> float:
    """Return the probability that a step of so many predicted bytes fits in a limit."""
    left = limit_bytes - doubt.more_bytes
    if num_bytes <= 0:
        return 1.0
    if left <= 0:
        return 0.0
    return NormalDist(doubt.median, doubt.spread).cdf(math.log(left / num_bytes))
