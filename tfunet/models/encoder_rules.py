"""What an encoder may be for these images, as far as Keras need not say it. Imports no Keras."""

import ast
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfunet.models import options

# Most networks halve an image so often, and take none that is smaller.
MOST_LEVELS = 5
LEAST_SIZE = 32
INTENSITIES = ("zscore", "unit", "bytes")


def refuse_without_encoder(**given: Any) -> None:
    """Raise ValueError for options of an encoder that are given without one."""
    for name, value in given.items():
        if value:
            raise ValueError(
                f"{name} has an effect only with an encoder. Give encoder, such as "
                "'EfficientNetB0', or leave it out."
            )


def refuse_of_own_way_down(encoder: str, **given: Any) -> None:
    """Raise ValueError for options of the way down that an encoder takes the place of."""
    for name, value in given.items():
        if value:
            raise ValueError(
                f"{name} is of the way down, whose place the encoder {encoder!r} takes. Leave out "
                "one of them."
            )


@functools.cache
def names() -> tuple[str, ...]:
    """Return the networks of keras.applications, read from its source; () where that is unknown."""
    spec = importlib.util.find_spec("keras")
    source = None if spec is None else Path(str(spec.origin)).parent / "applications/__init__.py"
    if source is None or not source.is_file():
        return ()
    return tuple(
        alias.asname or alias.name
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("keras.src.applications.")
        for alias in node.names
    )


def check_encoder(
    name: str,
    image_shape: options.Shape,
    *,
    levels: int,
    weights: str | None,
    intensity: str,
    is_synchronized: bool,
    more: Mapping[str, Any] | None,
) -> None:
    """Raise ValueError for an encoder that is not known, or does not fit the images."""
    if known := names():
        options.check_choice("encoder", name, known)
    options.check_choice("encoder_intensity", intensity, INTENSITIES)
    options.check_flag("encoder_synchronized", is_synchronized)
    if more is not None and not isinstance(more, Mapping):
        raise ValueError(
            f"encoder_options must be a table, such as {{ alpha = 0.35 }}, got {more!r}."
        )
    *spatial, channels = image_shape
    if len(spatial) != 2:
        raise ValueError(
            f"The networks of keras.applications take images of two dimensions, and these have "
            f"{len(spatial)}. Leave out encoder={name!r}."
        )
    if None in spatial:
        raise ValueError(
            f"encoder={name!r} needs the size of each dimension, got {tuple(spatial)}."
        )
    if levels > MOST_LEVELS:
        raise ValueError(
            f"An encoder halves an image {MOST_LEVELS} times at most, got levels={levels}."
        )
    if min(size for size in spatial if size is not None) < LEAST_SIZE:
        raise ValueError(
            f"encoder={name!r} takes images of at least {LEAST_SIZE} pixels along each axis, got "
            f"{' x '.join(map(str, spatial))}. Give a larger patch."
        )
    if weights is not None and channels not in (1, 3):
        raise ValueError(
            f"The weights of {name} are for 3 channels, and the images have {channels}. Choose 3 "
            "or 1 (which is repeated) in data_options, or leave out encoder_weights."
        )
