"""Runs a step through stages in one process: micro-batch by micro-batch, in a schedule's order.

A stage knows only what it reads and makes. Each of its forward passes has a gradient tape of its
own; its backward pass asks that tape for the gradients of its inputs and variables, from the
gradients that the readers of its outputs send. Nothing is differentiated across stages, so that
each may live in another process.

A recomputed pass keeps only what it read. Before its backward pass it runs again, with a tape, from
the states that it began with: the counts of random layers, and the statistics of normalisations.
Then these are as they were.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from tfunet.learning.pass_states import PassStates, changed_by_passes
from tfunet.parallel.part import own_tensor
from tfunet.pipeline.network import Network, Node
from tfunet.pipeline.noise import Draws, check_repeatable, is_noise
from tfunet.pipeline.rounds import Traffic
from tfunet.pipeline.schedules import Action, Orders, waiting
from tfunet.pipeline.statistics import DeferredStatistics, not_synchronized

# The mean loss over the samples of a micro-batch, from its targets and outputs.
Loss = Callable[[Any, Any], tf.Tensor]
# A tape, what it watches beside variables, and what it has seen made of that.
Taped = tuple[tf.GradientTape, list[tf.Tensor], list[tf.Tensor]]


def _taped(run: Callable[[], list[tf.Tensor]], inputs: list[tf.Tensor]) -> Taped:
    with tf.GradientTape() as tape:
        tape.watch([tensor for tensor in inputs if tensor.dtype.is_floating])
        targets = run()
    return tape, inputs, targets


class StageStep:
    """The passes of one stage in one step.

    Args:
        nodes: Nodes of the stage.
        reads: Numbers of the tensors that it gets: the network's inputs first, then those of
            earlier stages.
        gives: Numbers of those that later stages read.
        results: Numbers of the network's outputs if this is the last stage, which has the loss.
        deferred: Whether moving statistics of batch normalisation change once a step.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        given: Sequence[int] = (),
        reads: Sequence[int] = (),
        gives: Sequence[int] = (),
        results: Sequence[int] = (),
        deferred: bool = False,
    ) -> None:
        self.nodes, self.given, self.reads, self.gives = nodes, given, reads, gives
        self.results = results
        self.layers = list({id(node.operation): node.operation for node in nodes}.values())
        trained = [variable for node in nodes for variable in node.trainable_variables]
        self.variables = list({id(variable): variable for variable in trained}.values())
        others = [variable for node in nodes for variable in node.variables]
        others = [
            variable
            for variable in others
            if not any(variable is other for other in self.variables)
        ]
        self.states = list({id(variable): variable for variable in others}.values())
        self.draws = Draws(self.layers)
        self._pass_states = PassStates(changed_by_passes(self.layers))
        self.statistics = DeferredStatistics(self.layers if deferred else ())
        self.begin(1)

    def begin(self, micro_batches: int, recomputed: Collection[int] = ()) -> None:
        """Forget the step before, and begin one of so many micro-batches.

        `recomputed` has the micro-batches whose forward pass runs again before the backward one.
        """
        self.micro_batches, self.recomputed = micro_batches, frozenset(recomputed)
        self.draws.begin()
        self._pass_states.begin()
        self.statistics.begin()
        self.sums: list[tf.Tensor | None] = [None] * len(self.variables)
        self.kept: dict[int, Callable[[], Taped]] = {}
        self.losses: list[tf.Tensor] = []

    def forward(
        self, number: int, values: Mapping[int, tf.Tensor], loss: Callable[[Any], tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Run a micro-batch, keep what its gradient needs, and return what later stages read.

        `loss` is called again where the pass is recomputed.
        """
        inputs = [values[at] for at in self.reads]
        given = {at: values[at] for at in self.given}

        def run() -> list[tf.Tensor]:
            with self.statistics.noted(number):
                return self._run(number, given | dict(zip(self.reads, inputs, strict=True)), loss)

        self.draws.repeat(number)
        with self._pass_states.one_pass():
            if number in self.recomputed:
                self.kept[number] = self._again(run, inputs)
                is_first = number == min(self.recomputed)
                with check_repeatable(self.states) if is_first else contextlib.nullcontext():
                    targets = run()
            else:
                taped = _taped(run, inputs)
                self.kept[number] = lambda: taped
                _, _, targets = taped
        self.losses += targets[len(self.gives) :]
        return dict(zip(self.gives, targets, strict=False))

    def _run(
        self, number: int, known: dict[int, tf.Tensor], loss: Callable[[Any], tf.Tensor]
    ) -> list[tf.Tensor]:
        """Return what later stages read, then the loss if this stage has a part of it."""
        with not_synchronized(self.layers):
            for node in self.nodes:
                if is_noise(node.operation):
                    node.run_noise(known, number, self.micro_batches)
                else:
                    node.run(known, training=True)
        terms = [term for layer in self.layers for term in getattr(layer, "losses", [])]
        if self.results:
            outputs = [own_tensor(known[at]) for at in self.results]
            terms.append(loss(outputs[0] if len(outputs) == 1 else outputs))
        given = [own_tensor(known[at]) for at in self.gives]
        return [*given, *([tf.add_n(terms)] if terms else [])]

    def _again(
        self, run: Callable[[], list[tf.Tensor]], inputs: list[tf.Tensor]
    ) -> Callable[[], Taped]:
        """Return what makes a pass again that begins now."""
        before = self._now()

        def again() -> Taped:
            after = self._now()
            self._set(before)
            taped = _taped(run, inputs)
            self._set(after)
            return taped

        return again

    def _now(self) -> list[tf.Tensor]:
        return [tf.identity(state.value) for state in self.states]

    def _set(self, values: Sequence[tf.Tensor]) -> None:
        for state, value in zip(self.states, values, strict=True):
            state.assign(value)

    def predict(self, values: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Run samples without training, and return what later stages read and the results."""
        known = {at: values[at] for at in (*self.given, *self.reads)}
        for node in self.nodes:
            node.run(known, training=False)
        return {at: own_tensor(known[at]) for at in (*self.gives, *self.results)}

    def backward(
        self, number: int, gradients: Mapping[int, tf.Tensor | None]
    ) -> dict[int, tf.Tensor | None]:
        """Add the gradients of the variables, free what was kept, and return those of what it
        read."""
        tape, inputs, targets = self.kept.pop(number)()
        asked = [gradients.get(at) for at in self.gives] + [None] * len(targets)
        pairs = [
            # The last target is the loss.
            (target, tf.ones_like(target) if at >= len(self.gives) else given)
            for at, (target, given) in enumerate(zip(targets, asked, strict=False))
            if at >= len(self.gives) or given is not None
        ]
        values = [variable.value for variable in self.variables]
        if not pairs:
            return dict.fromkeys(self.reads)
        of_inputs, of_variables = tape.gradient(
            [target for target, _ in pairs],
            [inputs, values],
            output_gradients=[given for _, given in pairs],
        )
        for at, gradient in enumerate(of_variables):
            if gradient is not None:
                before, dense = self.sums[at], tf.convert_to_tensor(gradient)
                self.sums[at] = dense if before is None else before + dense
        return dict(zip(self.reads, of_inputs, strict=True))

    def end(self) -> None:
        """End a step, all passes of which were made."""
        self._pass_states.end()
        self.statistics.end()


class StagedStep:
    """A step of a network in stages.

    Args:
        network: All of it.
        cuts: Where each stage begins, and the end; see `tfunet.pipeline.balance`.
        deferred: Change the moving statistics of batch normalisation once a step, by those of the
            whole batch, instead of once for each micro-batch.

    Attributes:
        peak_kept: The most micro-batches that each stage kept at once.

    Raises ValueError if two stages would share a variable, or statistics cannot be deferred.
    """

    def __init__(self, network: Network, cuts: Sequence[int], *, deferred: bool = False) -> None:
        self.network = network
        parts = [network.nodes[begin:end] for begin, end in pairwise(cuts)]
        _check_not_shared(parts)
        _check_activity(network)
        makers = {
            at: stage for stage, nodes in enumerate(parts) for node in nodes for at in node.makes
        }
        wanted = [{at for node in nodes for at in node.reads} for nodes in parts]
        wanted[-1] |= set(network.outputs)
        self.readers = {
            at: [reader for reader, ats in enumerate(wanted) if reader > maker and at in ats]
            for at, maker in makers.items()
        }
        self.makers = makers
        self.stages = [
            StageStep(
                nodes,
                given=[at for at in network.inputs if at in wanted[stage]],
                reads=[at for at in sorted(wanted[stage]) if makers.get(at, stage) < stage],
                gives=[at for at in makers if makers[at] == stage and self.readers[at]],
                results=network.outputs if stage == len(parts) - 1 else (),
                deferred=deferred,
            )
            for stage, nodes in enumerate(parts)
        ]
        self.peak_kept = [0] * len(self.stages)
        # By micro-batch, tensor and reader.
        self._sent: dict[tuple[int, int, int], tf.Tensor] = {}
        self._back: dict[tuple[int, int, int], tf.Tensor | None] = {}

    @property
    def traffic(self) -> Traffic:
        """What crosses from stage to stage."""
        crossing = {at: readers for at, readers in self.readers.items() if readers}
        trained = {at for at in crossing if tf.as_dtype(self.network.tensors[at].dtype).is_floating}
        return Traffic(makers=self.makers, readers=crossing, trained=trained)

    def run(
        self,
        orders: Orders,
        inputs: Sequence[tf.Tensor],
        targets: Any,
        loss: Loss,
        *,
        recompute: bool = False,
    ) -> tuple[tf.Tensor, list[tuple[Any, tf.Tensor | None]]]:
        """Return the loss, and each trainable variable with its gradient: means of micro-batches.

        Args:
            orders: What each device does; see `tfunet.pipeline.schedules`.
            inputs: Inputs of the network, (batch, ...) each.
            targets: A tensor (batch, ...), or several in any structure.
            recompute: Keep only what stages read of micro-batches that wait, and run them again.

        Raises ValueError if the batch cannot be cut into the micro-batches of the orders, or if the
        devices would wait for each other for ever.
        """
        count = 1 + max(action.micro_batch for order in orders for action in order)
        batch = inputs[0].shape[0]
        if batch % count:
            raise ValueError(
                f"A batch of {batch} samples cannot be cut into {count} micro-batches of as many "
                "samples each. Choose a divisor of the batch."
            )
        parts = [
            keras.tree.map_structure(
                lambda one, number=number: tf.split(one, count)[number], (list(inputs), targets)
            )
            for number in range(count)
        ]
        self._sent.clear()
        self._back.clear()
        again = waiting(orders) if recompute else {}
        for chunk, stage in enumerate(self.stages):
            stage.begin(count, again.get(chunk, ()))
        left = [list(order) for order in orders]
        while any(left):
            went_on = False
            for order in left:
                while order and self._can_run(order[0]):
                    action = order.pop(0)
                    if action.kind == "forward":
                        own_inputs, own_targets = parts[action.micro_batch]
                        self._forward(action, own_inputs, own_targets, loss)
                    else:
                        self._backward(action)
                    went_on = True
            if not went_on:
                raise ValueError("The devices would wait for each other for ever in these orders.")
        for stage in self.stages:
            stage.end()
        losses = [value for stage in self.stages for value in stage.losses]
        return tf.add_n(losses) / count, [
            (variable, None if total is None else total / count)
            for stage in self.stages
            for variable, total in zip(stage.variables, stage.sums, strict=True)
        ]

    def _can_run(self, action: Action) -> bool:
        kind, chunk, number = action
        stage = self.stages[chunk]
        if kind == "forward":
            return all((number, at, chunk) in self._sent for at in stage.reads)
        return number in stage.kept and all(
            (number, at, reader) in self._back for at in stage.gives for reader in self.readers[at]
        )

    def _forward(
        self, action: Action, inputs: Sequence[tf.Tensor], targets: Any, loss: Loss
    ) -> None:
        _, chunk, number = action
        stage = self.stages[chunk]
        values = {at: self._sent.pop((number, at, chunk)) for at in stage.reads}
        values |= dict(zip(self.network.inputs, inputs, strict=True))
        given = stage.forward(number, values, lambda outputs: loss(targets, outputs))
        for at, value in given.items():
            for reader in self.readers[at]:
                self._sent[number, at, reader] = value
        self.peak_kept[chunk] = max(self.peak_kept[chunk], len(stage.kept))

    def _backward(self, action: Action) -> None:
        _, chunk, number = action
        stage = self.stages[chunk]
        gradients = {
            at: _sum([self._back.pop((number, at, reader)) for reader in self.readers[at]])
            for at in stage.gives
        }
        for at, gradient in stage.backward(number, gradients).items():
            self._back[number, at, chunk] = gradient


def _sum(gradients: Sequence[tf.Tensor | None]) -> tf.Tensor | None:
    known = [gradient for gradient in gradients if gradient is not None]
    return tf.add_n(known) if known else None


def _check_not_shared(parts: Sequence[Sequence[Node]]) -> None:
    owners: dict[int, int] = {}
    for stage, nodes in enumerate(parts):
        for node in nodes:
            for variable in node.variables:
                if owners.setdefault(id(variable), stage) != stage:
                    raise ValueError(
                        f"The layer {node.name!r} shares the variable {variable.path!r} with a "
                        "layer of another stage. Cut elsewhere, so that both are in one stage."
                    )


def _check_activity(network: Network) -> None:
    """Refuse a layer that is called often and adds a loss in each call: only the last is known."""
    calls = Counter(id(node.operation) for node in network.nodes)
    for node in network.nodes:
        has_losses = getattr(node.operation, "activity_regularizer", None) is not None
        if has_losses and calls[id(node.operation)] > 1:
            raise ValueError(
                f"The layer {node.name!r} is called {calls[id(node.operation)]} times and has an "
                "activity regularizer, whose losses stages cannot add up. Use a layer for each "
                "call."
            )
