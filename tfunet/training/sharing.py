"""The optimizers of a run whose devices share out their state."""

from collections.abc import Sequence
from typing import Any, final

import keras

from tfunet.learning.averaging import Instead, Switch
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.group import SampleGroup
from tfunet.state.shared import SharedState, SharedUpdates
from tfunet.state.slots import granularity
from tfunet.training import state
from tfunet.training.attempt import Attempt
from tfunet.training.traced_device import names_of_devices, traced_device


@final
class Sharing:
    """Builds the optimizers of a run whose devices have the whole network each.

    Args:
        exchange: What its devices exchange tensors by already, if anything.
    """

    def __init__(self, attempt: Attempt, exchange: ExchangeSwitch | None) -> None:
        self._attempt, self._exchange = attempt, exchange
        self._states: list[SharedState] = []

    def build(self, optimizer: keras.Optimizer, variables: Sequence[Any]) -> None:
        """Build an optimizer, in the scope of the backend."""
        if not self._attempt.config.zero:
            optimizer.build(variables)
            return
        shared = SharedState(optimizer, variables, self._attempt.backend.sum)
        shared.build()
        self._states.append(shared)

    def updates(self, average: Switch, weights: Sequence[Any]) -> Instead | None:
        """Return what updates the `weights`; None where each device has all states.

        Called by all processes together.
        """
        attempt, topology = self._attempt, self._attempt.topology
        if not self._states:
            return None
        # What states begin with may be the weights.
        state.broadcast(attempt.backend, topology, weights)
        names = names_of_devices(attempt.backend)
        local = topology.local_replicas
        if len(local) == 1:
            names = {local.start: next(iter(names.values()))}
        for shared in self._states:
            by_element = granularity(shared.inner) == "element"
            shared.place(range(topology.num_replicas), names, by_element=by_element)
        switch = self._exchange
        exchange = attempt.exchange("zero") if switch is None else switch.plain

        def device() -> int:
            return local.start if len(local) == 1 else traced_device()

        return SharedUpdates(
            self._states,
            gradients=attempt.config.zero == 2,
            average=average,
            device=device,
            swap=SampleGroup(mesh=attempt.mesh, device=local.start, exchange=exchange).swap,
        )
