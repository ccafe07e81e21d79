"""Moving statistics of replicas in one process, which see different samples, become their mean."""

import os
import subprocess
import sys

import pytest
from paths import ROOT

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

from tf_native.mirrored import MirroredBackend
from tfunet.backend import Launch
from tfunet.training.state import average_statistics

backend = MirroredBackend(Launch(num_replicas=2))
topology = backend.start()
with backend.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization(momentum=0.0)])
rows = tf.constant([[1.0], [3.0], [10.0], [14.0]])
mean, variance = model.non_trainable_variables


def train():
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    model(tf.slice(rows, [2 * tf.cast(index, tf.int32), 0], [2, 1]), training=True)
    return tf.zeros(())


def values():
    own = lambda: [tf.identity(mean.value), tf.identity(variance.value)]
    return [of.numpy().ravel().tolist() for of in tf.function(lambda: backend.run(own))()]


tf.function(lambda: backend.run(train))()
assert values() == [[2.0, 12.0], [1.0, 4.0]], values()
average_statistics(backend, topology, model)
print(values())
"""


@pytest.mark.multiprocess
def test_statistics_of_replicas_in_one_process_are_averaged():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.stdout.splitlines()[-1:] == ["[[7.0, 7.0], [2.5, 2.5]]"], done.stderr[-2000:]
