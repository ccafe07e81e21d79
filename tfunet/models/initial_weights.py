"""Gives a model the weights of another one, layer by layer."""

import math
import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import keras

from tfunet.inside.of_keras import all_layers, inner_layers
from tfunet.models.files import check_initial_weights
from tfunet.models.keras_errors import cause_line

# So many layers are named, of those that begin with random weights.
MOST_NAMED = 4
# What follows the name of its class where Keras named a layer itself.
NUMBERED = r"(_\d+)?"


def load_initial_weights(model: keras.Model, path: str) -> str:
    """Give each layer the weights of the layer with its name in a .keras file, if all shapes are
    equal, and return a line that says which layers have none.

    Layers that Keras named itself, such as `conv2d_3`, are those that come as manieth of their
    class in the model or layer that has them. The file is read in Keras's safe mode; its layers
    may be of the classes of the model's. Raises ValueError if no layer fits.
    """
    check_initial_weights(path)
    theirs = _layers(_read(Path(path), model))
    ours = _layers(model)
    others, fitting = [], 0
    for key, weights in ours.items():
        there = theirs.get(key, [])
        if _shapes(there) != _shapes(weights):
            name = weights[0].path.rpartition("/")[0] or weights[0].path
            others.append(f"{name} ({_difference(weights, there)})")
            continue
        for weight, value in zip(weights, there, strict=True):
            weight.assign(keras.ops.convert_to_numpy(value))
        fitting += _size(weights)
    total = sum(map(_size, ours.values()))
    if len(others) == len(ours):
        raise ValueError(
            f"initial_weights={path!r}: none of the {len(ours)} layers with weights has the name "
            f"and the shapes of one in the file, such as {'; '.join(others[:MOST_NAMED])}. Give "
            "the file of a network like this one, and the model_options that it was made with."
        )
    begun = len(ours) - len(others)
    line = (
        f"Initial weights: {begun} of {len(ours)} layers, {fitting / total:.1%} of all weights, "
        f"from {path}."
    )
    if others:
        more = len(others) - MOST_NAMED
        line += f" Random: {', '.join(others[:MOST_NAMED])}{f', {more} more' if more > 0 else ''}."
    return line


def _read(path: Path, model: keras.Model) -> keras.Model:
    classes = {type(layer).__name__: type(layer) for layer in [model, *all_layers(model)]}
    own = {name: kind for name, kind in classes.items() if not kind.__module__.startswith("keras.")}
    try:
        return keras.models.load_model(path, own, compile=False, safe_mode=True)
    except (ValueError, TypeError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"initial_weights={str(path)!r} cannot be loaded: {cause_line(error).rstrip('.')}. "
            "Layers of your own must be of the classes that the model has."
        ) from error


def _layers(model: keras.Model) -> dict[Any, list[Any]]:
    """Return the weights of each layer that has some itself, by its place in the model."""
    found: dict[Any, list[Any]] = {}
    visited: set[int] = set()

    def visit(layer: Any, place: tuple[Any, ...]) -> None:
        numbers: Counter[str] = Counter()
        for inner in inner_layers(layer):
            kind = type(inner).__name__
            is_numbered = re.fullmatch(_snake_case(kind) + NUMBERED, inner.name)
            part = (kind, numbers[kind]) if is_numbered else inner.name
            numbers[kind] += bool(is_numbered)
            if id(inner) not in visited:
                visited.add(id(inner))
                visit(inner, (*place, part))
        within = {id(weight) for inner in inner_layers(layer) for weight in inner.weights}
        if own := [weight for weight in layer.weights if id(weight) not in within]:
            found[place] = own

    visit(model, ())
    return found


def _snake_case(kind: str) -> str:
    """Return what Keras makes of the name of a class, to name its layers."""
    words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    return re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()


def _size(weights: list[Any]) -> int:
    return sum(math.prod(weight.shape) for weight in weights)


def _shapes(weights: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in weights]


def _difference(weights: list[Any], there: list[Any]) -> str:
    """Return how a layer differs from the one in the file."""
    if not there:
        return "not in the file"
    for weight, other in zip(weights, there, strict=False):
        if weight.shape != other.shape:
            shapes = [" x ".join(map(str, shape)) for shape in (other.shape, weight.shape)]
            return f"{weight.name} {shapes[0]} in the file, {shapes[1]} here"
    return f"{len(there)} weights in the file, {len(weights)} here"
