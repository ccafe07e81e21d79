"""Describes a model without allocating it: levels, shapes, parameters, field, memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from tfunet.geometry.receptive_field import UnknownReachError, receptive_field
from tfunet.models import CARDS, trained_options
from tfunet.models.activation_memory import activation_bytes
from tfunet.models.make import make_model
from tfunet.models.options import check_at_least, check_shape
from tfunet.models.symbolic import build_symbolic


@dataclass(frozen=True, kw_only=True)
class Level:
    """The layers of one resolution on one side: "down", "bottom", "up"; "dense" without one."""

    side: str
    spatial: tuple[int, ...]
    channels: tuple[int, ...]  # of each convolution in turn
    num_parameters: int


@dataclass(frozen=True, kw_only=True)
class Description:
    """Facts of a model; `tfunet models show` prints its `str()`.

    `receptive_field` is in pixels for each spatial dimension, or None with the reason in
    `receptive_field_unknown`. The activation bytes are those of `activation_bytes`.
    """

    name: str
    image_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    batch: int
    num_trainable: int
    num_non_trainable: int
    levels: tuple[Level, ...]
    receptive_field: tuple[int, ...] | None
    receptive_field_unknown: str
    activation_bytes_float32: int
    activation_bytes_16bit: int

    def __str__(self) -> str:
        return "\n".join([*_heading(self), "", *_level_lines(self.levels), "", *_totals(self)])


def describe(
    name: str,
    *,
    image_shape: Sequence[int],
    num_classes: int,
    batch: int = 1,
    options: Mapping[str, Any] | None = None,
) -> Description:
    """Describe a model that `make_model` makes, for images of one size.

    It is built twice, for 32 and 16 bits, without allocating its weights, and without what only
    training adds. A .keras file keeps the precision that it was saved with. Raises ValueError if a
    size is None.
    """
    check_shape(image_shape, num_classes)
    check_at_least("batch", batch, 1)
    shape = tuple(image_shape)
    build = partial(
        make_model,
        name,
        image_shape=shape,
        num_classes=num_classes,
        options=trained_options(name, options or {}),
    )
    model, model_16bit = (
        build_symbolic(build, precision=precision) for precision in ("float32", "mixed_bfloat16")
    )
    if not getattr(model, "operations", None):
        raise ValueError(
            f"The model {name!r} is a class of its own, whose layers cannot be listed in order. "
            "Only functional models (keras.Model(inputs, outputs)) are described."
        )
    if tuple(model.input.shape[1:]) != shape or None in shape:
        raise ValueError(
            f"describe needs the size of every dimension that the model takes, got image_shape "
            f"{shape!r} for a model of images {tuple(model.input.shape[1:])!r}."
        )
    try:
        field, unknown = receptive_field(model), ""
    except UnknownReachError as reason:
        field, unknown = None, str(reason)
    return Description(
        name=name,
        image_shape=shape,
        output_shape=tuple(model.output.shape[1:]),
        batch=batch,
        num_trainable=_count(model.trainable_weights),
        num_non_trainable=_count(model.non_trainable_weights),
        levels=_levels(model),
        receptive_field=field,
        receptive_field_unknown=unknown,
        activation_bytes_float32=activation_bytes(model, batch=batch),
        activation_bytes_16bit=activation_bytes(model_16bit, batch=batch),
    )


def _count(weights: Sequence[Any]) -> int:
    return sum(math.prod(weight.shape) for weight in weights)


def _levels(model: keras.Model) -> tuple[Level, ...]:
    """The model's operations by resolution and side, in the order in which they run."""
    operations = [
        layer for layer in model.operations if not isinstance(layer, keras.layers.InputLayer)
    ]
    smallest = min(filter(None, map(_spatial, operations)), key=math.prod)
    bottom = [operation for operation in operations if _spatial(operation) == smallest]
    above = _ancestors(model, bottom)
    groups: dict[tuple[str, tuple[int, ...]], list[Any]] = {}
    for operation in operations:
        spatial = _spatial(operation)
        side = "bottom" if spatial == smallest else "down" if id(operation) in above else "up"
        side = side if spatial else "dense"
        groups.setdefault((side, spatial), []).append(operation)
    levels = [_level(side, spatial, members) for (side, spatial), members in groups.items()]
    return tuple(level for level in levels if level.channels)


def _spatial(operation: Any) -> tuple[int, ...]:
    """Spatial sizes of an operation's output, of an encoder's last; empty if it has none."""
    shape = keras.tree.flatten(operation.output)[-1].shape
    return tuple(shape[1:-1])


def _ancestors(model: keras.Model, members: Sequence[Any]) -> set[int]:
    """Ids of the operations that `members` depend on."""
    needed = {id(tensor) for member in members for tensor in keras.tree.flatten(member.input)}
    ancestors = set()
    for operation in reversed(model.operations):
        if any(id(tensor) in needed for tensor in keras.tree.flatten(operation.output)):
            ancestors.add(id(operation))
            needed.update(id(tensor) for tensor in keras.tree.flatten(operation.input))
    return ancestors


def _level(side: str, spatial: tuple[int, ...], members: Sequence[Any]) -> Level:
    layers = [member for member in members if isinstance(member, keras.Layer)]
    # The convolutions: others have only vectors.
    weighted = [layer for layer in layers if any(len(value.shape) > 1 for value in layer.weights)]
    return Level(
        side=side,
        spatial=spatial,
        channels=tuple(keras.tree.flatten(layer.output)[-1].shape[-1] for layer in weighted),
        num_parameters=sum(_count(layer.weights) for layer in layers),
    )


def _heading(description: Description) -> list[str]:
    card = CARDS.get(description.name)
    title = f"{description.name}: {card.summary}" if card else description.name
    lines = [title, card.citation] if card else [title]
    output = "logits" if len(description.output_shape) > 1 else "numbers"
    return [
        *lines,
        f"images {_times(description.image_shape)}, {output} {_times(description.output_shape)}",
    ]


def _level_lines(levels: Sequence[Level]) -> list[str]:
    rows = [("side", "size", "parameters", "channels of the convolutions")]
    rows += [
        (
            level.side,
            _times(level.spatial) or "-",
            f"{level.num_parameters:,}",
            " ".join(map(str, level.channels)),
        )
        for level in levels
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{side:{widths[0]}}  {size:>{widths[1]}}  {count:>{widths[2]}}  {channels}".rstrip()
        for side, size, count, channels in rows
    ]


def _totals(description: Description) -> list[str]:
    total = description.num_trainable + description.num_non_trainable
    field = description.receptive_field
    reach = (
        f"not known: {description.receptive_field_unknown}"
        if field is None
        else f"{_times(field)} pixels, normalization statistics apart"
    )
    return [
        f"parameters         {total:,} ({description.num_trainable:,} trainable, "
        f"{description.num_non_trainable:,} not)",
        f"receptive field    {reach}",
        f"activation memory  {_mebibytes(description.activation_bytes_float32)} in float32, "
        f"{_mebibytes(description.activation_bytes_16bit)} in mixed 16 bits, kept for the "
        f"gradient of a batch of {description.batch}",
    ]


def _times(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
