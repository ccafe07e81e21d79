"""The passes of one chunk of a network: micro-batch by micro-batch.

A chunk is a stage, or with schedule "v" half of what a device has. It knows only what it reads and
makes. Each of its forward passes has a gradient tape of its own; its backward pass asks that tape
for the gradients of its inputs and variables, from the gradients that the readers of its outputs
send. Nothing is differentiated across chunks, so that each may live in another process.

A recomputed pass keeps only what it read. Before its backward pass it runs again, with a tape, from
the states that it began with: the counts of random layers, and the statistics of normalisations.
Then these are as they were.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, final

import tensorflow as tf

from tfunet.learning.pass_states import PassStates, changed_by_passes
from tfunet.parallel.part import own_tensor
from tfunet.pipeline.network import Node, NodeGraph
from tfunet.pipeline.noise import Draws, check_repeatable, is_noise
from tfunet.pipeline.rounds import ChunkTraffic
from tfunet.pipeline.statistics import DeferredStatistics, not_synchronized

# A tape, what it watches beside variables, and what it has seen made of that.
Taped = tuple[tf.GradientTape, list[tf.Tensor], list[tf.Tensor]]


def _taped(run: Callable[[], list[tf.Tensor]], inputs: list[tf.Tensor]) -> Taped:
    with tf.GradientTape() as tape:
        tape.watch([tensor for tensor in inputs if tensor.dtype.is_floating])
        targets = run()
    return tape, inputs, targets


@final
class Chunk:
    """The layers of a chunk, and their passes in a step.

    Args:
        nodes: Its nodes.
        reads: Numbers of the tensors that it gets: the network's inputs first, then those of
            earlier chunks.
        gives: Numbers of those that later chunks read.
        results: Numbers of the network's outputs if this is the last chunk, which has the loss.
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
        """Run a micro-batch, keep what its gradient needs, and return what later chunks read.

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
        """Return what later stages read, then the loss if this chunk has a part of it."""
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
        """Run samples without training, and return what later chunks read and the results."""
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


def traffic_of(network: NodeGraph, cuts: Sequence[int]) -> ChunkTraffic:
    """Return what crosses from chunk to chunk; `cuts` has where each begins, and the end."""
    wanted = _wanted(network, cuts)
    makers = {
        at: chunk
        for chunk, (begin, end) in enumerate(pairwise(cuts))
        for node in network.nodes[begin:end]
        for at in node.makes
    }
    readers = {
        at: [chunk for chunk, ats in enumerate(wanted) if chunk > maker and at in ats]
        for at, maker in makers.items()
    }
    crossing = {at: chunks for at, chunks in readers.items() if chunks}
    trained = {at for at in crossing if tf.as_dtype(network.tensors[at].dtype).is_floating}
    return ChunkTraffic(makers=makers, readers=crossing, trained=trained)


def chunks_of(network: NodeGraph, cuts: Sequence[int], *, deferred: bool = False) -> list[Chunk]:
    """Return the chunks of a network.

    Args:
        network: All of it; where samples are split, that of a device's part.
        cuts: Where each chunk begins, and the end; see `tfunet.pipeline.balance`.
        deferred: Change the moving statistics of batch normalisation once a step, by those of the
            whole batch, instead of once for each micro-batch.

    Raises ValueError if two chunks would share a variable, or statistics cannot be deferred.
    """
    parts = [network.nodes[begin:end] for begin, end in pairwise(cuts)]
    _check_not_shared(parts)
    _check_activity(network)
    wanted, traffic = _wanted(network, cuts), traffic_of(network, cuts)
    return [
        Chunk(
            nodes,
            given=[at for at in network.inputs if at in wanted[chunk]],
            reads=[at for at in sorted(wanted[chunk]) if traffic.makers.get(at, chunk) < chunk],
            gives=[at for at in traffic.readers if traffic.makers[at] == chunk],
            results=network.outputs if chunk == len(parts) - 1 else (),
            deferred=deferred,
        )
        for chunk, nodes in enumerate(parts)
    ]


def _wanted(network: NodeGraph, cuts: Sequence[int]) -> list[set[int]]:
    """Return the tensors that each chunk reads; those of the last one have the results, too."""
    wanted = [
        {at for node in network.nodes[begin:end] for at in node.reads}
        for begin, end in pairwise(cuts)
    ]
    wanted[-1] |= set(network.outputs)
    return wanted


def _check_not_shared(parts: Sequence[Sequence[Node]]) -> None:
    owners: dict[int, int] = {}
    for chunk, nodes in enumerate(parts):
        for node in nodes:
            for variable in node.variables:
                if owners.setdefault(id(variable), chunk) != chunk:
                    raise ValueError(
                        f"The layer {node.name!r} shares the variable {variable.path!r} with a "
                        "layer of another stage. Cut elsewhere, so that both are in one stage."
                    )


def _check_activity(network: NodeGraph) -> None:
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
