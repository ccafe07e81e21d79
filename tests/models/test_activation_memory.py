"""The estimate of kept activations against what TensorFlow's gradient reads."""

import math

import keras
import pytest
import tensorflow as tf

from tfunet.models import isensee, unet
from tfunet.models.activation_memory import activation_bytes
from tfunet.models.describe import describe

BATCH = 2
NO_CONTENT = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "BroadcastGradientArgs"}


def _content(tensor):
    """The tensor whose memory this one shares."""
    while tensor.op.type in ("Reshape", "Identity", "IdentityN", "StopGradient"):
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def _is_activation(tensor):
    if tensor.op.type == "Cast" and tensor.op.inputs[0].op.type == "ReadVariableOp":
        return False
    return tensor.op.type not in ("ReadVariableOp", "Const") and tensor.dtype != tf.int32


def _bytes_read_by_the_gradient(model: keras.Model) -> int:
    """Bytes of the forward tensors that operations of the gradient take, each once.

    The logits are among them, as for a loss: the gradient starts from ones of their shape.
    """

    @tf.function(jit_compile=False)
    def gradients(images):
        variables = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
        return tape.gradient(logits, variables)

    images = tf.TensorSpec((BATCH, *model.input.shape[1:]), "float32")
    operations = gradients.get_concrete_function(images).graph.get_operations()
    # In the order of their making: the model first, then the gradient.
    first = next(i for i, op in enumerate(operations) if op.name.startswith("gradient_tape/"))
    forward = {operation.name for operation in operations[:first]}
    kept = {
        tensor.ref(): tensor
        for operation in operations[first:]
        if operation.type not in NO_CONTENT
        for tensor in map(_content, operation.inputs)
        if tensor.op.name in forward and _is_activation(tensor)
    }
    return sum(math.prod(tensor.shape) * tensor.dtype.size for tensor in kept.values())


SMALL = {"image_shape": (32, 32, 1), "num_classes": 2, "filters": 8, "levels": 2}
CASES = {
    "relu": {"normalization": "none", "activation": "relu"},
    "instance": {},
    "batch": {
        "normalization": "batch",
        "activation": "relu",
        "dropout": 0.1,
        "bottom_dropout": 0.5,
    },
    "residual": {"normalization": "group", "activation": "elu", "residual": True},
    "gelu": {"normalization": "none", "activation": "gelu", "upsampling": "linear"},
    "silu": {"normalization": "none", "activation": "silu", "downsampling": "strided"},
    "three dimensions": {"image_shape": (16, 16, 16, 1), "upsampling": "nearest"},
}


@pytest.fixture(autouse=True)
def _precision_as_found():
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        *((case, "float32") for case in (*CASES, "isensee")),
        *((case, "mixed_bfloat16") for case in ("batch", "isensee")),
    ],
)
def test_estimate_is_what_the_gradient_reads(case, precision):
    keras.config.set_dtype_policy(precision)
    if case == "isensee":
        model = isensee.build(
            image_shape=(32, 32, 1), num_classes=2, filters=8, depth=3, segmentation_levels=2
        )
    else:
        model = unet.build(**{**SMALL, **CASES[case]})
    # The rest are the statistics of the normalizations, a few bytes a channel.
    estimate = activation_bytes(model, batch=BATCH)
    assert estimate == pytest.approx(_bytes_read_by_the_gradient(model), rel=0.01)


def test_dropout_keeps_one_byte_a_value():
    inputs = keras.Input((8, 8, 1))
    tensor = keras.layers.Conv2D(4, 3, padding="same")(inputs)
    tensor = keras.layers.Dropout(0.5)(tensor)
    model = keras.Model(inputs, keras.layers.Conv2D(2, 1)(tensor))
    image, mask, dropped, logits = 64 * 4, 64 * 4, 64 * 4 * 4, 64 * 2 * 4
    assert activation_bytes(model, batch=1) == image + mask + dropped + logits


def test_memory_is_proportional_to_the_batch_and_smaller_in_16_bits():
    one, three = (
        describe("unet", image_shape=(64, 64, 1), num_classes=2, batch=batch) for batch in (1, 3)
    )
    assert three.activation_bytes_float32 == 3 * one.activation_bytes_float32
    assert three.activation_bytes_16bit < 0.8 * three.activation_bytes_float32
