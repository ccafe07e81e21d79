"""One epoch of a run."""

import time
from dataclasses import dataclass, field
from typing import final

import numpy as np


@final
@dataclass(kw_only=True)
class Epoch:
    """One epoch, or what was left of it when this attempt began.

    Args:
        index: Counted from 0.
        steps: Its steps in this attempt, counted in the epoch from 0.
        last_step: Its last step, counted over the run from 1.
        sample_uses: (2, samples): how often each sample was used, and the sum of the steps in the
            epoch (from 1) that used it; by this process. With tiling, those of each tile.
        metrics_before: State of the metrics over its steps in earlier attempts; on the chief only.
        apart_before: Seconds that the run had spent on saving and on rounds before.

    Attributes:
        running_loss: Sum of the losses of its steps in this attempt.
        losses: Losses of the steps that have no row in steps.csv yet.
        training_seconds: Duration of its steps in this attempt, without saving and rounds.
    """

    index: int
    steps: range
    last_step: int
    sample_uses: np.ndarray
    metrics_before: np.ndarray | None
    apart_before: float
    since: float = field(default_factory=time.perf_counter)
    running_loss: float = 0.0
    losses: list[float] = field(default_factory=list)
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
