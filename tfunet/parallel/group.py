"""What the devices that share a sample send each other in a step, with its gradients."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    def clear(self) -> None:
        """Count anew."""
        self.exchanges = self.num_bytes = 0


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
        borders = self.borders(tensor, axis, bounds, wanted)
        return borders.joined(borders.tensor, borders.others)

    def borders(
        self, tensor: tf.Tensor, axis: int, bounds: Bounds, wanted: Sequence[tuple[int, int]]
    ) -> "Borders":
        """Return what of the rows that this device wants others have; see `rows`."""
        line = self.mesh.line(self.device, axis)
        me = line.index(self.device)
        shape = tensor.shape.as_list()
        # Of each pair (owner, reader): the rows that go from one to the other.
        pieces = {
            (owner, reader): _overlap(wanted[reader], (bounds[owner], bounds[owner + 1]))
            for owner in range(len(line))
            for reader in range(len(line))
        }

        def others(pairs: Callable[[int], tuple[int, int]]) -> dict[int, tuple[int, int]]:
            rows = {other: pieces[pairs(other)] for other in range(len(line)) if other != me}
            return {other: span for other, span in rows.items() if span[0] < span[1]}

        def specs(spans: Mapping[int, tuple[int, int]]) -> dict[int, list[int]]:
            return {
                line[other]: [*shape[: axis + 1], end - begin, *shape[axis + 2 :]]
                for other, (begin, end) in spans.items()
            }

        first, last = bounds[me], bounds[me + 1]
        sent, received = others(lambda other: (me, other)), others(lambda other: (other, me))
        begin, end = pieces[me, me]
        borders = Borders(
            tensor=tensor,
            axis=axis,
            own=(begin - first, end - first),
            own_rows=last - first,
            num_before=sum(other < me for other in received),
        )
        if all(
            bounds[part] <= begin and end <= bounds[part + 1]
            for part, (begin, end) in enumerate(wanted)
        ):
            return borders

        @tf.custom_gradient
        def fetched(own: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tf.Tensor]]:
            # Its own comes out too: who receives nothing has a gradient to wait for all the same.
            came = self.swap(
                {
                    line[other]: cut_rows(own, axis, begin - first, end - first)
                    for other, (begin, end) in sent.items()
                },
                specs(received),
                own.dtype,
            )

            def gradient(given_own: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
                back = self.swap(
                    {line[other]: value for other, value in zip(received, given, strict=True)},
                    specs(sent),
                    own.dtype,
                )
                added = [
                    (begin - first, end - first, back[line[other]])
                    for other, (begin, end) in sent.items()
                ]
                return _with_added(given_own, added, axis)

            return [tf.identity(own), *(came[line[other]] for other in received)], gradient

        own, *of_others = fetched(tensor)
        return replace(borders, tensor=own, others=tuple(of_others), is_asked=True)

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
                came = self.swap(
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
        came = self.swap(dict.fromkeys(others, value), dict.fromkeys(others, shape), value.dtype)
        return tf.stack([value if other == self.device else came[other] for other in everyone])

    def swap(
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


@dataclass(frozen=True, kw_only=True)
class Borders:
    """The rows along an axis that a device wants: some of its own, between those of others.

    Args:
        tensor: Its own part.
        axis: A spatial axis, from 0.
        own: The rows [begin, end) of its part that it wants.
        own_rows: How many rows its part has.
        num_before: How many of the others' tensors lie before its own.
        others: The rows of others, in order.
        is_asked: Whether any device wants rows of another.
    """

    tensor: tf.Tensor
    axis: int
    own: tuple[int, int]
    own_rows: int
    num_before: int
    others: tuple[tf.Tensor, ...] = ()
    is_asked: bool = False

    def joined(self, tensor: tf.Tensor, others: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return all rows, in order, of this device's part and what others sent."""
        if self.own[0] < self.own[1]:
            is_all = self.own == (0, self.own_rows)
            own = [tensor if is_all else cut_rows(tensor, self.axis, *self.own)]
        else:
            own = []
        before, after = others[: self.num_before], others[self.num_before :]
        parts = [*before, *own, *after]
        return parts[0] if len(parts) == 1 else tf.concat(parts, self.axis + 1)


def cut_rows(tensor: Any, axis: int, begin: int, end: int) -> Any:
    """Return the rows [begin, end) of a tensor along a spatial axis."""
    return tensor[(slice(None),) * (axis + 1) + (slice(begin, end),)]


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    begin = max(first[0], second[0])
    return begin, max(begin, min(first[1], second[1]))


def _with_added(
    tensor: tf.Tensor, added: Sequence[tuple[int, int, tf.Tensor]], axis: int
) -> tf.Tensor:
    """Return a tensor to whose rows other tensors are added: (begin, end, tensor) of each."""
    spans = [(begin, end) for begin, end, _ in added]
    edges = sorted({0, tensor.shape[axis + 1], *itertools.chain.from_iterable(spans)})
    parts = []
    for begin, end in itertools.pairwise(edges):
        terms = [
            cut_rows(value, axis, begin - first, end - first)
            for first, last, value in added
            if first <= begin and end <= last
        ]
        rows = cut_rows(tensor, axis, begin, end)
        parts.append(tf.add_n([rows, *terms]) if terms else rows)
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis + 1)
