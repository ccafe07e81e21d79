"""A small convolutional network tells digits apart."""

import keras
import numpy as np
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()

# Ten patterns under noise stand in for the digits.
rng = np.random.default_rng(1)
patterns = rng.uniform(size=(10, 28, 28, 1))
labels = rng.integers(10, size=230)
images = (0.6 * patterns[labels] + 0.4 * rng.uniform(size=(230, 28, 28, 1))).astype("float32")
labels = keras.utils.to_categorical(labels, 10)

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
    loss="categorical_crossentropy",
    metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(3, name="top3")],
)
history = model.fit(
    images[:200],
    labels[:200],
    batch_size=32,
    epochs=3,
    validation_split=0.1,
    callbacks=[
        keras.callbacks.ModelCheckpoint(options.out / "best.keras", save_best_only=True),
        keras.callbacks.CSVLogger(options.out / "log.csv"),
    ],
)
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(images[200:], labels[200:], return_dict=True),
    predict=model.predict(images[200:]),
)
