"""A model of the user's own for runs in stages, whose last layer may fail."""

import os

import keras
import tensorflow as tf
from keras import layers


class Checked(layers.Layer):
    """Fails in training where TFUNET_TEST_FAIL is set."""

    def call(self, inputs, training=False):
        if training and os.environ.get("TFUNET_TEST_FAIL"):
            with tf.control_dependencies([tf.debugging.assert_less(inputs, -1e9, "too warm")]):
                return tf.identity(inputs)
        return inputs


def build(*, image_shape, num_classes):
    """A skip over a stage's border, dropout in both stages, and a mean over the image."""
    image = keras.Input(image_shape)
    first = layers.Conv2D(4, 3, padding="same", activation="relu", name="first")(image)
    first = layers.Dropout(0.2, seed=1)(first)
    x = layers.GroupNormalization(2)(layers.Conv2D(8, 3, strides=2, padding="same")(first))
    x = layers.SpatialDropout2D(0.2, seed=2, name="second")(x)
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.UpSampling2D()(x))
    x = Checked(name="checked")(layers.Concatenate()([x, first]))
    return keras.Model(image, layers.Conv2D(num_classes, 1)(x))
