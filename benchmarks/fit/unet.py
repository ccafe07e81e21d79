"""A U-Net finds discs in images from tf.data."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()
SIZE, BATCH = 24, 8


def discs(seed):
    """Yield images with a disc, and masks of it."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for _ in range(42):
        row, column, radius = rng.uniform(6, 18), rng.uniform(6, 18), rng.uniform(3, 7)
        mask = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
        image = 100 * mask + rng.normal(80, 20, size=mask.shape)
        yield np.clip(image, 0, 255)[..., None].astype("uint8"), mask[..., None].astype("uint8")


def normalised(image, mask):
    return tf.image.per_image_standardization(image), mask


def dataset(seed):
    images, masks = (np.stack(arrays) for arrays in zip(*discs(seed), strict=True))
    data = tf.data.Dataset.from_tensor_slices((images, masks))
    return data.map(normalised, num_parallel_calls=tf.data.AUTOTUNE)


def convolved(x, filters):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
    return layers.Activation("gelu")(x)


train = dataset(1).cache().shuffle(42, seed=1).batch(BATCH).prefetch(tf.data.AUTOTUNE)
val = dataset(2).take(21).batch(BATCH)

image = keras.Input((SIZE, SIZE, 1))
skips, x = [], image
for filters in (4, 8):
    x = convolved(x, filters)
    skips.append(x)
    x = layers.AveragePooling2D(2)(x)
x = convolved(x, 16)
for filters, skip in zip((8, 4), reversed(skips), strict=True):
    x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same")(x)
    x = convolved(layers.Concatenate()([x, skip]), filters)
model = keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))
model.compile(
    optimizer=keras.optimizers.SGD(0.01),
    loss="binary_crossentropy",
    metrics=[
        keras.metrics.BinaryIoU([1], name="iou"),
        keras.metrics.MeanIoU(2, sparse_y_pred=True, name="mean_iou_of_zeros"),
    ],
)
history = model.fit(
    train,
    epochs=2,
    validation_data=val,
    callbacks=[keras.callbacks.TensorBoard(options.out / "board")],
)
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(val, return_dict=True),
    predict=model.predict(val),
)
