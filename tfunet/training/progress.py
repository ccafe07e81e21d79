"""How far a run is, and what it has measured so far."""

import time
from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a run is, and what it has measured so far: what a checkpoint keeps of it."""

    step: int = 0
    step_seconds: list[float] = field(default_factory=list)
    traced_steps: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    logs: dict[str, float] = field(default_factory=dict)
    weights_hash: str = ""
    samples_hash: str = ""
    dropped_samples: list[int] = field(default_factory=list)
    # (first step, replicas) of each part of the run: it may go on with another number.
    replicas_from_step: list[tuple[int, int]] = field(default_factory=list)
    # (first step, Unix time) of each attempt.
    began: list[tuple[int, float]] = field(default_factory=list)
    energy: dict[str, float] | None = None  # None where it cannot be read.
    stop_training: bool = False  # A callback has ended it; a killed run only lacks its result.

    def spend(self, phase: str, since: float) -> float:
        """Add the time since `since` (time.perf_counter) to a phase, and return it."""
        spent = time.perf_counter() - since
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        return spent
