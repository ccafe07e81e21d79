"""A run whose devices have the whole network each."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.data.pipeline import truth_of
from tfunet.graph.capture import needed_later
from tfunet.learning.averaging import Averaging, Switch, check_overwriting
from tfunet.learning.own_metric import of_batches
from tfunet.models.own_terms import keep_terms_apart
from tfunet.state.shared_slot import with_slots
from tfunet.training.attempt import Attempt
from tfunet.training.compiled_model import compiled_model
from tfunet.training.held import EveryVariable
from tfunet.training.placing import Assembled, Batch, Ready, on_devices
from tfunet.training.run_data import RunData
from tfunet.training.sharing import Sharing
from tfunet.training.tiling import check_model
from tfunet.training.train_step import check_trains_model, look_at_step


@final
@dataclass(frozen=True)
class Whole:
    """Places all layers on each device; see `Placing`."""

    attempt: Attempt
    data: RunData

    def scope(self) -> AbstractContextManager[Any]:
        return self.attempt.backend.scope()

    def make(self, loss: keras.Loss) -> keras.Model:
        config, support = self.attempt.config, self.attempt.support
        if len(self.attempt.topology.local_replicas) > 1:
            support = None  # Weights are for each of them.
        with self.scope():
            model = compiled_model(
                self.data.task,
                loss,
                num_replicas=config.num_replicas,
                steps_per_epoch=self.data.steps_per_epoch,
                metrics=of_batches(config.metrics),
                image_shape=self.data.input_shape,
                initial_weights=self.attempt.initial_weights,
                support=support,
                say=self.attempt.say,
            )
        if len(self.attempt.topology.local_replicas) > 1:
            keep_terms_apart(model)
        if self.data.tiles is not None:
            check_model(model)
        return model

    def place(self, made: Assembled, batch: Batch) -> "WholeModel":
        if made.split is not None:
            made.split.install()
        return WholeModel(self.attempt, made)

    def alike(self, attempt: Attempt, data: RunData) -> "Whole":
        return Whole(attempt, data)


@final
class WholeModel:
    """A model that each device has whole; see `Placed`."""

    def __init__(self, attempt: Attempt, made: Assembled) -> None:
        self._attempt, self._made = attempt, made
        self.support = attempt.support
        split = made.split
        self.run = None if split is None else partial(on_devices, attempt.backend, split)

    def looking(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def ready(self, batch: Batch) -> Ready:
        attempt, made, truth = self._attempt, self._made, truth_of(batch)
        config, backend, topology = attempt.config, attempt.backend, attempt.topology
        exchange = None if made.groups is None else made.groups.exchange
        model, sharing = made.model, Sharing(attempt, exchange)
        with backend.scope():
            # Who has built it already made all states on each device: with zero, that is refused.
            if config.zero or not model.optimizer.built:
                sharing.build(model.optimizer, model.trainable_variables)
        used = look_at_step(
            model,
            backend,
            image=(config.replica_samples // config.accumulation, *batch["image"].shape[1:]),
            truth=tf.TensorSpec(truth.shape[1:], truth.dtype),
            accumulation=config.accumulation,
            num_replicas=topology.num_replicas,
            build=sharing.build,
        )
        with backend.scope():
            check_overwriting(used.optimizers)
        if made.split is not None:
            check_trains_model(used, made.split.variables)
        weights = [*model.variables, *used.trained]
        variables = [
            *model.variables,
            *with_slots(model.optimizer.variables),
            *used.trained,
            *used.others,
        ]
        # XLA compiles the step as a whole: its parts cannot be timed.
        is_noted = not config.xla and topology.num_replicas > 1
        average = Switch(backend.average, attempt.note if is_noted else None)
        return Ready(
            average=average,
            averaging=Averaging(
                average=average,
                keep=needed_later,
                accumulation=config.accumulation,
                optimizers=used.optimizers,
                is_alone=topology.num_replicas == 1,
                shared=sharing.updates(average, weights),
            ),
            held=EveryVariable(backend, topology, model, variables),
            weights=weights,
            variables=variables,
        )
