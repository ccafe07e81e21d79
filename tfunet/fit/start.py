"""What all processes of a script begin with: built models, and the chief's weights."""

import weakref
from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.fit.shares import Share
from tfunet.inside import of_fit
from tfunet.training import state


@final
class Start:
    """Builds models before their first step, and gives all processes what the chief has."""

    def __init__(self, backend: Backend, topology: Topology) -> None:
        self._backend, self._topology = backend, topology
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
        self.share_weights(model)

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
