"""A network as a chain of layers with costs, and what a cut of it into stages costs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

# Weight, gradient, and the two averages of Adam.
COPIES_WITH_ADAM = 4


class Variable(NamedTuple):
    """A variable of a layer; the state of a random generator counts as no parameter."""

    num_parameters: int
    num_bytes: int
    is_trainable: bool = True


@dataclass(frozen=True, kw_only=True)
class ChainLayer:
    """A layer, and what it costs for one micro-batch.

    Args:
        reads, makes: Numbers of the tensors that it reads and makes.
        keeps: Numbers of those that its gradient reads; the stage keeps them until then.
        kept_bytes: Size of what its gradient reads and no other layer sees.
        working_bytes: Needed beside what is kept while its gradient is computed.
        variables: By a key that is the same for the same variable.
    """

    name: str
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    reads: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    keeps: frozenset[int] = frozenset()
    kept_bytes: int = 0
    working_bytes: int = 0
    variables: Mapping[int, Variable] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The layers [begin, end) of a chain, on one device.

    Args:
        receives: Bytes of each tensor of an earlier stage that it reads, by number. Each comes
            straight from the stage that made it.
        kept_bytes: What one micro-batch keeps from its forward to its backward pass.
        input_bytes: What it is given of one micro-batch, and keeps where it is recomputed.
        weight_bytes: Size of weights with gradients and the optimizer's averages.
        working_bytes: What the gradients need beyond that while they are computed. When that of a
            layer is, what the layers after it kept is free.
    """

    begin: int
    end: int
    forward_seconds: float
    backward_seconds: float
    num_parameters: int
    receives: Mapping[int, int]
    kept_bytes: int
    input_bytes: int
    weight_bytes: int
    working_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds of both passes of a micro-batch."""
        return self.forward_seconds + self.backward_seconds

    def memory_bytes(self, live: int, *, recompute: bool = False) -> int:
        """Return the memory with so many micro-batches between their two passes.

        With `recompute` all but one of them, which is at work, keep only what they are given.
        """
        if recompute:
            return self.fixed_bytes + self.kept_bytes + (live - 1) * self.input_bytes
        return self.fixed_bytes + live * self.kept_bytes

    @property
    def fixed_bytes(self) -> int:
        """The memory that does not depend on the number of micro-batches."""
        return self.weight_bytes + self.working_bytes


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The layers of a network in the order in which they run.

    Args:
        tensor_bytes: Size of each tensor of one micro-batch, by number.
        inputs: Numbers of the tensors that the network is given: every stage that reads them has
            them.
        copies: Copies of each trainable weight: itself, its gradient, and what the optimizer keeps.
    """

    layers: tuple[ChainLayer, ...]
    tensor_bytes: Sequence[int]
    inputs: frozenset[int] = frozenset()
    copies: int = COPIES_WITH_ADAM

    @cached_property
    def makers(self) -> Mapping[int, int]:
        """The layer that makes each tensor."""
        return {tensor: at for at, layer in enumerate(self.layers) for tensor in layer.makes}

    @cached_property
    def shared(self) -> Mapping[int, str]:
        """Between which layers no cut may be, since they share a variable: names of the layers,
        by position of the cut."""
        spans: dict[int, list[int]] = {}
        for at, layer in enumerate(self.layers):
            for variable in layer.variables:
                spans.setdefault(variable, []).append(at)
        return {
            cut: self.layers[positions[0]].name
            for positions in spans.values()
            for cut in range(positions[0] + 1, positions[-1] + 1)
        }

    @cached_property
    def seconds_before(self) -> Sequence[float]:
        """Time of all layers before each position."""
        return [0.0, *accumulate(layer.seconds for layer in self.layers)]

    @cached_property
    def forward_seconds_before(self) -> Sequence[float]:
        """Time of the forward passes of all layers before each position."""
        return [0.0, *accumulate(layer.forward_seconds for layer in self.layers)]

    @property
    def seconds(self) -> float:
        """Time of all layers, both passes of a micro-batch."""
        return self.seconds_before[-1]

    @cached_property
    def _known_stages(self) -> dict[tuple[int, int], Stage]:
        return {}

    def stage(self, begin: int, end: int) -> Stage:
        """Return the stage of the layers [begin, end)."""
        if (begin, end) not in self._known_stages:
            self._known_stages[begin, end] = self._stage(begin, end)
        return self._known_stages[begin, end]

    def _stage(self, begin: int, end: int) -> Stage:
        layers = self.layers[begin:end]
        variables = {key: variable for layer in layers for key, variable in layer.variables.items()}
        kept: set[int] = set()
        kept_bytes = peak_bytes = 0
        for layer in layers:
            new = layer.keeps - kept
            kept |= new
            kept_bytes += layer.kept_bytes + sum(self.tensor_bytes[tensor] for tensor in new)
            peak_bytes = max(peak_bytes, kept_bytes + layer.working_bytes)
        received = {
            tensor
            for layer in layers
            for tensor in layer.reads
            if self.makers.get(tensor, begin) < begin
        }
        given = {tensor for layer in layers for tensor in layer.reads} & self.inputs
        weight_bytes = sum(
            variable.num_bytes * (self.copies if variable.is_trainable else 1)
            for variable in variables.values()
        )
        return Stage(
            begin=begin,
            end=end,
            forward_seconds=sum(layer.forward_seconds for layer in layers),
            backward_seconds=sum(layer.backward_seconds for layer in layers),
            num_parameters=sum(variable.num_parameters for variable in variables.values()),
            receives={tensor: self.tensor_bytes[tensor] for tensor in sorted(received)},
            kept_bytes=kept_bytes,
            input_bytes=sum(self.tensor_bytes[tensor] for tensor in received | given),
            weight_bytes=weight_bytes,
            working_bytes=peak_bytes - kept_bytes,
        )

    def stages(self, cuts: Sequence[int]) -> tuple[Stage, ...]:
        """Return the stages between the cuts, whose first is 0 and whose last the end."""
        return tuple(self.stage(begin, end) for begin, end in pairwise(cuts))
