"""What tf2onnx leaves to be done for a file in ONNX."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.graph.traced import traced
from tfunet.inside.of_tensorflow import with_constants

# Images have no more rows.
LONGEST_SIDE = 2**12


@final
class _Frozen(keras.Layer):
    """A network whose numbers are all constants of its graph."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self._graph = graph

    def call(self, image: tf.Tensor) -> tf.Tensor:
        (logits,) = self._graph(image)
        return logits


def frozen(model: keras.Model, image: keras.KerasTensor) -> tuple[keras.Model, list[str]]:
    """Return a model as a graph of constants, and the names of operations that read a table.

    tf2onnx takes tensors that a layer keeps, as Normalization its mean, for inputs of the network.
    """
    shape = tf.TensorSpec(image.shape, tf.float32)
    predicting = traced(lambda images: model(images, training=False)).get_concrete_function(shape)
    graph = with_constants(predicting)
    if tables := [tensor.op.name for tensor in graph.inputs[1:]]:
        return model, tables
    return keras.Model(image, _Frozen(graph)(image)), []


@contextmanager
def unsupported_ops() -> Iterator[list[tuple[str, str]]]:
    """Collect (name, type) of the ops that tf2onnx says it cannot write, which it only logs."""
    found: list[tuple[str, str]] = []

    def note(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if parts := re.fullmatch(r"Tensorflow op \[(.+): (\w+)\] is not supported", message):
            found.append((parts[1], parts[2]))
        return False

    loggers = [logging.getLogger(f"tf2onnx{name}") for name in ("", ".tfonnx", ".shape_inference")]
    for logger in loggers:
        logger.addFilter(note)
    try:
        yield found
    finally:
        for logger in loggers:
            logger.removeFilter(note)


def correct(path: Path) -> None:
    """Call the output "logits", and round the scales of resized images up.

    The size of an output is rounded down: 12 rows times 23 / 12, in 32 bits, would be 22 rows.
    """
    import onnx

    model = onnx.load(path)
    scales = {node.input[2] for node in model.graph.node if node.op_type == "Resize"}
    for tensor in model.graph.initializer:
        if tensor.name in scales:
            rounded = [_at_least(scale) for scale in onnx.numpy_helper.to_array(tensor)]
            array = np.array(rounded, np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    (output,) = model.graph.output
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["logits" if name == output.name else name for name in names]
    output.name = "logits"
    onnx.save(model, path)


def _at_least(scale: np.float32) -> np.float32:
    """Return the least number in 32 bits that is not below the fraction that was rounded."""
    fraction = Fraction(float(scale)).limit_denominator(LONGEST_SIDE)
    is_below = Fraction(float(scale)) < fraction
    return np.nextafter(scale, np.float32(np.inf)) if is_below else scale
