"""The variables of the stages of this process: made on their device only, each with its optimizer.

Stages that are devices of one process have an optimizer each. The first one is the model's. What
belongs to no variable, such as the number of steps and the learning rate, the others take over from
it in each step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.config.run import RunConfig
from tfunet.inside.of_keras import free_value, give_value, has_value, make_value
from tfunet.inside.of_optimizers import adding, assigning_values
from tfunet.parallel.mesh import Mesh
from tfunet.pipeline.network import NodeGraph
from tfunet.pipeline.schedules import homes
from tfunet.state.home import home_of
from tfunet.state.shared import SharedState
from tfunet.state.shared_slot import Sum, with_slots
from tfunet.swap import LargeModelSupport
from tfunet.training.held import EveryVariable, Held
from tfunet.training.stage_variables import Elsewhere, StageVariable, StageVariables


def keep_own(variables: Sequence[Any], owners: Mapping[int, int], stage: int) -> None:
    """Make the variables of a stage, if they have no value yet, and free those of other stages.

    `owners` has the stage of each variable by its id.
    """
    for variable in variables:
        if owners[id(variable)] != stage:
            free_value(variable, Elsewhere(variable.path, owners[id(variable)]))
        elif not has_value(variable):
            make_value(variable)


def place_own(variables: Sequence[Any], owners: Mapping[int, int], devices: Sequence[str]) -> None:
    """Move variables to the devices of their stages; make those that have no value yet there."""
    for variable in variables:
        value = tf.identity(variable.value) if has_value(variable) else None
        with tf.device(devices[owners[id(variable)]]):
            if value is None:
                make_value(variable)
            else:
                give_value(variable, tf.identity(value))


def num_slots(optimizer: keras.Optimizer) -> int:
    """Return how many states an optimizer that is not built keeps of each variable."""
    variable = keras.Variable(np.zeros(()), name="probe")
    states, _ = build_optimizer(optimizer, [variable], {id(variable): 0}, 0)
    return sum(state.stage is not None for state in states)


def build_optimizer(
    optimizer: keras.Optimizer,
    trainable: Sequence[Any],
    owners: Mapping[int, int],
    stage: int,
    sum_over: Sum | None = None,
) -> tuple[list[StageVariable], SharedState | None]:
    """Build an optimizer with the state of one stage's variables; return that of all.

    With `sum_over`, `Backend.sum`, the processes of a stage share it out.

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
    shared = None
    if sum_over is not None:
        shared = SharedState(optimizer, [v for v in trainable if owners[id(v)] == stage], sum_over)

    def add(before: Callable[..., Any], reference: Any, **options: Any) -> Any:
        made = shared.add(before, reference, **options) if shared else before(**options)
        if reference is not None:
            references[id(made)] = of_given[id(reference)]
        return made

    before = {id(variable) for variable in optimizer.variables}
    with adding(optimizer, add), assigning_values(optimizer):
        optimizer.build(given)
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
            StageVariable(
                variable=with_slots([state])[0],
                stage=None if reference is None else owners[id(reference)],
                shape=tuple(state.shape if reference is None else reference.shape),
                dtype=str(state.dtype),
                is_shared=shared is not None and reference is not None,
            )
        )
    return entries, shared


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
        shared: What the processes of this stage share out; None where each has all of it.
        num_holders: Devices that hold a stage.
    """

    held: Held
    entries: Sequence[StageVariable]
    num_weights: int
    optimizers: Mapping[int, keras.Optimizer]
    common: Mapping[int, Sequence[tuple[Any, Any]]]
    shared: SharedState | None = None
    num_holders: int = 1

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
        """Return the bytes of a stage's variables on its device."""
        return sum(
            math.prod(entry.shape)
            * tf.as_dtype(entry.dtype).size
            // (self.num_holders if entry.is_shared else 1)
            for entry in self.entries
            if entry.stage in (None, stage) and home_of(entry.variable) is None
        )

    def common_state(self, stage: int) -> list[tuple[Any, tf.Tensor]]:
        """Return a stage's states that belong to no variable, with what they are to be.

        Called before any stage changes them.
        """
        return [(own, tf.identity(first.value)) for own, first in self.common.get(stage, ())]

    def _is_here(self, entry: StageVariable) -> bool:
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
    zero: int = 0,
    support: LargeModelSupport | None = None,
) -> Owned:
    """Keep the variables of this process's stages, and build the optimizers for them.

    Args:
        owners: The stage of each variable of the model, by its id.
        more: Makes another optimizer like the model's.
        devices: The names of the devices of this process, if it has several stages.
        zero: Whether processes of a stage share out the state of its optimizer.
        support: Takes weights and states off the device that do not fit, if it has one stage.
    """
    names = [devices[device] for device in sorted(devices)]
    first = mesh.stage_of(topology.local_replicas.start)
    optimizers = {first: model.optimizer}
    if devices:
        place_own(model.variables, owners, names)
        optimizers |= {stage: more() for stage in range(1, len(names))}
    else:
        with nullcontext() if support is None else support.making():
            keep_own(model.variables, owners, first)
    weights = _weights(model, owners)
    states: dict[int, list[StageVariable]] = {}
    shared = None
    sum_over = backend.sum if zero and mesh.num_devices > mesh.stages else None

    def build(stage: int) -> None:
        nonlocal shared
        states[stage], shared = build_optimizer(
            optimizers[stage], model.trainable_variables, owners, stage, sum_over
        )

    for stage in optimizers:
        with tf.device(names[stage]) if devices else nullcontext():
            if support is None or devices:
                build(stage)
            else:
                support.take_off(model, partial(build, stage))
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
        common=_common(states, first),
        shared=shared,
        num_holders=mesh.num_devices // mesh.stages,
    )


def _common(
    states: Mapping[int, Sequence[StageVariable]], first: int
) -> dict[int, list[tuple[Any, Any]]]:
    """Return the states of each other stage that belong to no variable, with the first one's."""
    return {
        stage: [
            (own.variable, entry.variable)
            for own, entry in zip(states[stage], states[first], strict=True)
            if entry.stage is None
        ]
        for stage in states
        if stage != first
    }


def owners_of(
    model: keras.Model, graph: NodeGraph, cuts: Sequence[int], config: RunConfig
) -> dict[int, int]:
    """Return the stage of each variable of a model, by its id."""
    # A variable that no layer of the graph has stays with the chief.
    owners = {id(variable): 0 for variable in model.variables}
    for home, (begin, end) in zip(
        homes(config.schedule, config.stages), pairwise(cuts), strict=True
    ):
        for node in graph.nodes[begin:end]:
            owners |= {id(variable): home for variable in node.variables}
    return owners


def _weights(model: keras.Model, owners: Mapping[int, int]) -> list[StageVariable]:
    trainable = {id(variable) for variable in model.trainable_variables}
    return [
        StageVariable(
            variable=variable,
            stage=owners[id(variable)],
            shape=tuple(variable.shape),
            dtype=str(variable.dtype),
            is_statistic=id(variable) not in trainable,
        )
        for variable in model.variables
    ]
