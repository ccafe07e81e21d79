"""Backends that each break one promise, to see the contract go red."""

import dataclasses

import tensorflow as tf

from tf_native.multiworker import MultiWorkerBackend
from tfunet.backend import Topology
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.pipeline import TrainingPipeline
from tfunet.single_device import SingleDevice


class Wrapped:
    """Passes everything on to the real backend; a subclass changes one thing."""

    real = MultiWorkerBackend
    name = "broken"

    def __init__(self, launch):
        self.launch = launch
        self.inner = self.real(launch)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class SumsGradients(Wrapped):
    """All replicas agree, and take steps that are too large: clipping is off in its run."""

    def average(self, gradients):
        return [2 * gradient for gradient in self.inner.average(gradients)]


class AveragesNothing(Wrapped):
    """Each process trains alone, as Horovod's own Keras layer does with Keras 3."""

    def average(self, gradients):
        return list(gradients)


class FeedsEveryReplicaTheSame(Wrapped):
    """Every process reads the first process's share."""

    def feed(self, pipeline):
        return self.inner.feed(lambda _: pipeline(range(1)))


class SkipsSamples(Wrapped):
    """The first step of every feed is lost: each process is one step ahead in its data."""

    def feed(self, pipeline):
        return self.inner.feed(lambda replicas: pipeline(replicas).skip(1).repeat())


class EvaluatesTheSameEverywhere(Wrapped):
    """Every process scores the first process's cases, so that some count twice, some never."""

    def feed(self, pipeline):
        if isinstance(pipeline, EvaluationPipeline):
            return self.inner.feed(lambda _: pipeline(range(1)))
        return self.inner.feed(pipeline)


class EveryProcessIsChief(Wrapped):
    """All processes believe that they write the files."""

    def start(self):
        found = self.inner.start()
        return Topology(
            process_index=0,
            process_count=found.process_count,
            num_replicas=found.num_replicas,
            local_replicas=found.local_replicas,
        )


class StartsTheDataAnew:
    """When a run goes on, the order begins again at the first sample."""

    name = "broken"

    def __init__(self, launch):
        self.inner = SingleDevice(launch)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def feed(self, pipeline):
        if isinstance(pipeline, TrainingPipeline):
            pipeline = dataclasses.replace(pipeline, first_step=0)
        return self.inner.feed(pipeline)


class DropsARow(Wrapped):
    """The last value of what is exchanged between the parts of a sample gets lost."""

    def exchange(self, sent, received, dtype):
        came = self.inner.exchange(sent, received, dtype)
        return {
            other: tf.reshape(tf.concat([tf.reshape(value, [-1])[:-1], [0.0]], 0), value.shape)
            for other, value in came.items()
        }


class ForgetsTheBackwardPass(Wrapped):
    """The gradients of what other devices have read do not come back."""

    def exchange(self, sent, received, dtype):
        came = self.inner.exchange(sent, received, dtype)
        is_backward = any("gradient_tape" in value.name for value in sent.values())
        return {
            other: tf.zeros_like(value) if is_backward else value for other, value in came.items()
        }
