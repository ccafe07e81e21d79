"""Horovod that loses known times: in its input, in its average of gradients, on one process."""

import time

import tensorflow as tf

from hvd.backend import HorovodBackend
from tfunet.data.pipeline import TrainingPipeline


class Delayed:
    """As if the disk, the network and the last process were slow, each by so many seconds."""

    name = "delayed"

    def __init__(self, launch, input_seconds, average_seconds, straggler_seconds):
        self.inner = HorovodBackend(launch)
        self.input_seconds, self.average_seconds = input_seconds, average_seconds
        is_last = launch.process_index == launch.process_count - 1
        self.step_seconds = straggler_seconds if is_last else 0.0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def feed(self, pipeline):
        if not isinstance(pipeline, TrainingPipeline) or pipeline.synthetic:
            return self.inner.feed(pipeline)
        seconds = self.input_seconds
        return self.inner.feed(lambda some: pipeline(some).map(lambda one: late(seconds, one)))

    def run(self, step, *arguments):
        if not arguments:  # An average alone.
            return self.inner.run(step)
        return self.inner.run(lambda *given: step(*late(self.step_seconds, given)), *arguments)

    def average(self, gradients):
        return late(self.average_seconds, self.inner.average(gradients))


def late(seconds, tensors):
    """The same tensors, some seconds after they were there."""

    def wait():
        time.sleep(seconds)
        return 0.0

    with tf.control_dependencies(tf.nest.flatten(tensors)):
        waited = tf.py_function(wait, [], tf.float32)
    with tf.control_dependencies([waited]):
        return tf.nest.map_structure(tf.identity, tensors)
