"""Small models, layers and losses of a user's own, on which steps are proved."""

import keras
import tensorflow as tf
from keras import layers


def simple(image_shape, num_classes, middle=(), kind=keras.Model, **options):
    """Return two convolutions with these layers between them."""
    image = keras.Input(image_shape)
    x = layers.Conv2D(4, 3, padding="same", activation="tanh", name="first", **options)(image)
    for layer in middle:
        x = layer(x)
    return kind(image, layers.Conv2D(num_classes, 3, padding="same", name="last")(x))


def plain(*, image_shape, num_classes):
    return simple(image_shape, num_classes)


def over_space(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [layers.Softmax(axis=(1, 2), name="over_space")])


class MovingMean(layers.Layer):
    """Keeps a moving mean of what it sees, and gives it back as it came."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False, name="mean")

    def call(self, inputs, training=False):
        if training:
            seen = keras.ops.mean(inputs, axis=(0, 1, 2))
            self.mean.assign(0.9 * self.mean + 0.1 * seen)
        return inputs


def moving_mean(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [MovingMean(name="moving")])


def penalized(*, image_shape, num_classes):
    return simple(image_shape, num_classes, activity_regularizer="l2")


class Borders(keras.Loss):
    """Compares each pixel with its neighbours, too."""

    def call(self, y_true, y_pred):
        mask = keras.ops.cast(y_true, y_pred.dtype)[..., None]
        gap = tf.square(mask - y_pred)
        return tf.reduce_mean(tf.nn.avg_pool2d(gap, 3, 1, "SAME"), axis=-1) ** 2
