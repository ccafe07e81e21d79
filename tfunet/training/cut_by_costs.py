"""Where the network of a run is cut into stages, by what its layers cost on this machine."""

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfunet.data.pipeline import truth_of
from tfunet.machine.device import device_bytes
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.network import NodeGraph
from tfunet.swap.arena.device_memory import in_bytes
from tfunet.training.attempt import Attempt
from tfunet.training.own_variables import num_slots
from tfunet.training.placing import Assembled, Batch
from tfunet.training.run_data import RunData
from tfunet.training.stage_cut import StageCut, find_cut

# Returns the costs of a network's layers, with the loss of an output, for micro-batches of so many
# samples, measured here.
Costs = Callable[[NodeGraph, int, Callable[[Any], tf.Tensor]], Chain]


def cut_by_costs(
    attempt: Attempt,
    data: RunData,
    made: Assembled,
    graph: NodeGraph,
    batch: Batch,
    own: Batch,
    costs: Costs,
    optimizer: Callable[[], keras.Optimizer],
) -> StageCut:
    """Return the cut that the configuration names, or the best; called by all processes together.

    Args:
        graph: The layers of the model.
        batch: Whole windows.
        own: What a device works on of them.
        optimizer: Makes one like the model's, which is not built.
    """
    config, truth = attempt.config, truth_of(own)
    # With pipeline = "device", each device cuts its part from the whole sample.
    fed = batch if config.pipeline == "device" else own
    # With tiles, a tile is a micro-batch.
    fed_samples = config.micro_batches if config.tiling else config.replica_samples
    batch_bytes = fed_samples * sum(map(_sample_bytes, (fed["image"], truth_of(fed))))

    def measured() -> Chain:
        rows = fed_samples // config.micro_batches
        shape = (rows, *truth.shape[1:])
        groups = made.groups
        with contextlib.nullcontext() if groups is None else groups.exchange.off():
            chain = costs(
                graph, rows, lambda output: made.loss(tf.zeros(shape, truth.dtype), output)
            )
        # A step on tiles adds up the gradients of its passes in one more copy.
        copies = (2 if data.tiles is None else 3) + num_slots(optimizer())
        return replace(chain, copies=copies)

    return find_cut(
        attempt, graph, measured, batch_bytes=batch_bytes, memory_bytes=_memory_bytes(attempt, data)
    )


def _sample_bytes(batch: tf.Tensor) -> int:
    return math.prod(batch.shape[1:]) * batch.dtype.size


def _memory_bytes(attempt: Attempt, data: RunData) -> int | None:
    """Return the memory that each stage has; None where it is not known."""
    limit = device_bytes()
    if attempt.config.swap is not None:
        limit = min(in_bytes(attempt.config.swap), limit or sys.maxsize)
    if limit is None or attempt.has_gpus:
        return limit
    if attempt.topology.process_count == 1:
        return None  # Logical CPUs share one memory.
    # A CPU that plays a device also holds the samples that are read ahead.
    return max(0, limit - data.training(0).buffered_bytes)
