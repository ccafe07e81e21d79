"""A convolutional autoencoder takes the noise from images."""

import keras
import numpy as np
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()

rng = np.random.default_rng(1)
rows, columns = np.mgrid[:16, :16]
centres = rng.uniform(3, 13, size=(2, 117, 1, 1))
clean = np.exp(-((rows - centres[0]) ** 2 + (columns - centres[1]) ** 2) / 8)[..., None]
clean = clean.astype("float32")
noisy = np.clip(clean + rng.normal(scale=0.2, size=clean.shape), 0, 1).astype("float32")

model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        layers.Conv2D(8, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(2, padding="same"),
        layers.Conv2D(8, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(2, padding="same"),
        layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same"),
        layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same"),
        layers.Conv2D(1, 3, activation="sigmoid", padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.SGD(0.5), loss="binary_crossentropy", metrics=["mae"])
# The seventh batch of an epoch has one image.
history = model.fit(
    noisy[:97], clean[:97], epochs=3, batch_size=16, validation_data=(noisy[97:], clean[97:])
)
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(noisy[97:], clean[97:], return_dict=True),
    predict=model.predict(noisy[97:]),
)
