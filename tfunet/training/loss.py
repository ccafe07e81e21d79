"""The loss of a run, and what its model's output stands for: the one place that makes them."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfunet.data.cached_cases import CachedCases
from tfunet.data.class_weights import BALANCED, KEY, class_weights, given_weights, training_pixels
from tfunet.data.source import DataSource
from tfunet.data.task import Task
from tfunet.learning import losses
from tfunet.learning.outputs import ClassOutputs, Outputs, RegionOutputs
from tfunet.learning.region_loss import RegionLoss
from tfunet.training import checkpoint

if TYPE_CHECKING:
    from tfunet.training.attempt import Attempt


def make_loss(task: Task, weights: Sequence[float]) -> keras.Loss:
    """Return the loss that a configuration names, with its options and these weights of classes.

    For a network of regions it is the mean over them.
    """
    config, source = task.config, task.source
    options = config.loss_options
    if given_weights(config):
        options = {**options, KEY: list(weights)}
    loss = losses.make(config.loss, options)
    if not config.has_regions:
        return loss
    return RegionLoss(loss, list(source.regions.values()), source.num_classes)


def outputs_of(task: Task) -> Outputs:
    """Return what the channels of the model's output stand for, where there are masks."""
    if task.config.has_regions:
        return RegionOutputs(regions=task.source.regions)
    return ClassOutputs(num_classes=task.source.num_classes)


def shared_weights(
    attempt: "Attempt", source: DataSource, cases: CachedCases, train: Sequence[int]
) -> tuple[float, ...]:
    """Return the chief's weight of each class, in every process; called by all together.

    A run that goes on keeps the weights of data.json. Raises ValueError as `class_weights`.
    """
    folder, topology, text = attempt.folder, attempt.topology, b""
    if given_weights(attempt.config) == BALANCED:
        cases.learn(train)
    weights = class_weights(attempt.config, source, training_pixels(cases, train))
    if not weights:
        return ()
    if topology.is_chief:
        data = folder.read_data() if checkpoint.exists(folder) else None
        text = json.dumps((data or {}).get(KEY) or weights).encode()
    shared = checkpoint.share_bytes(attempt.backend, topology, np.frombuffer(text, np.uint8))
    return tuple(json.loads(shared))
