"""Laws of Amdahl and Gustafson: the serial share of the work, from speed-ups. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

# Strong scaling keeps the work constant, weak scaling lets it grow with the replicas.
LAWS = {"strong": "Amdahl", "weak": "Gustafson"}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law fitted to the speed-ups of one way of training.

    Args:
        share: Serial share; below 0 if speed-ups exceed the number of replicas, above 1 if they are
            below 1.
        miss: Largest relative distance of a speed-up from the law.
    """

    law: str
    share: float
    miss: float

    @property
    def limit(self) -> float | None:
        """The speed-up of infinitely many replicas by Amdahl's law; None if it has no limit."""
        return 1 / self.share if self.law == "Amdahl" and self.share > 0 else None


def serial_share(speed_up: float, num_replicas: int, scaling: str) -> float:
    """Return the serial share of the work from one speed-up.

    With strong scaling, it is the serial fraction of Karp and Flatt 1990 (doi:10.1145/78607.78614),
    a share of the time on one replica. With weak scaling, it is s' of Gustafson 1988
    (doi:10.1145/42411.42415), a share of the time on all replicas. A share that grows with the
    replicas shows overhead that grows, such as averaging gradients.
    """
    if num_replicas < 2:
        raise ValueError(f"A serial share needs 2 replicas or more, got {num_replicas}.")
    x, y = _line(speed_up, num_replicas, scaling)
    return y / x


def is_serial_share(share: float) -> bool:
    """Return whether it is one: n replicas were at most n times as fast as one, and not slower."""
    return 0 <= share <= 1


def fit(speed_ups: Mapping[int, float], scaling: str) -> Fit | None:
    """Return the law of the scaling, fitted by least squares; None for fewer than 2 speed-ups.

    Amdahl's law (1967, doi:10.1145/1465482.1465560) is 1 / S = s + (1 - s) / N, and Gustafson's,
    for "weak" scaling, S = N - s (N - 1). Both are straight lines through the origin with the
    serial share s as slope. The speed-up of one replica is ignored.
    """
    known = {count: value for count, value in speed_ups.items() if count > 1}
    if len(known) < 2:
        return None
    points = [_line(value, count, scaling) for count, value in known.items()]
    share = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    miss = max(abs(_law(share, count, scaling) / value - 1) for count, value in known.items())
    return Fit(law=LAWS[scaling], share=share, miss=miss)


def _line(speed_up: float, count: int, scaling: str) -> tuple[float, float]:
    """Return x and y of y = s x."""
    if scaling == "strong":
        return 1 - 1 / count, 1 / speed_up - 1 / count
    return float(count - 1), count - speed_up


def _law(share: float, count: int, scaling: str) -> float:
    return 1 / (share + (1 - share) / count) if scaling == "strong" else count - share * (count - 1)
