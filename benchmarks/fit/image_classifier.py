"""The first blocks of MobileNetV2 on small images, augmented in tf.data."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()
SIZE, BATCH = 32, 12

# Three classes of stripes: across, down, and both.
rng = np.random.default_rng(1)
labels = rng.integers(3, size=100)
rows, columns = np.mgrid[:40, :40]
stripes = np.stack([np.sin(rows), np.sin(columns), np.sin(rows) * np.sin(columns)])
images = 127 + 80 * stripes[labels][..., None] + rng.normal(scale=20, size=(100, 40, 40, 3))
images = np.clip(images, 0, 255).astype("uint8")

augmentation = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomTranslation(0.1, 0)])


def resized(image, label):
    return tf.image.resize(image, (SIZE, SIZE)), tf.one_hot(label, 3)


def dataset(images, labels):
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data.map(resized, num_parallel_calls=tf.data.AUTOTUNE)


train = dataset(images[:70], labels[:70]).shuffle(70, seed=1).batch(BATCH)
train = train.map(lambda image, label: (augmentation(image, training=True), label)).prefetch(2)
val = dataset(images[70:], labels[70:]).batch(BATCH)


def synchronized(layer):
    """Return a copy of a layer; batch normalisation takes its statistics from all devices."""
    settings = layer.get_config()
    if isinstance(layer, layers.BatchNormalization):
        settings["synchronized"] = True
    return type(layer).from_config(settings)


network = keras.applications.MobileNetV2((SIZE, SIZE, 3), alpha=0.35, weights=None)
network = keras.Model(network.input, network.get_layer("block_3_expand_relu").output)
network = keras.models.clone_model(network, clone_function=synchronized)
inputs = keras.Input((SIZE, SIZE, 3))
x = network(layers.Rescaling(1 / 127.5, offset=-1)(inputs))
x = layers.GlobalAveragePooling2D()(x)
model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
model.compile(
    optimizer=keras.optimizers.SGD(0.01),
    loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    metrics=["accuracy"],
)
history = model.fit(
    train,
    epochs=2,
    validation_data=val,
    callbacks=[keras.callbacks.BackupAndRestore(options.out / "backup")],
)
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(val, return_dict=True),
    predict=model.predict(val),
)
