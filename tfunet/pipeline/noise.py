"""Dropout and noise over micro-batches: the numbers that one device draws for the whole batch.

A random layer of Keras draws for a whole batch at once, and counts its draws. So every micro-batch
of a step draws the whole batch's numbers with the same count, and takes its rows of them.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfunet.geometry.kinds import kind_of
from tfunet.inside.of_keras import all_layers, seed_generators

# What these give is the input times a draw, or the input plus a draw.
_FACTORS = (keras.layers.Dropout, keras.layers.GaussianDropout)  # SpatialDropout is a Dropout.
_TERMS = (keras.layers.GaussianNoise,)
_NOISE = (*_FACTORS, *_TERMS, keras.layers.AlphaDropout)


# Parts of the types of ops that draw numbers from a state of TensorFlow's own.
_OWN_DRAWS = (
    *("Random", "Multinomial", "TruncatedNormal", "StatefulUniform", "StatefulStandard"),
    "RngReadAndSkip",
)
_CHANGES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def is_noise(operation: Any) -> bool:
    """Whether an operation is a layer of Keras that draws random numbers for each value."""
    return issubclass(kind_of(operation), _NOISE)


def draws_otherwise(layer: Any) -> bool:
    """Whether a layer draws random numbers in another way: anew for each micro-batch."""
    return not is_noise(layer) and bool(_generators(layer))


def with_noise_of_batch(layer: Any, value: tf.Tensor, number: int, count: int) -> tf.Tensor:
    """Return what a layer of noise makes of micro-batch `number` of `count`."""
    if count == 1:
        return layer(value, training=True)
    rows = value.shape[0]
    own = slice(number * rows, (number + 1) * rows)
    if isinstance(layer, keras.layers.AlphaDropout):
        width = [(number * rows, (count - 1 - number) * rows), *[(0, 0)] * (value.shape.rank - 1)]
        return layer(tf.pad(value, width), training=True)[own]
    value = tf.cast(value, layer.compute_dtype)
    whole = (count * rows, *value.shape[1:])
    # Only these rows are kept for the gradient.
    if isinstance(layer, _TERMS):
        return value + layer(tf.zeros(whole, value.dtype), training=True)[own]
    return value * layer(tf.ones(whole, value.dtype), training=True)[own]


@contextlib.contextmanager
def check_repeatable(states: Sequence[Any]) -> Iterator[None]:
    """Raise ValueError if what is traced in the block would give something else in a second run.

    The numbers of keras.random come from the count of a SeedGenerator, which can be set back where
    it is one of the `states` of the stage's layers.
    """
    if tf.executing_eagerly():
        yield
        return
    graph: Any = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    own = {graph.capture(state.value.handle).name for state in states}
    functions: dict[str, Sequence[Any]] = {}
    for op in graph.get_operations()[before:]:
        if _calls(op.node_def) and not functions:
            library = graph.as_graph_def().library.function
            functions = {function.signature.name: function.node_def for function in library}
        draw = _own_draw(op.node_def, functions, set())
        if draw or (op.type in _CHANGES and op.inputs[0].name not in own):
            does = f"draws random numbers of its own ({draw})" if draw else "changes a variable"
            raise ValueError(
                f"The op {op.name!r} {does}, and recompute runs it again, which would give "
                "something else. Draw random numbers with keras.random and a SeedGenerator that is "
                "an attribute of the layer, keep variables with add_weight, or leave out recompute."
            )


def _own_draw(node: Any, functions: Mapping[str, Sequence[Any]], seen: set[str]) -> str | None:
    """Return the type of op with which a node, or what it calls, draws numbers of its own."""
    if any(part in node.op for part in _OWN_DRAWS) and not node.op.startswith("Stateless"):
        return str(node.op)
    for name in _calls(node):
        if name not in seen:
            seen.add(name)
            for inner in functions.get(name, ()):
                if draw := _own_draw(inner, functions, seen):
                    return draw
    return None


def _calls(node: Any) -> list[str]:
    """Return the names of the functions that a node calls."""
    values = list(node.attr.values())
    single = [value.func.name for value in values if value.HasField("func")]
    return [*single, *(function.name for value in values for function in value.list.func)]


class Draws:
    """The counts of the random layers of a stage: the same in every micro-batch of a step."""

    def __init__(self, layers: Sequence[Any]) -> None:
        found = [generator.state for layer in layers for generator in _generators(layer)]
        self._states = list({id(state): state for state in found}.values())
        self._first: list[tf.Tensor] = []

    def begin(self) -> None:
        """Begin a step."""
        self._first = []

    def repeat(self, number: int) -> None:
        """Let micro-batch `number` draw what the first one drew."""
        if number == 0:
            self._first = [tf.identity(state.value) for state in self._states]
        for state, value in zip(self._states, self._first, strict=True):
            if number:
                state.assign(value)


def _generators(layer: Any) -> list[Any]:
    if not isinstance(layer, keras.layers.Layer):
        return []
    return [generator for inner in all_layers(layer) for generator in seed_generators(inner)]
