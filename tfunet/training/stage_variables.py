"""The variables of stages: made on their device only, and gathered where the whole is needed.

Stages that are devices of one process have an optimizer each. The first one is the model's. What
belongs to no variable, such as the number of steps and the learning rate, the others take over from
it in each step.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.exit_codes import CheckFailedError
from tfunet.parallel.mesh import Mesh
from tfunet.training.held import EveryVariable, Held


@final
class Elsewhere:
    """Takes the place of the values of a variable that another process holds."""

    # A model may be traced with zeros in their place where only its graph is looked at.
    _is_looking = False

    def __init__(self, path: str, stage: int) -> None:
        self._path, self._stage = path, stage

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> tf.Tensor:
        if not Elsewhere._is_looking:
            raise ValueError(
                f"The variable {self._path!r} is held by the process of stage {self._stage + 1}, "
                "and another one asks for its value. Leave out the callback, metric or function "
                "that reads all weights, or leave out stages."
            )
        return tf.zeros(shape, dtype)

    @classmethod
    @contextlib.contextmanager
    def looking(cls) -> Iterator[None]:
        """Allow traces of the whole model in the block."""
        cls._is_looking = True
        try:
            yield
        finally:
            cls._is_looking = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A variable of the run.

    Args:
        variable: Its own value is in the processes of the stage; others have a stand-in.
        stage: The stage that holds it; None if all processes do, with the same value.
        is_statistic: Whether steps change it, and no gradient does.
    """

    variable: Any
    stage: int | None
    shape: tuple[int, ...]
    dtype: str
    is_statistic: bool = False


def keep_own(variables: Sequence[Any], owners: Mapping[int, int], stage: int) -> None:
    """Make the variables of a stage, if they have no value yet, and free those of other stages.

    `owners` has the stage of each variable by its id.
    """
    for variable in variables:
        if owners[id(variable)] != stage:
            variable._value = None
            variable._initializer = Elsewhere(variable.path, owners[id(variable)])
        elif variable._value is None:
            variable._deferred_initialize()


def place_own(variables: Sequence[Any], owners: Mapping[int, int], devices: Sequence[str]) -> None:
    """Move variables to the devices of their stages; make those that have no value yet there."""
    for variable in variables:
        value = None if variable._value is None else tf.identity(variable.value)
        with tf.device(devices[owners[id(variable)]]):
            if value is None:
                variable._deferred_initialize()
            else:
                variable._initialize(tf.identity(value))


def num_slots(optimizer: keras.Optimizer) -> int:
    """Return how many states an optimizer that is not built keeps of each variable."""
    variable = keras.Variable(np.zeros(()), name="probe")
    states = build_optimizer(optimizer, [variable], {id(variable): 0}, 0)
    return sum(state.stage is not None for state in states)


