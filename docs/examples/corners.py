"""Learns which corner of an image is brighter: a script for one device, with two new lines."""

import keras
import numpy as np

import tfunet  # new

this = tfunet.distribute()  # new

keras.utils.set_random_seed(1)
draw = np.random.default_rng(1)
corners = draw.integers(0, 4, 1009)
images = draw.normal(size=(1009, 16, 16, 1)).astype("float32")
for image, corner in zip(images, corners, strict=True):
    row, column = divmod(corner, 2)
    image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 0.5

model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        keras.layers.Conv2D(8, 3, use_bias=False),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.ReLU(),
        keras.layers.AveragePooling2D(7),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(4, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(
    images[:807],
    corners[:807],
    batch_size=64,
    epochs=3,
    validation_data=(images[807:], corners[807:]),
    callbacks=[
        keras.callbacks.ModelCheckpoint("corners.keras", save_best_only=True),
        keras.callbacks.CSVLogger("corners.csv"),
    ],
    verbose=2,
)

best = keras.saving.load_model("corners.keras")
loss, accuracy = best.evaluate(images[807:], corners[807:], verbose=0)
if this.is_chief:
    print(f"The best network finds {accuracy:.1%} of the corners.")
