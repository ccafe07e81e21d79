"""Bytes of the layer outputs that TensorFlow keeps from the forward pass for the backward pass."""

import math
from collections.abc import Iterator
from typing import Any

import keras

# (tensor, dtype in which it is kept, number of copies). A tensor that two layers need is kept once.
Kept = list[tuple[Any, str, int]]

NEED_NOTHING = (
    keras.layers.Add,
    keras.layers.AveragePooling2D,
    keras.layers.AveragePooling3D,
    keras.layers.Concatenate,
    keras.layers.InputLayer,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
    keras.layers.Subtract,
    keras.layers.UpSampling2D,
    keras.layers.UpSampling3D,
)
NEED_INPUT = (
    keras.layers.Conv2D,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3D,
    keras.layers.Conv3DTranspose,
    keras.layers.LeakyReLU,
)
NEED_OUTPUT = (keras.layers.ELU, keras.layers.ReLU, keras.layers.Softmax)
# Keras computes these in float32 under every policy, on a copy of a 16-bit input.
NEED_FLOAT32_INPUT = (keras.layers.BatchNormalization, keras.layers.GroupNormalization)
ACTIVATIONS_THAT_NEED_OUTPUT = ("relu", "elu", "sigmoid", "softmax", "tanh")
# The exact GELU is several operations: x, x / 2, x / sqrt(2) and 1 + erf(x / sqrt(2)) are read.
GELU_COPIES = 4


def activation_bytes(model: keras.Model, *, batch: int) -> int:
    """Return the bytes kept for the gradient of a batch, with the logits, without the loss.

    It is an estimate from the tensors that the gradient of each layer reads. Work space of the
    operators, and what the runtime saves or wastes in placing tensors, is not in it. The inputs and
    outputs of an unknown layer all count.
    """
    kept = {
        (id(tensor), dtype, copy): tensor
        for operation in _operations(model)
        for tensor, dtype, copies in _kept(operation)
        for copy in range(copies)
    }
    for tensor in keras.tree.flatten(model.output):
        kept.setdefault((id(tensor), tensor.dtype, 0), tensor)
    return sum(_bytes(tensor, dtype, batch) for (_, dtype, _), tensor in kept.items())


def _operations(model: keras.Model) -> Iterator[Any]:
    """Yield the operations of a model, and of models inside it."""
    for operation in model.operations:
        if getattr(operation, "operations", None):
            yield from _operations(operation)
        else:
            yield operation


def _kept(operation: Any) -> Kept:
    inputs = keras.tree.flatten(operation.input)
    outputs = keras.tree.flatten(operation.output)
    if isinstance(operation, NEED_NOTHING) or type(operation).__name__ == "Pad":
        return []
    dtype = operation.compute_dtype if isinstance(operation, keras.layers.Layer) else None
    if isinstance(operation, NEED_INPUT):
        return _in(dtype, inputs)
    if isinstance(operation, NEED_OUTPUT):
        return _in(dtype, outputs)
    if isinstance(operation, NEED_FLOAT32_INPUT):
        return _in("float32", inputs)
    if isinstance(operation, keras.layers.Dropout):
        return _in("bool", outputs)
    if isinstance(operation, keras.layers.Activation):
        name = getattr(operation.activation, "__name__", "")
        if name == "gelu":
            return _in(dtype, inputs, GELU_COPIES)
        return _in(dtype, outputs if name in ACTIVATIONS_THAT_NEED_OUTPUT else inputs)
    return _in(dtype, inputs + outputs)


def _in(dtype: str | None, tensors: list[Any], copies: int = 1) -> Kept:
    return [(tensor, dtype or tensor.dtype, copies) for tensor in tensors]


def _bytes(tensor: Any, dtype: str, batch: int) -> int:
    itemsize = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "bool": 1}
    return batch * math.prod(tensor.shape[1:]) * itemsize.get(dtype, 4)
