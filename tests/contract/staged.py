"""A model of the user's own for runs in stages, whose last layer may fail, and which may tell on
which devices it runs."""

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


class Placed(layers.Layer):
    """Prints the devices of both passes where TFUNET_TEST_PLACES is set."""

    def call(self, inputs):
        if not os.environ.get("TFUNET_TEST_PLACES"):
            return inputs

        @tf.custom_gradient
        def told(value):
            def gradient(given):
                back = tf.identity(given)
                print(f"{self.name} backward on {back.device[-5:]}", flush=True)
                return back

            same = tf.identity(value)
            print(f"{self.name} forward on {same.device[-5:]}", flush=True)
            return same, gradient

        return told(inputs)


def build(*, image_shape, num_classes):
    """A skip over a stage's border, dropout in both stages, and a mean over the image.

    Nothing depends on the batch normalization but its own moving statistics.
    """
    image = keras.Input(image_shape)
    first = layers.Conv2D(4, 3, padding="same", activation="relu", name="first")(image)
    unused = layers.Rescaling(0.0)(layers.BatchNormalization(name="statistics")(first))
    first = layers.Add()([first, unused])
    first = Placed(name="early")(layers.Dropout(0.2, seed=1)(first))
    x = layers.GroupNormalization(2)(layers.Conv2D(8, 3, strides=2, padding="same")(first))
    x = layers.SpatialDropout2D(0.2, seed=2, name="second")(x)
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.UpSampling2D()(x))
    x = Placed(name="late")(layers.Concatenate()([x, first]))
    x = Checked(name="checked")(x)
    return keras.Model(image, layers.Conv2D(num_classes, 1)(x))
