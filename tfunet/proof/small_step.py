"""A small step, made ready to be taken both ways."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Launch
from tfunet.data.pipeline import truth_of
from tfunet.inside.of_keras import all_layers, seed_generators
from tfunet.learning.pass_states import changed_by_passes
from tfunet.proof import differences, small
from tfunet.proof.differences import Difference
from tfunet.proof.left_out import DRAWS, has_inner, leave_out, left_out
from tfunet.proof.step import STEP, Taken, fed, take_in_parts, take_whole, values_of
from tfunet.single_device import SingleDevice
from tfunet.state.shared_slot import with_slots
from tfunet.training.attempt import Attempt
from tfunet.training.network import Network, assemble, complete
from tfunet.training.placing import Placing
from tfunet.training.run_data import RunData
from tfunet.training.whole import Whole

# What tells a change of a variable from rounding, as a share of its largest number.
LEAST_CHANGE = {"float64": 1e-6, "float32": 1e-2}
# A gradient that is this share of the largest may be nothing but rounding.
SMALL = {"float64": 1e-3, "float32": 1e-2}
# Different random numbers for the weights of a variable.
NOISE = 10_007
EPSILON = 2.0**-23


@final
class ProofTrial:
    """A step of small copies of a run's network.

    Args:
        attempt, data: A run on small samples, which is as the run in all else.
        network: The run's own.
        dtype: Type of all weights and tensors.

    Attributes:
        left_out: The layers that are left out, by number; see `left_out`.
        num_steps: Two where a state may differ first, and then what hangs on it.
        compared: What weights were before the last step on one device, and what it gave.
    """

    def __init__(self, attempt: Attempt, data: RunData, network: Network, dtype: str) -> None:
        self.attempt, self.data, self.network, self.dtype = attempt, data, network, dtype
        patch = data.task.patch
        images, truth = small.real_samples(data, patch, attempt.config.global_samples)
        # Whole numbers stay: masks, tokens, classes.
        self._images, self._truth = (
            of_dtype(images, dtype),
            {name: of_dtype(value, dtype) for name, value in truth.items()},
        )
        self.left_out = left_out(network.model, attempt.config)
        self.compared: tuple[list[np.ndarray], Taken] = [], Taken()
        self.num_steps = 2 if changed_by_passes([network.model]) else 1

    def leave_out_too(self, operation: int, *, is_random: bool) -> bool:
        """Leave out a layer, by its number among operations, if it draws random numbers.

        Returns whether it was not left out before.
        """
        number = operation + 1  # The model itself comes first among its layers.
        layers = all_layers(self.network.model)
        if not is_random or number >= len(layers) or number in self.left_out:
            return False
        self.left_out[number] = DRAWS
        return True

    def in_parts(self) -> Network:
        """Return a copy that steps as the run does; called by all processes together."""
        attempt, data = self.attempt, self.data
        network = self._made(attempt, data, self.network.placing.alike(attempt, data))
        _move_weights(network)
        network.held.share()
        return network

    def whole(self, values: Sequence[np.ndarray] | None = None) -> Network:
        """Return a copy for one device; with these values of its weights, if they are given."""
        config = self.attempt.config
        rate = config.learning_rate * (config.num_replicas if config.scale_learning_rate else 1)
        alone = replace(
            config,
            backend="single",
            backend_options={},
            num_replicas=1,
            processes=None,
            split=(),
            stages=1,
            micro_batches=1,
            recompute=False,
            schedule="1f1b",
            balance="time",
            tiling=(),
            accumulation=1,
            zero=0,
            global_batch=config.global_samples,
            replica_batch=None,
            learning_rate=rate,
            scale_learning_rate=False,
        )
        backend: Any = SingleDevice(Launch())  # It never exchanges.
        attempt = replace(self.attempt, config=alone, backend=backend, topology=backend.start())
        data = replace(self.data, task=replace(self.data.task, config=alone), tiles=None)
        network = self._made(attempt, data, Whole(attempt, data))
        if values is not None:
            for variable, value in zip(self.weights_of(network), values, strict=True):
                variable.assign(value)
        return network

    def _made(self, attempt: Attempt, data: RunData, placing: Placing) -> Network:
        run, made = self.network, assemble(attempt, data, placing)
        leave_out(made.model, self.left_out)
        cut = (slice(1), *map(slice, data.input_shape[:-1]))
        windows = {
            "image": tf.constant(self._images[cut]),
            **{
                key: tf.constant(value[:1] if key == "target" else value[cut])
                for key, value in self._truth.items()
            },
        }
        placed = placing.place(made, windows)
        return complete(
            attempt, data, placing, made, placed, windows, checked=run.preflight, file=run.file
        )

    def weights_of(self, network: Network) -> list[Any]:
        """Return what a copy begins with that is not its optimizers': they begin with nothing."""
        optimizers = network.averaging.optimizers or [network.model.optimizer]
        own = {id(state) for each in optimizers for state in with_slots(each.variables)}
        return [variable for variable in network.variables if id(variable) not in own]

    def values(self, network: Network, *, everywhere: bool = False) -> list[np.ndarray]:
        """Return their values, on the chief or everywhere; called by all processes together."""
        if network.stages is None:
            return values_of(self.weights_of(network))
        num_weights, backend = len(network.model.variables), self.attempt.backend
        values = list(network.held.values())[:num_weights]
        if not everywhere or self.attempt.topology.process_count == 1:
            return values
        given = values or [np.zeros(shape) for shape in network.held.shapes[:num_weights]]
        return [backend.sum(value.astype(np.float64)) for value in given]

    def take_in_parts(self, network: Network, *, looks: bool = True) -> Taken:
        """Take the run's step, and look at the output before; called by all processes together."""
        batches = fed(self.attempt, self.data.tiles, self._images, self._truth)
        return take_in_parts(
            self.attempt,
            self.data,
            network,
            batches,
            self._images[:1] if looks else None,
            self.num_steps,
        )

    def take_whole(self, network: Network, given: Taken) -> Taken:
        """Take the step of one device, whose optimizers are given the gradients of another one."""
        truth = truth_of({key: tf.constant(value) for key, value in self._truth.items()})
        images = tf.constant(self._images)
        outputs = None
        if given.outputs is not None:
            outputs = network.model(images[:1], training=False).numpy()
        taken = take_whole(
            network,
            images,
            truth,
            given.gradients,
            num_steps=self.num_steps,
        )
        taken.outputs = outputs
        return taken

    def differences(
        self, network: Network, before: Sequence[np.ndarray], parts: Taken, whole: Taken
    ) -> list[Difference]:
        """Return how far two steps from the values `before` differ; `network` is a whole one."""
        model, run = network.model, self.network.model
        names = [variable.path for variable in run.variables]
        if len(names) != len(model.variables):
            names = [variable.path for variable in model.variables]
        trained = {id(variable) for variable in model.trainable_variables}
        kinds = ["updates" if id(variable) in trained else "states" for variable in model.variables]
        others = network.variables[len(names) :]
        names += [getattr(variable, "path", "a variable of train_step") for variable in others]
        kinds += ["updates"] * len(others)
        found = []
        if parts.outputs is not None:
            share = differences.share_of(parts.outputs, whole.outputs)
            found.append(Difference(kind="outputs", name="output", share=share))
        return [
            *found,
            *differences.of_losses(parts.losses, whole.losses, STEP),
            *differences.of_gradients(parts.gradients, whole.gradients, names, SMALL[self.dtype]),
            *differences.of_values(
                before, parts.values, whole.values, names, kinds, LEAST_CHANGE[self.dtype]
            ),
        ]

    def draws_anew(self, bound: float) -> bool:
        """Whether one device's step differs from itself once other random numbers are drawn.

        Random numbers of layers stay: they are the same both ways, or left out. Others, as of a
        train_step that draws some, are not. Asked on the chief.
        """
        before, whole = self.compared
        network = self.whole(before)
        layers = [one for one in all_layers(network.model) if not has_inner(one)]
        of_layers = {id(each.state) for layer in layers for each in seed_generators(layer)}
        for variable in network.variables:
            value = keras.ops.convert_to_numpy(variable.value)
            # What random numbers are drawn from is a vector of whole numbers.
            if value.ndim == 1 and value.dtype.kind in "iu" and id(variable) not in of_layers:
                variable.assign(value + 1)
        again = self.take_whole(network, whole)
        found = differences.of_losses(again.losses, whole.losses, STEP)
        return any(not one.share <= bound for one in found)

    def rounding(
        self, before: Sequence[np.ndarray], whole: Taken, found: Sequence[Difference]
    ) -> list[float]:
        """Return by how much each of the differences may be rounding, in float32.

        The step of one device is taken once more, with all weights and images changed in their
        last digit.
        """
        if self.dtype == "float64":
            return [0.0] * len(found)
        images, rng = self._images, np.random.default_rng(0)

        def changed(value: np.ndarray) -> np.ndarray:
            if value.dtype != np.float32:
                return value
            noise = np.resize(rng.uniform(-EPSILON, EPSILON, NOISE), value.shape)
            return (value * (1 + noise)).astype(np.float32)

        values = [changed(value) for value in before]
        self._images = changed(images)
        try:
            network = self.whole(values)
            other = self.take_whole(network, replace(whole, gradients={}))
        finally:
            self._images = images
        other.values = whole.values  # What optimizers make of gradients was given the same ones.
        shares = self.differences(network, before, other, whole)
        by_name = {(one.kind, one.name): one.share for one in shares}
        return [by_name.get((one.kind, one.name), 0.0) for one in found]


def _move_weights(network: Network) -> None:
    """Change all trained weights a little: zeros of a new network would hide what differs."""
    model = network.model
    numbers = {id(variable): number for number, variable in enumerate(model.variables)}
    trained = {id(variable) for variable in model.trainable_variables}
    for variable in network.weights:
        if id(variable) not in trained:
            continue
        value = keras.ops.convert_to_numpy(variable.value)
        rng = np.random.default_rng(numbers[id(variable)])
        noise = np.resize(rng.standard_normal(NOISE), value.shape).astype(value.dtype)
        variable.assign(np.where(value == 0, 0.02 * noise, value * (1 + 0.1 * noise)))


def of_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in this type if it holds numbers with a fraction."""
    return array.astype(dtype) if array.dtype.kind == "f" else array


def finite(losses: dict[str, Any]) -> bool:
    """Whether all losses and metrics are numbers."""
    return bool(np.isfinite(list(losses.values())).all())
