"""How far a run is, and what it has measured so far."""

import time
from dataclasses import dataclass, field
from typing import Any, final, get_type_hints

import numpy as np

from tfunet.machine.energy import NOTHING_YET
from tfunet.training import checkpoint
from tfunet.training.attempt import Attempt
from tfunet.training.network import Network


@dataclass
class Progress:
    """How far a run is, and what it has measured so far: what a checkpoint keeps of it."""

    step: int = 0
    step_seconds: list[float] = field(default_factory=list)
    traced_steps: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    logs: dict[str, float] = field(default_factory=dict)
    weights_hash: str = ""
    scored_hash: str = ""  # Hash of the weights that were evaluated last.
    samples_hash: str = ""
    dropped_samples: list[int] = field(default_factory=list)
    # (first step, replicas) of each part of the run: it may go on with another number.
    replicas_from_step: list[tuple[int, int]] = field(default_factory=list)
    # (first step, Unix time) of each attempt.
    began: list[tuple[int, float]] = field(default_factory=list)
    energy: dict[str, float] | None = None  # None where it cannot be read.
    rounds: int = 0  # Rounds of a tournament that were played.
    # Settings that a tournament has changed, by their keys with dots.
    hyperparameters: dict[str, float] = field(default_factory=dict)
    stop_training: bool = False  # A callback has ended it; a killed run only lacks its result.

    @property
    def seconds_apart(self) -> float:
        """Seconds within epochs that are not of training."""
        return self.seconds.get("saving", 0.0) + self.seconds.get("tournament", 0.0)

    def spend(self, phase: str, since: float) -> float:
        """Add the time since `since` (time.perf_counter) to a phase, and return it."""
        spent = time.perf_counter() - since
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        return spent


# The types of what a checkpoint keeps beside arrays.
FACTS = {**get_type_hints(Progress), "callbacks": dict[int, dict[str, Any]]}


@final
@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where an attempt begins.

    Args:
        epoch_arrays: Sums over the steps of an epoch that was begun before; on the chief only.
        callback_states: What the callbacks held, by their place.
    """

    progress: Progress
    epoch_arrays: dict[str, np.ndarray]
    callback_states: dict[str, dict[str, Any]]
    was_begun: bool


def resume(attempt: Attempt, network: Network) -> Resumed:
    """Give every process the weights of the chief's checkpoint, or those of the chief's new model.

    Called by all processes together.
    """
    topology = attempt.topology
    restored = checkpoint.restore(attempt.folder, attempt.backend, topology, network.held, FACTS)
    if restored is None:
        network.held.share()
    arrays, facts = restored or ({}, {"energy": NOTHING_YET})
    states = facts.pop("callbacks", {})
    progress = Progress(**facts)
    parts = progress.replicas_from_step
    num_replicas = attempt.config.num_replicas
    if not parts or parts[-1][1] != num_replicas:
        parts.append((progress.step + 1, num_replicas))
    progress.began.append((progress.step + 1, attempt.started))
    if attempt.spans is not None:
        table = attempt.folder.spans_table(topology.process_index)
        attempt.spans.write_to(table, progress.step)
    return Resumed(
        progress=progress,
        epoch_arrays=arrays,
        callback_states=states,
        was_begun=restored is not None,
    )
