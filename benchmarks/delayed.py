"""Any backend, losing known times: in its input, in its average of gradients, on one process."""

import time

import tensorflow as tf

from tfunet.backend import BACKENDS
from tfunet.config.refs import resolve
from tfunet.data.pipeline import TrainingPipeline
from tfunet.timing.stamps import unordered


class Delayed:
    """As if the disk, the network and the last process were slow, each by so many seconds.

    Args:
        launch: What this process is told of the run.
        backend: Name of the one that does the work.
        input_seconds: Longer for every batch of a process.
        average_seconds: Longer for every average of gradients.
        straggler_seconds: Longer for every step of the last process.
    """

    name = "delayed"

    def __init__(
        self,
        launch,
        backend="horovod",
        input_seconds=0.0,
        average_seconds=0.0,
        straggler_seconds=0.0,
    ):
        self.inner = resolve("backend", backend, BACKENDS)(launch)
        self.input_seconds, self.average_seconds = input_seconds, average_seconds
        is_last = launch.process_index == launch.process_count - 1
        self.step_seconds = straggler_seconds if is_last else 0.0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def feed(self, pipeline):
        if not isinstance(pipeline, TrainingPipeline) or pipeline.synthetic:
            return self.inner.feed(pipeline)
        # Last, or TensorFlow would make batches ahead, and hide the delay.
        return self.inner.feed(pipeline).map(lambda batch: late(self.input_seconds, batch))

    def run(self, step, *arguments):
        if not arguments:  # An average alone.
            return self.inner.run(step)
        return self.inner.run(lambda *given: step(*late(self.step_seconds, given)), *arguments)

    def average(self, gradients):
        return late(self.average_seconds, self.inner.average(gradients))


def late(seconds, tensors):
    """The same tensors, some seconds after they were there."""
    if not seconds:
        return tensors

    def wait():
        time.sleep(seconds)
        return 0.0

    with tf.control_dependencies(tf.nest.flatten(tensors)):
        waited = tf.py_function(wait, [], tf.float32)
    if not tf.executing_eagerly():
        unordered(waited.op)
    with tf.control_dependencies([waited]):
        return tf.nest.map_structure(tf.identity, tensors)
