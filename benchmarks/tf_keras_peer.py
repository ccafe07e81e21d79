"""What a user would do instead: tf_keras `fit`, started by scaling.py as one process of a run.

TF_USE_LEGACY_KERAS=1 python benchmarks/tf_keras_peer.py multiworker|horovod FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tf_keras

from tf_native.multiworker import tf_config
from tfunet.config.run import from_json
from tfunet.connection import launch_from
from tfunet.data.generated.phantoms import cells
from tfunet.data.split import split_cases


class Clock(tf_keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds = []
        self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.seconds.append(now - self.since)
        self.since = now


def unet(shape, num_classes, *, filters, levels):
    """Return the same U-Net as tfunet's with these options."""
    layers = tf_keras.layers

    def twice(x, width):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", kernel_initializer="he_normal")(x)
            x = layers.ReLU()(x)
        return x

    entry = x = layers.Input(shape)
    skips = []
    for level in range(levels):
        x = twice(x, filters * 2**level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = twice(x, filters * 2**levels)
    for level in reversed(range(levels)):
        x = layers.Conv2DTranspose(filters * 2**level, 2, strides=2)(x)
        x = twice(layers.Concatenate()([skips[level], x]), filters * 2**level)
    return tf_keras.Model(entry, layers.Conv2D(num_classes, 1)(x))


def main(kind, folder):
    config = from_json((Path(folder) / "config.json").read_text())
    launch = launch_from(os.environ)
    for setter in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        getattr(tf.config.threading, setter)(len(os.sched_getaffinity(0)))
    source = cells(**config.data_options)
    train = split_cases(source, seed=config.split_seed).train
    images, masks = (np.stack(part) for part in zip(*map(source.read, train), strict=True))
    tf_keras.utils.set_random_seed(0)
    make = {"multiworker": multiworker, "horovod": with_horovod}[kind]
    model, dataset, callbacks = make(config, launch, source, images, masks.astype("int32"))
    clock = Clock()
    model.fit(
        dataset, epochs=1, steps_per_epoch=config.steps, verbose=0, callbacks=[clock, *callbacks]
    )
    weights = np.concatenate([array.ravel() for array in model.get_weights()])
    facts = {
        "seconds": clock.seconds,
        "parameters": model.count_params(),
        "weights": [float(weights.sum(dtype=np.float64)), float(np.abs(weights).max())],
    }
    (Path(folder) / f"peer-{launch.process_index}.json").write_text(json.dumps(facts))


def compiled(config, source, optimizer):
    options = {key: config.model_options[key] for key in ("filters", "levels")}
    model = unet((*source.patch, source.channels), source.num_classes, **options)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    return model


def multiworker(config, launch, source, images, masks):
    os.environ["TF_CONFIG"] = tf_config(launch)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = compiled(config, source, tf_keras.optimizers.Adam(config.learning_rate))
    # A finished dataset is what the documentation shows; the strategy cuts its batches.
    dataset = tf.data.Dataset.from_tensor_slices((images, masks)).shuffle(len(images), seed=0)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = dataset.repeat().batch(config.global_samples).prefetch(tf.data.AUTOTUNE)
    return model, batches.with_options(options), []


def with_horovod(config, launch, source, images, masks):
    import horovod.tensorflow.keras as horovod

    from hvd.backend import HorovodBackend

    HorovodBackend(launch).start()
    optimizer = horovod.DistributedOptimizer(tf_keras.optimizers.Adam(config.learning_rate))
    model = compiled(config, source, optimizer)
    dataset = tf.data.Dataset.from_tensor_slices((images, masks))
    dataset = dataset.shard(horovod.size(), horovod.rank()).shuffle(len(images), seed=0)
    batches = dataset.repeat().batch(config.replica_samples).prefetch(tf.data.AUTOTUNE)
    return model, batches, [horovod.callbacks.BroadcastGlobalVariablesCallback(0)]


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    # Neither peer ends cleanly when the other process is already gone.
    os._exit(0)
