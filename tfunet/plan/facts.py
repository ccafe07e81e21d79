"""What is known of a run before it is planned: its network's costs, borders and samples. Pure."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, final

from tfunet.config.amount import MIB
from tfunet.parallel.mesh import even_bounds
from tfunet.pipeline.chain import Chain, ChainLayer

# Costs of more samples at once follow from those of fewer.
MOST_SAMPLES = 16
# Exchanges of the loss and its gradient, where samples are split.
LOSS_EXCHANGES = 3


def sample_counts(global_samples: int) -> list[int]:
    """Return for how many samples at once costs are gathered."""
    return sorted({1, max(2, min(global_samples, MOST_SAMPLES))})


@final
@dataclass(frozen=True, kw_only=True)
class Border:
    """What a layer needs of the other parts of a sample, where samples are split.

    Args:
        num_bytes: Size of what it reads, of one sample.
        rows: Rows that it reads of others along each axis, before and after its own together.
        extents: Rows of what it reads along each axis.
        is_shared: Whether these rows come with the statistics of a normalization before it, if
            samples are cut along one axis.
        has_statistics: Whether it normalizes by statistics of whole samples. `rows` are then those
            of the layer that shares its exchange.
        is_gathered: Whether it runs on whole tensors, on every device.
    """

    num_bytes: int
    rows: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()
    is_shared: bool = False
    has_statistics: bool = False
    is_gathered: bool = False
    layer: int = 0


class Update(NamedTuple):
    """What the optimizer costs: its states of each weight, and the seconds of all weights.

    `zero` says whether devices share that out, as in a configuration.
    """

    slots: int
    seconds: float
    zero: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run.

    Args:
        model: Its name.
        patch: Spatial shape of a sample.
        tiled_patch: The same with tiling, which takes whole images where no patch is given.
        sample_bytes: Size of a sample and its truth.
        sample_seconds: Seconds in which a core prepares a sample.
        num_samples: Training samples of an epoch.
        global_samples: Samples of a step.
        costs: By the cores of a device (0 where it is no CPU): the chains of the network for so
            many samples at once, fewest first.
        update: The optimizer.
        borders: What layers need where samples are split.
        halo, alignment: As `geometry.receptive_field` has them; empty where they are not known.
        why_no_tiles, why_no_stages, why_no_split: Why no layout can have them; empty where some
            can.
        by_batch: Names of layers with statistics of the samples that a pass takes.
        graph: The layers, for the checks of stages; None without any.
        costs_from: Where times come from, in words.
    """

    model: str
    patch: tuple[int, ...]
    tiled_patch: tuple[int, ...] = ()
    sample_bytes: int
    num_samples: int
    global_samples: int
    costs: Mapping[int, Sequence[tuple[int, Chain]]]
    update: Update
    sample_seconds: float = 0.0
    borders: tuple[Border, ...] = ()
    halo: tuple[int, ...] = ()
    alignment: tuple[int, ...] = ()
    why_no_tiles: str = ""
    why_no_stages: str = ""
    why_no_split: str = ""
    by_batch: tuple[str, ...] = ()
    graph: Any = field(default=None, compare=False, repr=False)
    costs_from: str = ""

    @property
    def num_layers(self) -> int:
        """Layers of the network."""
        return len(self._first.layers)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return max(1, self.num_samples // self.global_samples)

    @property
    def num_parameters(self) -> int:
        """Numbers that the network learns, or keeps."""
        return sum(variable.num_parameters for variable in self._variables.values())

    @cached_property
    def gradient_bytes(self) -> int:
        """Size of the gradients of all weights."""
        return sum(one.num_bytes for one in self._variables.values() if one.is_trainable)

    @cached_property
    def variable_bytes(self) -> int:
        """Size of all variables, and of what the optimizer keeps of them."""
        others = sum(one.num_bytes for one in self._variables.values() if not one.is_trainable)
        return others + (1 + self.update.slots) * self.gradient_bytes

    @cached_property
    def large_weights(self) -> list[int]:
        """Sizes of the weights that may leave the device with their states."""
        sizes = (one.num_bytes for one in self._variables.values() if one.is_trainable)
        return [size for size in sizes if size >= MIB]

    @property
    def _first(self) -> Chain:
        return next(iter(self.costs.values()))[0][1]

    @cached_property
    def _variables(self) -> dict[int, Any]:
        return {key: one for layer in self._first.layers for key, one in layer.variables.items()}

    def cores_known(self, cores: int) -> int:
        """Return the number of cores, among those of `costs`, that is nearest to `cores`."""
        return min(self.costs, key=lambda known: abs(math.log((known or 1) / (cores or 1))))

    @cached_property
    def _chains(self) -> dict[tuple[float, int], Chain]:
        return {}

    def chain(self, samples: float, cores: int = 0) -> Chain:
        """Return the network's costs for so many samples, or parts of one, as known for `cores`."""
        key = (samples, cores)
        if key not in self._chains:
            self._chains[key] = _scaled(self.costs[cores], samples, 2 + self.update.slots)
        return self._chains[key]


def _scaled(known: Sequence[tuple[int, Chain]], samples: float, copies: int) -> Chain:
    """Return a chain for so many samples, on the line through two that are known."""
    (first, low), (last, high) = known[0], known[-1]
    share = (samples - first) / (last - first) if last > first else 0.0

    def between(before: float, after: float) -> float:
        if last == first:
            return before * samples / first
        # Fewer samples than one cost no less than in proportion.
        return max(before + share * (after - before), min(samples / first, 1.0) * before * 0.5)

    def layer(one: ChainLayer, other: ChainLayer) -> ChainLayer:
        return replace(
            one,
            forward_seconds=between(one.forward_seconds, other.forward_seconds),
            backward_seconds=between(one.backward_seconds, other.backward_seconds),
            kept_bytes=int(between(one.kept_bytes, other.kept_bytes)),
            working_bytes=int(between(one.working_bytes, other.working_bytes)),
        )

    return Chain(
        layers=tuple(map(layer, low.layers, high.layers)),
        tensor_bytes=[
            int(samples * num_bytes / first) if at not in low.inputs else int(num_bytes * samples)
            for at, num_bytes in enumerate(low.tensor_bytes)
        ],
        inputs=low.inputs,
        copies=copies,
    )


def pass_bytes(chain: Chain, *, kept_gradients: bool = False) -> int:
    """Return the most bytes that both passes hold beside variables.

    Gradients come while activations go:

        forward   | kept of layer 1 | kept of layer 2 | kept of layer 3 |
        backward  | kept of layer 1 | kept of layer 2 | gradients of 3  |
        backward  | kept of layer 1 | gradients of layers 2 and 3       |

    Args:
        kept_gradients: Whether those of earlier passes are kept, too.
    """
    held: list[int] = []
    kept: set[int] = set()
    total = 0
    for layer in chain.layers:
        new = layer.keeps - kept
        kept |= new
        total += layer.kept_bytes + sum(chain.tensor_bytes[at] for at in new)
        held.append(total)
    sizes = [
        {key: one.num_bytes for key, one in layer.variables.items() if one.is_trainable}
        for layer in chain.layers
    ]
    every = sum({key: size for table in sizes for key, size in table.items()}.values())
    made: dict[int, int] = {}
    peak = 0
    for layer, before, own in zip(
        reversed(chain.layers), reversed(held), reversed(sizes), strict=True
    ):
        peak = max(peak, before + layer.working_bytes + sum(made.values()))
        made |= own
    return max(peak, every) + (every if kept_gradients else 0)


def part_share(patch: Sequence[int], split: Sequence[int]) -> float:
    """Return the share of a sample that its largest part has."""
    return math.prod(
        max(after - before for before, after in _pairs(even_bounds(extent, parts))) / extent
        for extent, parts in zip(patch, split, strict=True)
    )


def _pairs(bounds: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(bounds))


def exchanges(facts: RunFacts, split: Sequence[int]) -> Iterator[tuple[int, float, int]]:
    """Yield for a split the layers that exchange something, the bytes of a sample that a device
    sends each time, and how often it does in both passes."""
    cut = [axis for axis, parts in enumerate(split) if parts > 1]
    for number, border in enumerate(facts.borders):
        for num_bytes in _sent(border, split, cut):
            # Nobody asks for the gradient of the image.
            yield border.layer, num_bytes, 2 if number else 1
    yield facts.num_layers - 1, 0.0, LOSS_EXCHANGES


def _sent(border: Border, split: Sequence[int], cut: Sequence[int]) -> list[float]:
    """Return the bytes of a sample that a device sends in each exchange of a layer."""
    if border.is_gathered:
        return [border.num_bytes]
    along = [
        border.num_bytes * border.rows[axis] / border.extents[axis] * split[axis] / math.prod(split)
        for axis in cut
    ]
    if border.has_statistics:
        return [along[0] if len(cut) == 1 else 0.0]
    if border.is_shared and len(cut) == 1:
        return []
    return [num_bytes for num_bytes in along if num_bytes]
