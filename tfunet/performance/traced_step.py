"""Traces one replica's training step without running it, and predicts the memory that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.config.run import RunConfig
from tfunet.data.class_weights import class_weights
from tfunet.data.task import Task
from tfunet.graph import reader
from tfunet.graph.step import Trace
from tfunet.inside.of_keras import build_metrics
from tfunet.swap.arena.device_memory import sizes
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.training.compiled_model import compiled_model
from tfunet.training.loss import make_loss


@final
@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """A step of some samples, and what is in memory all through it.

    Args:
        weight_bytes: Size of each trainable weight.
        variables_bytes: Size of each weight and each of the optimizer's variables.
        more_bytes: Size of the batch and of constants.
    """

    trace: Trace
    samples: int
    weight_bytes: Sequence[int]
    variables_bytes: Sequence[int]
    more_bytes: int

    @property
    def resident_bytes(self) -> int:
        """Bytes in memory before, during and after the step."""
        return sum(self.variables_bytes) + self.more_bytes

    @property
    def total_bytes(self) -> int:
        """Most bytes in memory at once, if every tensor stays until it was read for the last
        time. The gaps that an allocator leaves between its blocks are not counted."""
        peak_bytes = memory(self.trace, schedule(self.trace, {})).max(initial=0)
        return self.resident_bytes + int(peak_bytes)


def traced_step(config: RunConfig, task: Task) -> TracedStep:
    """Return the step of a configuration on a task; only weights and slots are allocated.

    Raises ValueError for a configuration that cannot be trained, and for parts of a sample or of a
    network.
    """
    if config.num_devices > config.num_replicas or config.tiling:
        raise ValueError(
            "A step in stages, or on parts or tiles of samples, is not traced here: `tfunet plan "
            "RUN.toml` predicts its time and memory."
        )
    # An optimizer of one device has all states, of which each device has a share.
    sharing = config.num_devices if config.zero else 1
    task = replace(task, config=replace(config, zero=0))
    keras.config.set_dtype_policy(config.precision)
    loss = make_loss(task, class_weights(config, task.source))
    model = compiled_model(task, loss)
    samples = config.replica_samples // config.accumulation
    image = tf.TensorSpec((samples, *task.patch, task.source.channels), tf.float32)
    targets = len(task.source.targets)
    truth = tf.TensorSpec((samples, *task.patch), tf.uint8)
    truth = tf.TensorSpec((samples, targets), tf.float32) if targets else truth
    build_metrics(model, image, truth)

    @tf.function(autograph=False, jit_compile=False)
    def step(one: tf.Tensor, other: tf.Tensor) -> Any:
        return model.train_step((one, other))

    graph = step.get_concrete_function(image, truth).graph
    ops = reader.in_order(graph.get_operations(), graph.outputs)
    trace, _ = reader.read(ops, graph.outputs)
    return TracedStep(
        trace=trace,
        samples=samples,
        weight_bytes=sizes(model.trainable_variables),
        variables_bytes=[
            *sizes(model.variables),
            *(size // sharing for size in sizes(model.optimizer.variables)),
        ],
        more_bytes=reader.num_bytes(image) + reader.num_bytes(truth) + trace.constant_bytes,
    )
