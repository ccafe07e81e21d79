"""What the devices that share a sample send each other in a step, with its gradients."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfunet.backend import Exchange
from tfunet.parallel.mesh import Bounds, Mesh

# Tensors of these types are sent as they are; others as the type that stands beside them.
SENT_AS = {tf.bfloat16: tf.float16}


@dataclass
class SentBytes:
    """What one device sends in a step, counted while the step is traced."""

    exchanges: int = 0
    num_bytes: int = 0
    # How often a step does what is traced.
    _times: int = 1

    def add(self, num_bytes: int) -> None:
        """Count an exchange, unless it belongs to no step."""
        self.exchanges += self._times
        self.num_bytes += self._times * num_bytes

    @contextlib.contextmanager
    def of_step(self, times: int = 1) -> Iterator[None]:
        """Count anew in the block, of which a step makes so many, and nothing after it.

        An evaluation exchanges too.
        """
        self.exchanges = self.num_bytes = 0
        self._times = times
        try:
            yield
        finally:
            self._times = 0


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """The devices that have the parts of a sample in one stage, seen from one of them.

    All devices of the mesh call the same methods in the same order, with what belongs to them.

    Args:
        mesh: All devices.
        device: This one.
        exchange: `Backend.exchange`.
    """

    mesh: Mesh
    device: int
    exchange: Exchange
    traffic: SentBytes = field(default_factory=SentBytes)

    @property
    def place(self) -> tuple[int, ...]:
        """Which part of the sample this device has, along each axis."""
        return self.mesh.place_of(self.device)

    @property
    def part(self) -> int:
        """The number of this device's part."""
        return self.mesh.part_of(self.device)

    def borders(
        self, tensor: tf.Tensor, axis: int, bounds: Bounds, wanted: Sequence[tuple[int, int]]
    ) -> "Borders":
        """Return the rows of a tensor that this device wants: its own, and those of others.

        Args:
            tensor: (batch, *spatial, channels), of which this device has its part along `axis`.
            axis: A spatial axis, from 0.
            bounds: Bounds of the parts along that axis.
            wanted: For each part the rows [begin, end) that its device wants, within the bounds.
        """
        plan = self._plan(tensor, axis, bounds, wanted)
        if not plan.is_asked:
            return plan.borders(tensor, ())

        @tf.custom_gradient
        def fetched(own: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tf.Tensor]]:
            # Its own comes out too: who receives nothing has a gradient to wait for all the same.
            came = self.swap(plan.cut(own), plan.received, own.dtype)

            def gradient(given_own: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
                sent = dict(zip(plan.received, given, strict=True))
                return plan.added(given_own, self.swap(sent, plan.sent_shapes, own.dtype))

            return [tf.identity(own), *(came[other] for other in plan.received)], gradient

        own, *of_others = fetched(tensor)
        return plan.borders(own, of_others)

    def gathered_with_borders(
        self,
        value: tf.Tensor,
        members: Sequence[int],
        tensor: tf.Tensor,
        axis: int,
        bounds: Bounds,
        wanted: Sequence[tuple[int, int]],
    ) -> tuple[tf.Tensor, "Borders"]:
        """Return what `gathered` and `borders` do, in one exchange; of tensors of one type."""
        plan = self._plan(tensor, axis, bounds, wanted)
        if not plan.is_asked:
            return self.gathered(value, members), plan.borders(tensor, ())
        others = [other for other in members if other != self.device]
        shape = value.shape.as_list()

        def both(values: Mapping[int, Any], rows: Mapping[int, Any]) -> dict[int, list[Any]]:
            return {o: [values[o], *([rows[o]] if o in rows else [])] for o in others}

        @tf.custom_gradient
        def fetched(
            own: tf.Tensor, value: tf.Tensor
        ) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
            shapes = dict.fromkeys(others, shape)
            came = self._swap_together(
                both(dict.fromkeys(others, value), plan.cut(own)),
                both(shapes, plan.received),
                own.dtype,
            )
            of_all = [value if member == self.device else came[member][0] for member in members]

            def gradient(
                given_own: tf.Tensor, given_all: tf.Tensor, *given: tf.Tensor
            ) -> list[tf.Tensor]:
                of_member = {member: given_all[i] for i, member in enumerate(members)}
                back = self._swap_together(
                    both(of_member, dict(zip(plan.received, given, strict=True))),
                    both(shapes, plan.sent_shapes),
                    own.dtype,
                )
                values = [
                    of_member[member] if member == self.device else back[member][0]
                    for member in members
                ]
                rows = {other: back[other][1] for other in plan.sent}
                return [plan.added(given_own, rows), tf.add_n(values)]

            rows = [came[other][1] for other in plan.received]
            return [tf.identity(own), tf.stack(of_all), *rows], gradient

        own, of_all, *of_others = fetched(tensor, value)
        return of_all, plan.borders(own, of_others)

    def _plan(
        self, tensor: tf.Tensor, axis: int, bounds: Bounds, wanted: Sequence[tuple[int, int]]
    ) -> "_RowPlan":
        line = self.mesh.line(self.device, axis)
        me = line.index(self.device)
        shape = tensor.shape.as_list()
        first, last = bounds[me], bounds[me + 1]

        def spans(pairs: Callable[[int], tuple[int, int]]) -> dict[int, tuple[int, int]]:
            rows = {}
            for at, other in enumerate(line):
                owner, reader = pairs(at)
                begin, end = _overlap(wanted[reader], (bounds[owner], bounds[owner + 1]))
                if at != me and begin < end:
                    rows[other] = (begin, end)
            return rows

        sent, received = spans(lambda at: (me, at)), spans(lambda at: (at, me))
        begin, end = _overlap(wanted[me], (first, last))
        return _RowPlan(
            axis=axis,
            shape=shape,
            own=(begin - first, end - first),
            sent={other: (begin - first, end - first) for other, (begin, end) in sent.items()},
            received={
                other: [*shape[: axis + 1], end - begin, *shape[axis + 2 :]]
                for other, (begin, end) in received.items()
            },
            num_before=sum(line.index(other) < me for other in received),
            is_asked=not all(
                bounds[part] <= begin and end <= bounds[part + 1]
                for part, (begin, end) in enumerate(wanted)
            ),
        )

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

    def _swap_together(
        self,
        sent: Mapping[int, Sequence[tf.Tensor]],
        received: Mapping[int, Sequence[Sequence[int]]],
        dtype: tf.DType,
    ) -> dict[int, list[tf.Tensor]]:
        """Send tensors to other devices, one message to each, and return what they send."""
        sizes = {
            other: [math.prod(shape) for shape in shapes] for other, shapes in received.items()
        }
        came = self.swap(
            {
                other: tf.concat([tf.reshape(value, [-1]) for value in values], 0)
                for other, values in sent.items()
            },
            {other: [sum(counts)] for other, counts in sizes.items()},
            dtype,
        )
        return {
            other: [
                tf.reshape(value, shape)
                for value, shape in zip(tf.split(came[other], sizes[other]), shapes, strict=True)
            ]
            for other, shapes in received.items()
        }

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
        self.traffic.add(sum(value.shape.num_elements() * wire.size for value in values.values()))
        came = self.exchange(values, received, wire)
        return {
            other: tf.ensure_shape(
                value if wire == dtype else tf.bitcast(value, dtype), received[other]
            )
            for other, value in came.items()
        }


@dataclass(frozen=True, kw_only=True)
class _RowPlan:
    """Which rows along an axis a device sends, receives and keeps.

    Args:
        axis: A spatial axis, from 0.
        shape: Shape of the device's part.
        own: The rows [begin, end) of its part that it wants.
        sent: The rows [begin, end) of its part that each other device wants.
        received: The shape of what each other device sends, in order.
        num_before: How many of these lie before its own.
        is_asked: Whether any device wants rows of another.
    """

    axis: int
    shape: Sequence[int]
    own: tuple[int, int]
    sent: Mapping[int, tuple[int, int]]
    received: Mapping[int, Sequence[int]]
    num_before: int
    is_asked: bool

    @property
    def sent_shapes(self) -> dict[int, list[int]]:
        """The shape of what each other device gets."""
        at = self.axis + 1
        return {
            other: [*self.shape[:at], end - begin, *self.shape[at + 1 :]]
            for other, (begin, end) in self.sent.items()
        }

    def cut(self, tensor: tf.Tensor) -> dict[int, tf.Tensor]:
        """Return the rows for each other device."""
        return {other: cut_rows(tensor, self.axis, *span) for other, span in self.sent.items()}

    def added(self, tensor: tf.Tensor, rows: Mapping[int, tf.Tensor]) -> tf.Tensor:
        """Return a tensor to whose rows those are added that come back from each other device."""
        terms = [(*span, rows[other]) for other, span in self.sent.items()]
        return with_added(tensor, terms, self.axis)

    def borders(self, tensor: tf.Tensor, others: Sequence[tf.Tensor]) -> "Borders":
        """Return the device's part with what others sent."""
        return Borders(
            tensor=tensor,
            axis=self.axis,
            own=self.own,
            own_rows=self.shape[self.axis + 1],
            num_before=self.num_before,
            others=tuple(others),
            is_asked=self.is_asked,
        )


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


def with_added(
    tensor: tf.Tensor, added: Sequence[tuple[int, int, tf.Tensor]], axis: int
) -> tf.Tensor:
    """Return a tensor to whose rows along an axis others are added: (begin, end, tensor) each."""
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
