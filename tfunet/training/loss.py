"""The loss of a run: the one place that makes it of a configuration."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfunet.config.run import RunConfig
from tfunet.data.cached_cases import CachedCases
from tfunet.data.class_weights import KEY, class_weights, given_weights, training_pixels
from tfunet.data.source import DataSource
from tfunet.learning import losses
from tfunet.training import checkpoint

if TYPE_CHECKING:
    from tfunet.training.setup import Attempt


def make_loss(config: RunConfig, weights: Sequence[float]) -> keras.Loss:
    """Return the loss that a configuration names, with its options and these weights of classes."""
    options = config.loss_options
    if given_weights(config):
        options = {**options, KEY: list(weights)}
    return losses.make(config.loss, options)


def shared_weights(
    attempt: "Attempt", source: DataSource, cases: CachedCases, train: Sequence[int]
) -> tuple[float, ...]:
    """Return the chief's weight of each class, in every process; called by all together.

    A run that goes on keeps the weights of data.json. Raises ValueError as `class_weights`.
    """
    folder, topology, text = attempt.folder, attempt.topology, b""
    weights = class_weights(attempt.config, source, training_pixels(cases, train))
    if not weights:
        return ()
    if topology.is_chief:
        data = folder.read_data() if checkpoint.exists(folder) else None
        text = json.dumps((data or {}).get(KEY) or weights).encode()
    shared = checkpoint.share_bytes(attempt.backend, topology, np.frombuffer(text, np.uint8))
    return tuple(json.loads(shared))
