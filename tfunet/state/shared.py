"""The state of optimizers, shared out among the devices that hold the same weights (ZeRO).

zero = 1                                 zero = 2
gradients, averaged over devices         each gradient, sent to its owners and averaged there
    |                                        |
    +--> Keras's own `apply`: each device updates the parts that it owns, with their states
            |
            v
each device sends the others the new weights of its parts
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Exchange
from tfunet.inside import of_optimizers
from tfunet.inside.of_keras import clipping_by, clipping_of, trained_by, variable_key
from tfunet.inside.of_tensorflow import updating_alone
from tfunet.learning.averaging import Switch, average_present
from tfunet.state.owners import Part, owned_parts
from tfunet.state.shared_slot import SharedSlot, Sum
from tfunet.state.slices import SlicedOptimizer

Gradients = list[tf.Tensor | None]
# Gradients travel in messages of about so many elements, as they are made: from the last layer on.
MESSAGE = 2**23


@final
class SharedState:
    """The state of one optimizer, which each of several devices has a part of.

    `build` makes it, in the scope of the backend, and `place` gives this process's devices what
    they own; then `update` takes the place of Keras's `apply`.

    Args:
        optimizer: Not built yet.
        variables: What it trains.
        sum_over: `Backend.sum`.
    """

    def __init__(
        self,
        optimizer: keras.Optimizer,
        variables: Sequence[Any],
        sum_over: Sum,
    ) -> None:
        if optimizer.built:
            raise ValueError(
                f"The optimizer {optimizer.name!r} has its state before the run could share it out "
                "among devices. Let the model not build it, or leave out zero."
            )
        self.optimizer = optimizer
        # LossScaleOptimizer has another one.
        self.inner = getattr(optimizer, "inner_optimizer", optimizer)
        self.variables = list(variables)
        self._sum = sum_over
        self._slots: list[list[SharedSlot]] = [[] for _ in self.variables]
        self._unclaimed: list[tuple[str, SharedSlot]] = []

    def build(self) -> None:
        """Build the optimizer without the values of its states."""
        with of_optimizers.adding(self.inner, self.add), of_optimizers.assigning_values(self.inner):
            self.optimizer.build(self.variables)
        if self._unclaimed:
            raise ValueError(
                f"The optimizer {type(self.inner).__name__} keeps the state "
                f"{self._unclaimed[0][1].path!r}, of which it does not say to which variable it "
                "belongs. Choose another optimizer, or leave out zero."
            )

    def add(self, before: Any, reference: Any, **options: Any) -> Any:
        """Add a state, as `of_optimizers.adding` asks for it."""
        at = next((i for i, each in enumerate(self.variables) if each is reference), None)
        shape = tuple(options["shape"])
        if at is None and (reference is not None or shape == ()):
            return before(**options)
        dtype = str(options.get("dtype") or keras.config.floatx())
        slot = SharedSlot(self._sum, str(options.get("name")), shape, dtype)
        made = of_optimizers.add_without_value(before, options, slot)
        slot.path = made.path
        # Adafactor does not say whose a state is, and makes it before one of the same variable.
        self._unclaimed.append((str(options.get("name")), slot))
        if at is not None:
            names = {self.variables[at].name, str(options.get("name"))}
            self._slots[at] += [slot for name, slot in self._unclaimed if name in names]
            self._unclaimed = [pair for pair in self._unclaimed if pair[0] not in names]
        return made

    def place(
        self, devices: Sequence[int], names: Mapping[int, str], *, by_element: bool
    ) -> "SharedState":
        """Give the devices of this process the states that they own.

        Args:
            devices: All that share the state, in order.
            names: Those of this process, with their names for TensorFlow.
            by_element: Whether a device may own a part of a variable.
        """
        sizes = [math.prod(variable.shape) for variable in self.variables]
        costs = [
            sum(math.prod(slot.shape) * tf.as_dtype(slot.dtype).size for slot in slots)
            / max(1, size)
            or 1.0
            for slots, size in zip(self._slots, sizes, strict=True)
        ]
        is_whole = [not by_element or each.constraint is not None for each in self.variables]
        self.devices = list(devices)
        self.parts = dict(
            zip(devices, owned_parts(sizes, costs, len(devices), is_whole=is_whole), strict=True)
        )
        self._updates: dict[int, list[PartUpdate]] = {
            # Without any part, a device still has the states that belong to no variable.
            device: [self._update_of(part, name) for part in self.parts[device]]
            or [WholeUpdate(self.inner)]
            for device, name in names.items()
        }
        return self

    def _update_of(self, part: Part, device: str) -> "PartUpdate":
        variable, slots = self.variables[part.at], self._slots[part.at]
        is_whole = part.end - part.begin == math.prod(variable.shape)
        with tf.device(device if is_whole else "CPU:0"):
            whole = WholeUpdate(self.inner, variable)
        states = (
            whole.slots if is_whole else [_own_part(slot, part, device) for slot in whole.slots]
        )
        for slot, state in zip(slots, states, strict=True):
            begin, end = (0, math.prod(slot.shape)) if is_whole else (part.begin, part.end)
            slot.parts.append((begin, end, state))
        if is_whole:
            return whole
        with tf.device(device):
            return SliceUpdate(self.inner, variable, part, states)

    def apply(self, device: int, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Update what a device owns, by gradients of whole variables or of its parts of them."""
        by_key = {
            variable_key(self.inner, variable): gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        }
        updates = self._updates[device]
        for update in updates:
            key = [variable_key(self.inner, variable) for variable in update.variables]
            update.update([by_key[each] for each in key if each in by_key])
        updates[-1].end_step()


