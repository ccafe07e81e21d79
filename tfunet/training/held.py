"""What a process holds of a run's variables: all of them, or those of its stage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import keras
import numpy as np

from tfunet.backend import Backend, Topology
from tfunet.state.shared_slot import SharedSlot
from tfunet.training import state
from tfunet.training.checks import weights_hash


class Held(Protocol):
    """The variables of a run, of which this process may have a part.

    All processes call each method together.
    """

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all variables of the run, in the order of a checkpoint."""

    def values(self) -> Iterator[np.ndarray]:
        """Yield the values of all variables, on the chief; other processes send theirs."""

    def restore(self, values: Iterable[np.ndarray]) -> None:
        """Take over the chief's values of all variables."""

    def share(self) -> None:
        """Give processes that hold the same variables the same values of them."""

    def average_statistics(self) -> None:
        """Give them the same moving statistics, too: those of batch normalisation."""

    def weights_hash(self, fingerprints: np.ndarray) -> str:
        """Return the hash of all weights; see `checks.weights_hash`."""

    def complete(self) -> None:
        """Give the chief the values of all weights of the model."""


@final
@dataclass(frozen=True)
class EveryVariable:
    """All variables, in every process, but for parts of states; in the order of a checkpoint."""

    backend: Backend
    topology: Topology
    model: keras.Model
    variables: Sequence[Any]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(variable.shape) for variable in self.variables]

    def values(self) -> Iterator[np.ndarray]:
        for variable in self.variables:
            if isinstance(variable, SharedSlot):
                value = variable.whole()
            elif self.topology.is_chief:
                value = keras.ops.convert_to_numpy(variable.value)
            if self.topology.is_chief:
                yield value

    def restore(self, values: Iterable[np.ndarray]) -> None:
        given = values if self.topology.is_chief else [None] * len(self.variables)
        for variable, value in zip(self.variables, given, strict=True):
            if isinstance(variable, SharedSlot):
                variable.assign_whole(value)
            elif value is not None:
                variable.assign(value)
        self.share()

    def share(self) -> None:
        # A state that is shared out has one owner.
        same = [each for each in self.variables if not isinstance(each, SharedSlot)]
        state.broadcast(self.backend, self.topology, same)

    def average_statistics(self) -> None:
        state.average_statistics(self.backend, self.topology, self.model)

    def weights_hash(self, fingerprints: np.ndarray) -> str:
        return weights_hash(self.backend, self.topology, fingerprints)

    def complete(self) -> None:
        pass
