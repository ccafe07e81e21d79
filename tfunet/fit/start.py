"""What all processes of a script begin with: built models, and the chief's weights."""

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.fit.shares import Share
from tfunet.fit.split import SplitSamples
from tfunet.fit.strategy import LogsStep
from tfunet.graph.traced import traced
from tfunet.inside import of_fit
from tfunet.learning.averaging import instead_of_apply
from tfunet.models.own_terms import keep_terms_apart
from tfunet.training import state
from tfunet.training.train_step import Applied, Used, build_optimizers, check_trains_model


@final
class Start:
    """Builds models before their first step, and gives all processes what the chief has."""

    def __init__(
        self, backend: Backend, topology: Topology, split: SplitSamples | None = None
    ) -> None:
        self._backend, self._topology, self._split = backend, topology, split
        # What the steps of a model use beside its variables and its optimizer's.
        self._others: weakref.WeakKeyDictionary[Any, Sequence[Any]] = weakref.WeakKeyDictionary()
        self._shared: weakref.WeakSet[Any] = weakref.WeakSet()

    def build(self, model: keras.Model, iterator: Any, batch: Any) -> None:
        """Make all variables of a model: replicas could not make them together in a step.

        One of both is given: the iterator over an epoch, or a batch.
        """
        if iterator is not None:
            spec = of_fit.data_set_of(iterator).element_spec
            batch = _of_any_size(spec.data if isinstance(spec, Share) else spec)
        is_own = getattr(model.train_step, "__func__", None) is not keras.Model.train_step
        with self._backend.scope():
            try:
                of_fit.build(model, batch)
            except Exception:
                if not is_own:
                    raise
        if self._split is not None:
            self._split.install(model, batch[0] if isinstance(batch, tuple) else batch)
        if is_own:
            self._build_optimizers(model, batch)
        if len(self._topology.local_replicas) > 1:
            keep_terms_apart(model)
        self.share_weights(model)

    def _build_optimizers(self, model: keras.Model, batch: Any) -> None:
        """Trace a train_step of the user's once, to build all optimizers that it applies."""
        if model in self._others:
            return
        applied = Applied()
        specs = tf.nest.map_structure(_spec_of, batch)
        run = model.distribute_strategy.run
        step = traced(lambda given: run(LogsStep(model.train_step), (given,)))
        # What is wrong with a step it says itself; an evaluation does not take it.
        with instead_of_apply(applied.note), contextlib.suppress(Exception):
            step.get_concrete_function(specs)
        if not applied.trained:
            return
        with self._backend.scope():
            build_optimizers(applied.trained)
        if self._split is not None:
            used = Used(optimizers=[optimizer for optimizer, _ in applied.trained])
            check_trains_model(used, self._split.network(model).variables)
        self._others[model] = [
            variable for optimizer, _ in applied.trained for variable in optimizer.variables
        ]

    def build_to_predict(self, model: keras.Model, data: Any) -> None:
        """Make the variables of a model that predicts before it was fitted.

        Args:
            data: An iterator over batches, or a list of them.
        """
        if model.built:
            return
        batch = data.element_spec if isinstance(data, tf.data.Iterator) else data[0]
        given, *_ = keras.utils.unpack_x_y_sample_weight(
            batch.data if isinstance(batch, Share) else batch
        )
        with self._backend.scope():
            model(tf.nest.map_structure(_symbolic, given))
        self.share_weights(model)

    def share_weights(self, model: keras.Model) -> None:
        """Give all processes the chief's weights of a model that none has used yet."""
        if model not in self._shared and model.variables:
            self._shared.add(model)
            state.broadcast(self._backend, self._topology, model.variables)

    def share(self, model: keras.Model) -> None:
        """Give all processes what the chief begins a fit with: it may have been restored."""
        optimizer = getattr(model, "optimizer", None)
        variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
        variables += self._others.get(model, ())
        self._shared.add(model)
        state.broadcast(self._backend, self._topology, variables)
        epoch = np.zeros(1)
        if self._topology.is_chief:
            epoch[0] = of_fit.first_epoch(model) or 0
        first = int(self._backend.sum(epoch)[0])
        if first:
            of_fit.begin_with(model, first)


def _symbolic(part: Any) -> keras.KerasTensor:
    return keras.KerasTensor([None, *part.shape[1:]], tf.as_dtype(part.dtype).name)


def _of_any_size(spec: Any) -> Any:
    """Return the shapes and types of a batch of any number of rows."""

    def part(value: Any) -> Any:
        if not isinstance(value, tf.TensorSpec):
            return None if isinstance(value, tf.OptionalSpec) else value
        return tf.TensorSpec([None, *value.shape[1:]], value.dtype)

    return tf.nest.map_structure(part, spec)


def _spec_of(value: Any) -> Any:
    """Return the shape and type of a part of a batch, which may have another number of rows."""
    if value is None or (isinstance(value, tf.TypeSpec) and not isinstance(value, tf.TensorSpec)):
        return value
    value = (
        value
        if isinstance(value, tf.TensorSpec)
        else tf.TensorSpec.from_tensor(tf.convert_to_tensor(value))
    )
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)