def _own_part(slot: Any, part: Part, device: str) -> tf.Variable:
    """Return a variable on a device with a part of a state, which need not stay."""
    with tf.device("CPU:0"):
        flat = tf.reshape(tf.convert_to_tensor(slot), [-1])[part.begin : part.end]
    with tf.device(device):
        # A copy: these elements may lie in the memory of all.
        return tf.Variable(tf.raw_ops.DeepCopy(x=flat), trainable=False)


class PartUpdate(Protocol):
    """Updates a part of a variable, or of none."""

    @property
    def variables(self) -> Sequence[Any]:
        """The variable, if there is one."""

    def update(self, gradients: Sequence[tf.Tensor]) -> None:
        """Use the clipped gradient of the whole variable or of the part, if it has one."""

    def end_step(self) -> None:
        """Give the optimizer its states that belong to no variable, after the last part."""


@final
class WholeUpdate:
    """Updates whole variables in their place, by an optimizer that trains nothing else."""

    def __init__(self, optimizer: keras.Optimizer, *variables: Any) -> None:
        self.variables, self.slots = variables, list[Any]()

        def add(before: Any, reference: Any, **options: Any) -> Any:
            made = before(**options)
            if reference is not None or tuple(options["shape"]) != ():
                self.slots.append(made)
            return made

        self._optimizer = made = of_optimizers.remade(optimizer)
        with of_optimizers.adding(made, add):
            made.build(list(variables))
        of_optimizers.share_counters(made, optimizer)
        for variable in variables:
            of_optimizers.share_exclusions(made, variable, optimizer, variable)
        own, theirs = (of_optimizers.own_numbers(each) for each in (made, optimizer))
        self._common = [(own[name], theirs[name]) for name in own]

    def update(self, gradients: Sequence[tf.Tensor]) -> None:
        for own, theirs in self._common:
            own.assign(theirs)
        # Without a gradient, as of a frozen weight, only averages of weights change.
        of_optimizers.apply_clipped(
            self._optimizer, list(gradients), self.variables[: len(gradients)]
        )

    def end_step(self) -> None:
        for own, theirs in self._common:
            theirs.assign(own)


