"""What the devices that share a sample send each other in a step, with its gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfunet.backend import Exchange
from tfunet.parallel.mesh import Bounds, Mesh

# Tensors of these types are sent as they are; others as the type that stands beside them.
SENT_AS = {tf.bfloat16: tf.float16}


@dataclass
class Traffic:
    """What one device sends in a step, counted while the step is traced."""

    exchanges: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """The devices that share a sample, seen from one of them.

    All devices of the mesh call the same methods in the same order, with what belongs to them.

    Args:
        mesh: All devices.
        device: This one.
        exchange: `Backend.exchange`.
    """

    mesh: Mesh
    device: int
    exchange: Exchange
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def place(self) -> tuple[int, ...]:
        """Which part of the sample this device has, along each axis."""
        return self.mesh.place_of(self.device)

    def rows(
        self, tensor: tf.Tensor, axis: int, bounds: Bounds, wanted: Sequence[tuple[int, int]]
    ) -> tf.Tensor:
        """Return the rows of a tensor that this device wants, its own and those of others.

        Args:
            tensor: (batch, *spatial, channels), of which this device has its part along `axis`.
            axis: A spatial axis, from 0.
            bounds: Of the parts along that axis.
            wanted: For each part the rows [begin, end) that its device wants, within the bounds.
        """
        line = self.mesh.line(self.device, axis)
        me = line.index(self.device)
        if all(
            bounds[part] <= begin and end <= bounds[part + 1]
            for part, (begin, end) in enumerate(wanted)
        ):
            begin, end = wanted[me]
            own = bounds[me]
            if (begin, end) == (own, bounds[me + 1]):
                return tensor
            return cut_rows(tensor, axis, begin - own, end - own)
        dimension = axis + 1
        shape = tensor.shape.as_list()
        # Of each pair (owner, reader): the rows that go from one to the other.
        pieces = {
            (owner, reader): _overlap(wanted[reader], (bounds[owner], bounds[owner + 1]))
            for owner in range(len(line))
            for reader in range(len(line))
        }

        def spec(rows: tuple[int, int]) -> list[int]:
            return [*shape[:dimension], rows[1] - rows[0], *shape[dimension + 1 :]]

        def others(pairs: Callable[[int], tuple[int, int]]) -> dict[int, tuple[int, int]]:
            rows = {other: pieces[pairs(other)] for other in range(len(line)) if other != me}
            return {other: span for other, span in rows.items() if span[0] < span[1]}

        sent, received = others(lambda other: (me, other)), others(lambda other: (other, me))

        @tf.custom_gradient
        def fetched(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            first = bounds[me]
            came = self._swap(
                {
                    line[other]: cut_rows(own, axis, begin - first, end - first)
                    for other, (begin, end) in sent.items()
                },
                {line[other]: spec(rows) for other, rows in received.items()},
                own.dtype,
            )
            parts = []
            for owner in range(len(line)):
                begin, end = pieces[owner, me]
                if begin < end:
                    is_own = owner == me
                    parts.append(
                        cut_rows(own, axis, begin - first, end - first)
                        if is_own
                        else came[line[owner]]
                    )
            joined = parts[0] if len(parts) == 1 else tf.concat(parts, dimension)

            def gradient(given: tf.Tensor) -> tf.Tensor:
                origin = wanted[me][0]
                back = self._swap(
                    {
                        line[other]: cut_rows(given, axis, begin - origin, end - origin)
                        for other, (begin, end) in received.items()
                    },
                    {line[other]: spec(rows) for other, rows in sent.items()},
                    given.dtype,
                )
                spans = {line[other]: rows for other, rows in sent.items()}
                begin, end = pieces[me, me]
                terms = []
                if begin < end:
                    kept = cut_rows(given, axis, begin - origin, end - origin)
                    terms.append(_placed(kept, axis, begin - first, bounds[me + 1] - end))
                for other, (begin, end) in spans.items():
                    terms.append(_placed(back[other], axis, begin - first, bounds[me + 1] - end))
                return tf.add_n(terms) if terms else tf.zeros_like(own)

            return joined, gradient

        return fetched(tensor)

    def gathered(self, value: tf.Tensor, members: Sequence[int] | None = None) -> tf.Tensor:
        """Return the values of all members, (members, *shape), in order; by default of the group.

        Values have the same shape on all members.
        """
        everyone = list(members or self.mesh.members(self.device))
        return self._gather(value, everyone)

    def sum(self, value: tf.Tensor, members: Sequence[int] | None = None) -> tf.Tensor:
        """Return the sum over the members, to the same bits on each; by default of the group."""
        everyone = list(members or self.mesh.members(self.device))

        @tf.custom_gradient
        def summed(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def total(given: tf.Tensor) -> tf.Tensor:
                return tf.reduce_sum(self._raw_gather(given, everyone), axis=0)

            return total(own), total

        return summed(value)

    def _gather(self, value: tf.Tensor, everyone: list[int]) -> tf.Tensor:
        me = everyone.index(self.device)

        @tf.custom_gradient
        def gathered(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(given: tf.Tensor) -> tf.Tensor:
                # Member i gets from each member the gradient of what that member had of i.
                shape = own.shape.as_list()
                came = self._swap(
                    {other: given[i] for i, other in enumerate(everyone) if i != me},
                    {other: shape for i, other in enumerate(everyone) if i != me},
                    given.dtype,
                )
                return tf.add_n(
                    [given[me] if i == me else came[other] for i, other in enumerate(everyone)]
                )

            return self._raw_gather(own, everyone), gradient

        return gathered(value)

    def _raw_gather(self, value: tf.Tensor, everyone: list[int]) -> tf.Tensor:
        others = [other for other in everyone if other != self.device]
        shape = value.shape.as_list()
        came = self._swap(dict.fromkeys(others, value), dict.fromkeys(others, shape), value.dtype)
        return tf.stack([value if other == self.device else came[other] for other in everyone])

    def _swap(
        self,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        """Send tensors to other devices, and return what they send."""
        wire = SENT_AS.get(dtype, dtype)
        values = {
            other: value if wire == dtype else tf.bitcast(value, wire)
            for other, value in sent.items()
        }
        self.traffic.exchanges += 1
        self.traffic.num_bytes += sum(
            value.shape.num_elements() * wire.size for value in values.values()
        )
        came = self.exchange(values, received, wire)
        return {
            other: tf.ensure_shape(
                value if wire == dtype else tf.bitcast(value, dtype), received[other]
            )
            for other, value in came.items()
        }


def cut_rows(tensor: Any, axis: int, begin: int, end: int) -> Any:
    """Return the rows [begin, end) of a tensor along a spatial axis."""
    return tensor[(slice(None),) * (axis + 1) + (slice(begin, end),)]


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    begin = max(first[0], second[0])
    return begin, max(begin, min(first[1], second[1]))


def _placed(tensor: tf.Tensor, axis: int, before: int, after: int) -> tf.Tensor:
    """Return a tensor with rows of zeros before and after it."""
    if not before and not after:
        return tensor
    width = [(0, 0)] * tensor.shape.rank
    width[axis + 1] = (before, after)
    return tf.pad(tensor, width)