def build_optimizer(
    optimizer: keras.Optimizer, trainable: Sequence[Any], owners: Mapping[int, int], stage: int
) -> list[Entry]:
    """Build an optimizer with the state of one stage's variables; return that of all.

    Variables of other stages have a number each as their stand-in, and so have their states.

    Raises ValueError for an optimizer that keeps a state of which it does not say whose it is, and
    for one that gives a model the averages of all weights.
    """
    if optimizer.use_ema:
        raise ValueError(
            f"The optimizer {type(optimizer).__name__} has use_ema=True, and with stages it has "
            "the variables of one stage only. Leave out use_ema, or leave out stages."
        )
    given = [
        variable
        if owners[id(variable)] == stage
        else keras.Variable(np.zeros((), variable.dtype), name="elsewhere")
        for variable in trainable
    ]
    of_given = {
        id(reference): variable for reference, variable in zip(given, trainable, strict=True)
    }
    references: dict[int, Any] = {}
    add = optimizer.add_variable_from_reference

    def noted(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        made = add(reference_variable, *args, **kwargs)
        references[id(made)] = of_given[id(reference_variable)]
        return made

    object.__setattr__(optimizer, "add_variable_from_reference", noted)
    before = {id(variable) for variable in optimizer.variables}
    try:
        optimizer.build(given)
    finally:
        object.__delattr__(optimizer, "add_variable_from_reference")
    entries = []
    for state in optimizer.variables:
        reference = references.get(id(state))
        if reference is None and id(state) not in before and tuple(state.shape) != ():
            raise ValueError(
                f"The optimizer {type(optimizer).__name__} keeps the state {state.path!r}, of "
                "which it does not say to which variable it belongs, so that stages cannot share "
                "it out. Choose another optimizer, or leave out stages."
            )
        entries.append(
            Entry(
                variable=state,
                stage=None if reference is None else owners[id(reference)],
                shape=tuple(state.shape if reference is None else reference.shape),
                dtype=str(state.dtype),
            )
        )
    return entries


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
    entries: Sequence[Entry]
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
            if entry.stage in (None, 0):  # The chief has it.
                if self.topology.is_chief:
                    yield self._value(entry)
                continue
            value = self._from_stage(entry)
            if self.topology.is_chief:
                yield value

    def restore(self, values: Sequence[np.ndarray]) -> None:
        for at, entry in enumerate(self.entries):
            wide = np.zeros(entry.shape)
            if self.topology.is_chief:
                wide = values[at].astype(np.float64)
            self._assign(entry, self.backend.sum(wide))

    def share(self) -> None:
        if self._num_holders > 1:
            for entry in self.entries:
                if entry.stage is not None:
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
                    entry.variable._initialize(tf.constant(value))

    @property
    def _num_holders(self) -> int:
        """Processes that have the variables of this stage, or of any other."""
        return self.mesh.num_devices // self.mesh.stages

    def _is_own(self, entry: Entry) -> bool:
        return entry.stage in (None, self.mesh.stage_of(self.device))

    def _value(self, entry: Entry) -> np.ndarray:
        return keras.ops.convert_to_numpy(entry.variable.value)

    def _from_stage(self, entry: Entry) -> np.ndarray:
        """Return the value of a variable of a stage, from the first process that has it.

        float64 holds every value of Keras's types, except for integers beyond 2^53.
        """
        is_sender = self.device == self.mesh.holders(entry.stage or 0)[0]
        wide = self._value(entry).astype(np.float64) if is_sender else np.zeros(entry.shape)
        return self.backend.sum(wide).astype(entry.dtype)

    def _assign(self, entry: Entry, value: np.ndarray) -> None:
        if self._is_own(entry):
            entry.variable.assign(value.astype(entry.dtype))


@final
@dataclass(frozen=True, kw_only=True)
class Owned:
    """The variables of the stages of this process.

    Args:
        held: What the loop knows of them.
        entries: The whole run's, in the order of a checkpoint: `num_weights` of the model, then
            the optimizers'.
        optimizers: The optimizer of each stage.
        common: For each stage but the first: its states that belong to no variable, each with the
            first one's.
    """

    held: Held
    entries: Sequence[Entry]
    num_weights: int
    optimizers: Mapping[int, keras.Optimizer]
    common: Mapping[int, Sequence[tuple[Any, Any]]]

    @property
    def variables(self) -> list[Any]:
        """All variables of this process."""
        return [entry.variable for entry in self.entries if self._is_here(entry)]

    @property
    def weights(self) -> list[Any]:
        """The model's variables of this process."""
        return [
            entry.variable for entry in self.entries[: self.num_weights] if self._is_here(entry)
        ]

    def num_bytes(self, stage: int) -> int:
        """Return the bytes of a stage's variables."""
        specs = (
            tf.TensorSpec(entry.shape, entry.dtype)
            for entry in self.entries
            if entry.stage in (None, stage)
        )
        return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)

    def common_state(self, stage: int) -> list[tuple[Any, tf.Tensor]]:
        """Return a stage's states that belong to no variable, with what they are to be.

        Called before any stage changes them.
        """
        return [(own, tf.identity(first.value)) for own, first in self.common.get(stage, ())]

    def _is_here(self, entry: Entry) -> bool:
        return entry.stage is None or entry.stage in self.optimizers


def own_variables(
    model: keras.Model,
    owners: Mapping[int, int],
    *,
    backend: Backend,
    topology: Topology,
    mesh: Mesh,
    more: Callable[[], keras.Optimizer],
    devices: Mapping[int, str],
) -> Owned:
    """Keep the variables of this process's stages, and build the optimizers for them.

    Args:
        owners: The stage of each variable of the model, by its id.
        more: Makes another optimizer like the model's.
        devices: The names of the devices of this process, if it has several stages.
    """
    names = [devices[device] for device in sorted(devices)]
    first = mesh.stage_of(topology.local_replicas.start)
    optimizers = {first: model.optimizer}
    if devices:
        place_own(model.variables, owners, names)
        optimizers |= {stage: more() for stage in range(1, len(names))}
    else:
        keep_own(model.variables, owners, first)
    weights = _weights(model, owners)
    states: dict[int, list[Entry]] = {}
    for stage, optimizer in optimizers.items():
        with tf.device(names[stage]) if devices else contextlib.nullcontext():
            states[stage] = build_optimizer(optimizer, model.trainable_variables, owners, stage)
    entries = [
        *weights,
        *(
            entry if entry.stage not in states else states[entry.stage][at]
            for at, entry in enumerate(states[first])
        ),
    ]
    held: Held
    if devices:
        held = EveryVariable(backend, topology, model, [entry.variable for entry in entries])
    else:
        held = StageVariables(
            backend=backend,
            topology=topology,
            mesh=mesh,
            device=topology.local_replicas.start,
            entries=entries,
            num_weights=len(weights),
        )
        held.check_same()
    return Owned(
        held=held,
        entries=entries,
        num_weights=len(weights),
        optimizers=optimizers,
        common={
            stage: [
                (own.variable, entry.variable)
                for own, entry in zip(states[stage], states[first], strict=True)
                if entry.stage is None
            ]
            for stage in states
            if stage != first
        },
    )


def _weights(model: keras.Model, owners: Mapping[int, int]) -> list[Entry]:
    trainable = {id(variable) for variable in model.trainable_variables}
    return [
        Entry(
            variable=variable,
            stage=owners[id(variable)],
            shape=tuple(variable.shape),
            dtype=str(variable.dtype),
            is_statistic=id(variable) not in trainable,
        )
        for variable in model.variables
    ]