@final
class SliceUpdate:
    """Updates a part of a variable, whose states lie in variables of TensorFlow."""

    def __init__(
        self, optimizer: keras.Optimizer, variable: Any, part: Part, states: Sequence[tf.Variable]
    ) -> None:
        self.variables, self._part, self._states = (variable,), part, states
        self._sliced = SlicedOptimizer(optimizer, variable)

    def update(self, gradients: Sequence[tf.Tensor]) -> None:
        begin, end = self._part.begin, self._part.end
        (variable,) = self.variables
        before = tf.reshape(tf.convert_to_tensor(variable), [-1])
        gradient = gradients[0] if gradients else None
        if gradient is not None and gradient.shape != [end - begin]:
            gradient = _sliced(gradient, begin, end)
        states = [tf.convert_to_tensor(state) for state in self._states]
        after, new = self._sliced.update(gradient, before[begin:end], states)
        for state, value in zip(self._states, new, strict=True):
            state.assign(value)
        value = tf.concat([before[:begin], after, before[end:]], 0)
        variable.assign(tf.reshape(value, variable.shape))

    def end_step(self) -> None:
        self._sliced.end_step()


def _sliced(gradient: tf.Tensor, begin: int, end: int) -> tf.Tensor:
    """Return elements of a gradient, flattened.

    The gradient may be an average, or clipped: a tensor times a number. TensorFlow makes one number
    of such factors and the learning rate, which changes last bits, but only where they meet.
    """
    if tf.executing_eagerly():
        return tf.reshape(gradient, [-1])[begin:end]
    product = gradient
    while product.op.type in ("Identity", "IdentityN"):
        product = product.op.inputs[product.value_index]
    if product.op.type in ("Mul", "RealDiv"):
        tensor, number = product.op.inputs
        if number.shape.rank == 0 and tensor.shape == gradient.shape:
            part = tf.reshape(tensor, [-1])[begin:end]
            return part * number if product.op.type == "Mul" else part / number
    return tf.reshape(gradient, [-1])[begin:end]


