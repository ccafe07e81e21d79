"""Layers whose results hang on how a batch is divided, as the docs say: they are left out.

A layer that is left out gives back what it is given, in both steps, so that all others are
compared to the last digit.
"""

from collections.abc import Iterable
from typing import Any

import keras

from tfunet.config.run import RunConfig
from tfunet.inside.of_keras import all_layers
from tfunet.pipeline.noise import draws_otherwise, is_noise

DRAWS = "draws other random numbers"


def left_out(model: keras.Model, config: RunConfig) -> dict[int, str]:
    """Return the numbers of the layers to leave out, among all of a model, with the reason."""
    copies = config.num_replicas > 1
    passes = config.accumulation > 1 or bool(config.tiling)
    micro_batches = config.stages > 1 and config.micro_batches > 1
    found = {}
    for number, layer in enumerate(all_layers(model)):
        if isinstance(layer, keras.layers.BatchNormalization):
            of_part = passes or micro_batches or (copies and not layer.synchronized)
            if of_part:
                found[number] = "takes its statistics from a part of the batch"
        elif isinstance(layer, keras.layers.GroupNormalization) and config.tiling:
            found[number] = "takes its statistics from a tile"
        elif (is_noise(layer) and (copies or passes)) or (
            draws_otherwise(layer) and not has_inner(layer) and (copies or passes or micro_batches)
        ):
            found[number] = DRAWS
    return found


def leave_out(model: keras.Model, numbers: Iterable[int]) -> None:
    """Make these layers give back what they are given."""
    layers = all_layers(model)
    for number in numbers:
        object.__setattr__(layers[number], "call", _as_it_came)


def _as_it_came(inputs: Any, *_: Any, **__: Any) -> Any:
    return inputs


def has_inner(layer: Any) -> bool:
    """Whether a layer is made of others, as models are."""
    return len(all_layers(layer)) > 1


def in_words(model: keras.Model, found: dict[int, str]) -> list[str]:
    """Return for each reason the layers that are left out, in words."""
    layers = all_layers(model)
    by_reason: dict[str, list[str]] = {}
    for number, reason in found.items():
        by_reason.setdefault(reason, []).append(layers[number].name)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} "
        f"{reason if len(names) == 1 else _plural(reason)}"
        for reason, names in by_reason.items()
    ]


def _plural(reason: str) -> str:
    return reason.replace("takes its", "take their").replace("draws", "draw")
