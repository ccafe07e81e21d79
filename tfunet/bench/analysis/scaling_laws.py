"""Laws of scaling: how much of the work does not divide among replicas. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

# The law whose speed-up is measured: of work that stays the same, or that grows with the replicas.
LAWS = {"strong": "Amdahl", "weak": "Gustafson"}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law fitted to the speed-ups of one way of training.

    Args:
        law: "Amdahl" or "Gustafson".
        share: The serial share; below 0 where speed-ups are more than the replicas.
        miss: Largest distance of a speed-up from the law, relative to the speed-up.
    """

    law: str
    share: float
    miss: float

    @property
    def limit(self) -> float | None:
        """The speed-up of endlessly many replicas by Amdahl's law; None where there is no end."""
        return 1 / self.share if self.law == "Amdahl" and self.share > 0 else None


def serial_share(speed_up: float, num_replicas: int, scaling: str) -> float:
    """Return the share of the work that ran as if on one replica, from one speed-up.

    Strong scaling: the experimentally determined serial fraction of Karp and Flatt 1990
    (doi:10.1145/78607.78614), of the time on one replica. Weak scaling: s' of Gustafson 1988
    (doi:10.1145/42411.42415), of the time on all. A share that rises with the replicas is
    overhead that does, such as the average of the gradients.
    """
    if num_replicas < 2:
        raise ValueError(f"A serial share needs 2 replicas or more, got {num_replicas}.")
    x, y = _line(speed_up, num_replicas, scaling)
    return y / x


def fit(speed_ups: Mapping[int, float], scaling: str) -> Fit | None:
    """Return the law of the scaling, fitted by least squares; None for fewer than 2 speed-ups.

    Amdahl's (1967, doi:10.1145/1465482.1465560) is 1 / S = s + (1 - s) / N, Gustafson's
    S = N - s (N - 1): both are straight lines through the origin in the serial share s.

    Args:
        speed_ups: By number of replicas; that of one replica is no news.
        scaling: "strong" or "weak".
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
