"""Small models to be cut into stages, and what a step of a whole one gives."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from staged_step import StagedStep

from tfunet.models import unet
from tfunet.pipeline.chain import Chain, ChainLayer
from tfunet.pipeline.schedules import gpipe, one_f_one_b
from tfunet.pipeline.simulation import Work, scheduled

BATCH, MICRO_BATCHES = 4, 4


def convolved(x, filters, **options):
    return layers.Conv2D(filters, 3, padding="same", **options)(x)


def small_unet():
    model = unet.build(image_shape=(16, 16, 1), num_classes=2, filters=4, levels=2)
    # Its logits are float32 under every policy.
    image = keras.Input((16, 16, 1))
    inner = keras.Model(model.input, model.layers[-1].input)
    return keras.Model(image, layers.Conv2D(2, 1)(inner(image)))


def long_skips():
    image = keras.Input((8, 8, 2))
    a = convolved(image, 3, activation="tanh")
    b = convolved(a, 3, activation="tanh")
    c = layers.Add()([convolved(b, 3), a])
    d = layers.Concatenate()([c, image, a])
    return keras.Model(image, convolved(d, 2))


def shared_layer():
    image = keras.Input((8, 8, 3))
    again = layers.Conv2D(3, 3, padding="same", activation="tanh", name="again")
    x = convolved(again(again(image)), 4, activation="tanh")
    relu = layers.ReLU()
    return keras.Model(image, convolved(relu(layers.Conv2D(4, 1)(relu(x))), 2))


def nested():
    inside = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(3, 3, padding="same")])
    image = keras.Input((8, 8, 3))
    branch = keras.Model(image, [layers.ReLU()(inside(image)), layers.Conv2D(3, 1)(image)])
    outer = keras.Input((8, 8, 3))
    first, second = branch(outer)
    joined = layers.Multiply()([first, second, inside(outer)])
    return keras.Model(outer, convolved(convolved(convolved(joined, 4), 4), 2))


def regularized():
    image = keras.Input((8, 8, 2))
    x = convolved(image, 4, kernel_regularizer="l2", activity_regularizer="l1")
    x = layers.BatchNormalization()(convolved(x, 4, bias_regularizer="l1"))
    return keras.Model(image, convolved(layers.UpSampling2D()(layers.MaxPooling2D()(x)), 2))


def operations():
    image = keras.Input((8, 8, 2))
    x = keras.ops.tanh(convolved(image, 4))
    x = x * 2.0 + keras.ops.mean(x, axis=(1, 2), keepdims=True)
    first, second = keras.ops.split(x, 2, axis=-1)
    return keras.Model(image, convolved(keras.ops.concatenate([second, first], -1), 2))


class Gated(layers.Layer):
    """Takes two tensors by name."""

    def call(self, inputs, *, gate, strength=1.0):
        return inputs * tf.tanh(strength * gate)


def by_name():
    """Tensors of earlier stages that a layer takes by name."""
    image = keras.Input((8, 8, 2))
    first = convolved(image, 4, activation="tanh")
    second = convolved(first, 4)
    x = Gated()(second, gate=first, strength=0.5)
    attention = layers.MultiHeadAttention(2, 2, attention_axes=(1, 2))
    x = attention(query=convolved(x, 4), value=first, key=second)
    return keras.Model(image, convolved(x, 2))


MODELS = [small_unet, long_skips, shared_layer, nested, operations, by_name, regularized]


def loss(targets, outputs):
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
    return tf.reduce_mean(entropy)


def data(model):
    draw = np.random.default_rng(0)
    shape = (BATCH, *model.input.shape[1:])
    images = tf.constant(draw.normal(size=shape))
    return images, tf.constant(draw.integers(0, 2, shape[:-1]))


def whole(model, images, targets):
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        value = loss(targets, model(images, training=True))
        value += tf.add_n(model.losses) if model.losses else 0.0
    return value, tape.gradient(value, variables)


def free_cuts(network):
    """Return the cuts between which no variable is shared."""
    chain = Chain(
        layers=tuple(
            ChainLayer(
                name=node.name, variables={id(variable): None for variable in node.variables}
            )
            for node in network.nodes
        ),
        tensor_bytes=[],
    )
    return [cut for cut in range(1, len(network.nodes)) if cut not in chain.shared]


def orders_of(schedule, num_stages, micro_batches=MICRO_BATCHES):
    if schedule != "v":
        return {"gpipe": gpipe, "1f1b": one_f_one_b}[schedule](num_stages, micro_batches)
    devices = [*range(num_stages // 2), *reversed(range(num_stages // 2))]
    chain = Work(
        forward=[1.0] * num_stages,
        backward=[2.0] * num_stages,
        devices=devices,
        messages={(at, at + 1): 1 for at in range(num_stages - 1)},
        kept_bytes=[1] * num_stages,
    )
    return scheduled("v", chain, micro_batches).orders


def micro_batches_of_the_whole(model, images, targets):
    parts = [
        whole(model, *pair)
        for pair in zip(
            tf.split(images, MICRO_BATCHES), tf.split(targets, MICRO_BATCHES), strict=True
        )
    ]
    gradients = zip(*(gradients for _, gradients in parts), strict=True)
    means = [tf.add_n(list(each)) / MICRO_BATCHES for each in gradients]
    return tf.add_n([value for value, _ in parts]) / MICRO_BATCHES, means


def traced(network, recompute, schedule=one_f_one_b):
    """Return a step of two micro-batches, traced."""

    @tf.function(autograph=False)
    def step(one, other):
        staged = StagedStep(network, [0, 2, len(network.nodes)])
        value, pairs = staged.run(schedule(2, 2), [one], other, loss, recompute=recompute)
        return value, [gradient for _, gradient in pairs]

    return step
