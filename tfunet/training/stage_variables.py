"""The variables of a stage, which its processes hold: gathered where the whole is needed."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.exit_codes import CheckFailedError
from tfunet.inside.of_keras import give_value
from tfunet.parallel.mesh import Mesh


@final
class Elsewhere:
    """Takes the place of the values of a variable that another process holds."""

    # A model may be traced with zeros in their place where only its graph is looked at.
    is_looking = False

    def __init__(self, path: str, stage: int) -> None:
        self._path, self._stage = path, stage

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> tf.Tensor:
        if not Elsewhere.is_looking:
            raise ValueError(
                f"The variable {self._path!r} is held by the process of stage {self._stage + 1}, "
                "and another one asks for its value. Leave out the callback, metric or function "
                "that reads all weights, or leave out stages."
            )
        return tf.zeros(shape, dtype)


@contextlib.contextmanager
def looking_at_all() -> Iterator[None]:
    """Allow traces of the whole model in the block."""
    Elsewhere.is_looking = True
    try:
        yield
    finally:
        Elsewhere.is_looking = False


@dataclass(frozen=True, kw_only=True)
class StageVariable:
    """A variable of the run.

    Args:
        variable: Its own value is in the processes of the stage; others have a stand-in.
        stage: The stage that holds it; None if all processes do, with the same value.
        is_statistic: Whether steps change it, and no gradient does.
        is_shared: Whether each process of the stage has a part of it.
    """

    variable: Any
    stage: int | None
    shape: tuple[int, ...]
    dtype: str
    is_statistic: bool = False
    is_shared: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class StageVariables:
    """The variables of one stage; see `Held`.

    Args:
        entries: The whole run's, in the order of a checkpoint: `num_weights` of the model, then
            the optimizer's.
    """

    backend: Backend
    topology: Topology
    mesh: Mesh
    device: int
    entries: Sequence[StageVariable]
    num_weights: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [entry.shape for entry in self.entries]

    def check_same(self) -> None:
        """Raise ValueError in all processes where they have different variables."""
        text = repr([(entry.stage, entry.shape, entry.dtype) for entry in self.entries])
        digest = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint16)
        table = np.zeros((self.mesh.num_devices, 4))
        table[self.device] = digest
        table = self.backend.sum(table)
        if (table != table[0]).any():
            raise ValueError(
                "The processes of this run have models or optimizers with different variables, so "
                "that stages cannot be put together. Build the model without chance, and choose "
                "an optimizer that keeps the same state for every variable, or leave out stages."
            )

    def values(self) -> Iterator[np.ndarray]:
        for entry in self.entries:
            if entry.stage in (None, 0) and not entry.is_shared:  # The chief has it.
                if self.topology.is_chief:
                    yield self._value(entry)
                continue
            value = self._from_stage(entry)
            if self.topology.is_chief:
                yield value

    def restore(self, values: Iterable[np.ndarray]) -> None:
        given = iter(values)
        for entry in self.entries:
            wide = np.zeros(entry.shape)
            if self.topology.is_chief:
                wide = next(given).astype(np.float64)
            self._assign(entry, self.backend.sum(wide))

    def share(self) -> None:
        if self._num_holders > 1:
            for entry in self.entries:
                if entry.stage is not None and not entry.is_shared:
                    self._assign(entry, self._from_stage(entry))

    def average_statistics(self) -> None:
        if self._num_holders == 1:
            return
        for entry in self.entries:
            if entry.is_statistic and "float" in entry.dtype:
                own = self._is_own(entry)
                wide = self._value(entry).astype(np.float64) if own else np.zeros(entry.shape)
                self._assign(entry, self.backend.sum(wide) / self._num_holders)

    def weights_hash(self, fingerprints: np.ndarray) -> str:
        entries = self.entries[: self.num_weights]
        table = np.zeros((self.mesh.num_devices, len(entries), 4))
        held = [at for at, entry in enumerate(entries) if self._is_own(entry)]
        table[self.device, held] = fingerprints[0].view(np.uint16)
        table = self.backend.sum(table)
        rows = []
        for at, entry in enumerate(entries):
            first, *others = self.mesh.holders(entry.stage or 0)
            rows.append(table[first, at])
            different = [
                device for device in others if (table[device, at] != table[first, at]).any()
            ]
            if different:
                raise CheckFailedError(
                    f"The weights {entry.variable.path!r} of devices {different} differ from those "
                    f"of device {first}: gradients are not averaged, or a random or "
                    "non-deterministic operation updates a weight."
                )
        hashed = np.stack(rows).astype(np.uint16).tobytes()
        return hashlib.blake2b(hashed, digest_size=8).digest().hex()

    def complete(self) -> None:
        for entry in self.entries[: self.num_weights]:
            if entry.stage:
                value = self._from_stage(entry)
                if self.topology.is_chief:
                    give_value(entry.variable, tf.constant(value))

    @property
    def _num_holders(self) -> int:
        """Processes that have the variables of this stage, or of any other."""
        return self.mesh.num_devices // self.mesh.stages

    def _is_own(self, entry: StageVariable) -> bool:
        return entry.stage in (None, self.mesh.stage_of(self.device))

    def _value(self, entry: StageVariable) -> np.ndarray:
        return keras.ops.convert_to_numpy(entry.variable.value)

    def _from_stage(self, entry: StageVariable) -> np.ndarray:
        """Return the value of a variable of a stage, from the first process that has it, or from
        all that have parts of it.

        float64 holds every value of Keras's types, except for integers beyond 2^53.
        """
        is_sender = self.device == self.mesh.holders(entry.stage or 0)[0]
        if entry.is_shared:
            own = entry.variable.own() if self._is_own(entry) else np.zeros(entry.shape)
            return self.backend.sum(own).astype(entry.dtype)
        wide = self._value(entry).astype(np.float64) if is_sender else np.zeros(entry.shape)
        return self.backend.sum(wide).astype(entry.dtype)

    def _assign(self, entry: StageVariable, value: np.ndarray) -> None:
        if self._is_own(entry) and entry.is_shared:
            entry.variable.keep_own(value)
        elif self._is_own(entry):
            entry.variable.assign(value.astype(entry.dtype))
