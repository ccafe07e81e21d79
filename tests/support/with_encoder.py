"""A small network with an encoder of its own, with batch normalization, and deep supervision."""

import keras

from tfunet.models.deep_supervision import DeeplySupervised


def build(*, image_shape, num_classes, supervised=False):
    inner = keras.Input((*image_shape[:-1], 4))
    tensor = keras.layers.Conv2D(4, 3, padding="same", strides=2, use_bias=False)(inner)
    tensor = keras.layers.BatchNormalization(synchronized=True, momentum=0.5)(tensor)
    encoder = keras.Model(inner, keras.layers.ReLU()(tensor), name="encoder")

    image = keras.Input(image_shape)
    skip = keras.layers.Conv2D(4, 3, padding="same")(image)
    low = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(encoder(skip))
    high = keras.layers.Concatenate()([skip, keras.layers.UpSampling2D()(low)])
    logits = keras.layers.Conv2D(num_classes, 1)(high)
    if not supervised:
        return keras.Model(image, logits)
    return DeeplySupervised(image, [logits, keras.layers.Conv2D(num_classes, 1)(low)])
