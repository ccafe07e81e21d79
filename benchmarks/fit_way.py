"""A fit script as a user writes it, started by scaling.py as one process of a run.

python benchmarks/fit_way.py FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfunet
from tfunet.config.run import from_json
from tfunet.data.generated.phantoms import cells
from tfunet.data.split import split_cases
from tfunet.models.make import make_model


class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds = []
        self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])  # Waits for the device.
        now = time.perf_counter()
        self.seconds.append(now - self.since)
        self.since = now


def main(folder):
    place = tfunet.distribute()
    config = from_json((Path(folder) / "config.json").read_text())
    source = cells(**config.data_options)
    train = split_cases(source, seed=config.split_seed).train
    images, masks = (np.stack(part) for part in zip(*map(source.read, train), strict=True))
    keras.utils.set_random_seed(0)
    model = make_model(
        config.model,
        image_shape=(*source.patch, source.channels),
        num_classes=source.num_classes,
        options=config.model_options,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(config.learning_rate), loss)
    dataset = tf.data.Dataset.from_tensor_slices((images, masks.astype("int32")))
    dataset = dataset.shuffle(len(images), seed=0).repeat().batch(config.global_samples)
    clock = Clock()
    model.fit(
        dataset.prefetch(tf.data.AUTOTUNE),
        epochs=1,
        steps_per_epoch=config.steps,
        verbose=0,
        callbacks=[clock],
    )
    weights = np.concatenate([array.ravel() for array in model.get_weights()])
    facts = {
        "seconds": clock.seconds,
        "parameters": model.count_params(),
        "weights": [float(weights.sum(dtype=np.float64)), float(np.abs(weights).max())],
    }
    path = Path(folder) / f"peer-{place.process_index}.json"
    path.write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