@final
class SharedUpdates:
    """How the optimizers of a step update what their devices own; see `Averaging.shared`.

    Args:
        states: One for each optimizer.
        gradients: Whether gradients are shared out, too (zero = 2).
        average: Averages them otherwise.
        are_averages: Whether gradients are averages already.
        device: Returns the device that is being traced.
        swap: `SampleGroup.swap` of that device.
    """

    def __init__(
        self,
        states: Sequence[SharedState],
        *,
        gradients: bool,
        average: Switch,
        are_averages: bool = False,
        device: Callable[[], int],
        swap: Exchange,
    ) -> None:
        self._states = {id(state.optimizer): state for state in states}
        self._shares_gradients, self._average = gradients, average
        self._are_averages = are_averages
        self._device, self._swap = device, swap

    def __call__(
        self,
        optimizer: keras.Optimizer,
        gradients: Gradients,
        variables: Sequence[Any] | None,
        apply: Callable[[list[Any], Any], None],
    ) -> None:
        """Average gradients, apply an optimizer, and give back new weights; on each device."""
        state, me = self._states[id(optimizer)], self._device()
        trained = trained_by(optimizer) if variables is None else variables
        clipping: AbstractContextManager[Any] = contextlib.nullcontext()
        if self._shares_gradients:
            gradients, clipping = self._at_owners(state, me, gradients, trained)
        elif not self._are_averages:
            gradients = average_present(gradients, self._average)
        moved = [v for g, v in zip(gradients, trained, strict=True) if g is not None]

        def update(given: Sequence[Any], of: Sequence[Any]) -> None:
            state.apply(me, clipping_of(state.inner)(list(given)), of)

        with updating_alone():  # All devices will have the same.
            with clipping, of_optimizers.applying_by(state.inner, update):
                apply(gradients, variables)
            if not self._average.is_off:
                self._give_back(state, me, moved)

    def _give_back(self, state: SharedState, me: int, moved: Sequence[Any]) -> None:
        key, inner = variable_key, state.inner
        places = {key(inner, variable): at for at, variable in enumerate(state.variables)}
        chosen = {places[key(inner, variable)] for variable in moved}
        if inner.use_ema and inner.ema_overwrite_frequency:
            chosen = set(places.values())
        values = {at: tf.convert_to_tensor(state.variables[at]) for at in sorted(chosen)}
        own = {
            at: tf.reshape(values[at], [-1])[begin:end]
            for at, begin, end in state.parts[me]
            if at in chosen
        }
        for at, value in self._gathered(state, me, own, values).items():
            state.variables[at].assign(value)

    def _gathered(
        self,
        state: SharedState,
        me: int,
        own: Mapping[int, tf.Tensor],
        like: Mapping[int, tf.Tensor],
    ) -> dict[int, tf.Tensor]:
        """Return whole tensors like others, put together of what each device has of them."""
        others = [device for device in state.devices if device != me]
        whole: dict[int, tf.Tensor] = {}
        for dtype in dict.fromkeys(each.dtype for each in like.values()):
            chosen = [at for at, each in like.items() if each.dtype == dtype]
            parts = {
                device: [part for part in state.parts[device] if part.at in chosen]
                for device in state.devices
            }
            given = [own[part.at] for part in parts[me]]
            came = self._packed(
                dict.fromkeys(others, given),
                {device: [end - begin for _, begin, end in parts[device]] for device in others},
                dtype,
            )
            came[me] = given
            # Devices own adjacent parts of a variable in their order.
            pieces: dict[int, list[tf.Tensor]] = {at: [] for at in chosen}
            for device in state.devices:
                for part, value in zip(parts[device], came[device], strict=True):
                    pieces[part.at].append(value)
            whole |= {at: tf.reshape(tf.concat(pieces[at], 0), like[at].shape) for at in chosen}
        return whole

    def _at_owners(
        self, state: SharedState, me: int, gradients: Gradients, trained: Sequence[Any]
    ) -> tuple[Gradients, AbstractContextManager[Any]]:
        """Return the mean gradients of the parts that a device owns, and what clips them.

        What others own has a number as its gradient.
        """
        inner = state.inner
        places = {variable_key(inner, each): at for at, each in enumerate(state.variables)}
        index = [places[variable_key(inner, variable)] for variable in trained]
        given = {
            at: tf.convert_to_tensor(gradient)
            for at, gradient in zip(index, gradients, strict=True)
            if gradient is not None
        }
        means: dict[int, tf.Tensor] = {}
        for message in _messages(given):
            means |= self._means_of(state, me, message)
        sums, breaks = self._over_all(state, me, means, sorted(given))
        if tf.executing_eagerly():  # The proof of a step looks at whole gradients.
            means = self._gathered(state, me, means, given)
        scale = state.optimizer.scale_loss(1.0)
        found: Gradients = []
        for at, variable in zip(index, trained, strict=True):
            if at not in given:
                found.append(None)
                continue
            part = means.get(at, tf.zeros((), given[at].dtype))
            if part.shape == [math.prod(variable.shape)]:
                part = tf.reshape(part, variable.shape)
            found.append(part if breaks is None else tf.where(breaks, part * np.nan, part))
        norms = {at: tf.sqrt(value) / scale for at, value in sums.items()}
        order = [norms[at] for at in index if at in norms]
        return found, _clipping_by_norms(inner, order)

    def _means_of(
        self, state: SharedState, me: int, gradients: Mapping[int, tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Return the means over devices of the parts that a device owns of some gradients."""
        dtype = next(iter(gradients.values())).dtype
        parts = {
            device: [part for part in state.parts[device] if part.at in gradients]
            for device in state.devices
        }
        cut = {
            device: [tf.reshape(gradients[at], [-1])[begin:end] for at, begin, end in parts[device]]
            for device in state.devices
        }
        others = [device for device in state.devices if device != me]
        if self._average.is_off:
            came = dict.fromkeys(others, cut[me])
        else:
            sizes = [end - begin for _, begin, end in parts[me]]
            # Not before its own are made, too: an exchange may hold the only thread, and layers of
            # all devices exchange something to make those that the others send.
            with tf.control_dependencies(list(gradients.values())):
                came = self._packed(
                    {device: cut[device] for device in others}, dict.fromkeys(others, sizes), dtype
                )
        came[me] = cut[me]
        return {
            part.at: tf.add_n([came[device][i] for device in state.devices]) / len(state.devices)
            for i, part in enumerate(parts[me])
        }

    def _over_all(
        self, state: SharedState, me: int, means: Mapping[int, tf.Tensor], order: Sequence[int]
    ) -> tuple[dict[int, tf.Tensor], tf.Tensor | None]:
        """Return the sums of the squares of whole gradients, if they are needed to clip them, and
        whether any is not finite, if the loss is scaled.
        """
        clips = _clips_by_norm(state.inner)
        scales = state.inner is not state.optimizer
        if not clips and not scales:
            return {}, None
        squares = [
            tf.reduce_sum(tf.cast(means[at], tf.float32) ** 2) if at in means else tf.zeros(())
            for at in order
        ]
        broken = [
            tf.cast(tf.reduce_any(~tf.math.is_finite(mean)), tf.float32) for mean in means.values()
        ]
        own = tf.stack([*squares, tf.add_n([tf.zeros(()), *broken])])
        others = [device for device in state.devices if device != me]
        came = {}
        if not self._average.is_off:
            shapes = dict.fromkeys(others, own.shape.as_list())
            came = self._swap(dict.fromkeys(others, own), shapes, own.dtype)
        *sums, count = tf.unstack(tf.add_n([came.get(device, own) for device in state.devices]))
        of_variables = dict(zip(order, sums, strict=True))
        return of_variables if clips else {}, count > 0 if scales else None

    def _packed(
        self,
        sent: Mapping[int, Sequence[tf.Tensor]],
        received: Mapping[int, Sequence[int]],
        dtype: Any,
    ) -> dict[int, list[tf.Tensor]]:
        """Exchange one message with each other device; `received` has the sizes of its tensors."""
        came = self._swap(
            {device: tf.concat(list(values), 0) for device, values in sent.items() if values},
            {device: [sum(sizes)] for device, sizes in received.items() if sizes},
            tf.as_dtype(dtype),
        )
        return {
            device: tf.split(came[device], list(sizes)) if sizes else []
            for device, sizes in received.items()
        }


def _clips_by_norm(optimizer: keras.Optimizer) -> bool:
    """Whether an optimizer clips gradients by a norm; as for Keras, 0 and false are off."""
    return any((limit or 0) > 0 for limit in (optimizer.clipnorm, optimizer.global_clipnorm))


def _clipping_by_norms(
    optimizer: keras.Optimizer, norms: Sequence[tf.Tensor]
) -> AbstractContextManager[None]:
    """Have an optimizer clip parts of gradients as whole ones of these norms."""
    if not _clips_by_norm(optimizer):
        return contextlib.nullcontext()
    if limit := optimizer.clipnorm:
        scales = [limit / tf.maximum(norm, limit) for norm in norms]
    else:
        limit, norm = optimizer.global_clipnorm, tf.sqrt(tf.add_n([norm**2 for norm in norms]))
        scales = [limit * tf.minimum(1.0 / norm, 1.0 / limit)] * len(norms)

    def clip(gradients: list[Any]) -> list[Any]:
        pairs = zip(gradients, scales, strict=True)
        return [gradient * tf.cast(scale, gradient.dtype) for gradient, scale in pairs]

    return clipping_by(optimizer, clip)


def _messages(gradients: Mapping[int, tf.Tensor]) -> Iterator[dict[int, tf.Tensor]]:
    """Yield gradients of one type, from the last on, about a message together."""
    rows = sorted(gradients.items(), reverse=True)
    for _, same in itertools.groupby(rows, key=lambda row: row[1].dtype):
        message: dict[int, tf.Tensor] = {}
        for at, gradient in same:
            message[at] = gradient
            if sum(each.shape.num_elements() for each in message.values()) >= MESSAGE:
                yield message
                message = {}
        if message:
            yield message
