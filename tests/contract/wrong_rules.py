"""Faults that are put into the package, each of which makes a step another one."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tf_native.mirrored import MirroredBackend
from tfunet.geometry.reach import Reach
from tfunet.learning import pass_states
from tfunet.parallel import losses, rules, window_inputs
from tfunet.state import shared
from tfunet.training import staged_network, tiling, whole
from tfunet.training.state import MetricState


def all_layers_are_pointwise(patch):
    patch.setattr(
        rules,
        "is_pointwise_layer",
        lambda layer: isinstance(layer, keras.layers.Softmax | keras.layers.Activation),
    )


def all_losses_are_pixelwise(patch):
    patch.setattr(losses, "is_pixelwise_loss", lambda *_: True)


def each_pass_changes_states(patch):
    patch.setattr(pass_states.PassStates, "one_pass", lambda _: contextlib.nullcontext())


def replicas_share_terms(patch):
    patch.setattr(whole, "keep_terms_apart", lambda _: None)


class Short(Reach):
    """Takes the last row that lies in the input for padding."""

    def inside(self, begin, end, extent):
        first, last = super().inside(begin, end, extent)
        return first, last - (last < extent)

    def padding(self, begin, end, extent):
        before, after = super().padding(begin, end, extent)
        return before, after + (end < extent)


def halo_is_a_row_too_small(patch):
    right = window_inputs.window_reach

    def short(*arguments, **options):
        return Short(**vars(right(*arguments, **options)))

    patch.setattr(window_inputs, "window_reach", short)
    # It would find the border that is missing.
    patch.setattr(rules, "can_be_corrected", lambda *_: False)


def gradients_are_summed(patch):
    right = MirroredBackend.average
    patch.setattr(MirroredBackend, "average", lambda *given: [2 * value for value in right(*given)])


def all_replicas_get_the_first_ones_samples(patch):
    right = MirroredBackend.run

    def run(backend, step, *batches):
        first = tf.nest.map_structure(lambda value: tf.stack([value[0]] * len(value)), batches)
        return right(backend, step, *first)

    patch.setattr(MirroredBackend, "run", run)


def metrics_are_of_the_first_replica(patch):
    right = MetricState.results

    def results(state, total):
        # The loss, which comes first, is of all.
        return right(state, np.append(total[:2], state._read().numpy()[0][2:]))

    patch.setattr(MetricState, "results", results)


def halo_of_tiles_is_a_row_too_small(patch):
    right = tiling.reach
    patch.setattr(tiling, "reach", lambda model: tuple(rows - 1 for rows in right(model)))


def each_stage_clips_alone(patch):
    # Keras's own, by the norm of the gradients that it is given.
    patch.setattr(
        staged_network.StagedNetwork,
        "_clipping",
        lambda network, stage, *_: network._owned.optimizers[stage.number]._clip_gradients,
    )


def a_share_is_skipped(patch):
    patch.setattr(shared.SliceUpdate, "update", lambda *_: None)


def a_share_is_updated_twice(patch):
    right = shared.WholeUpdate.update

    def twice(update, gradients):
        right(update, gradients)
        right(update, gradients)

    patch.setattr(shared.WholeUpdate, "update", twice)


def a_share_comes_back_stale(patch):
    right = shared.SharedUpdates._packed

    def stale(updates, sent, received, dtype):
        came = right(updates, sent, received, dtype)
        return {device: [value * 0.9 for value in values] for device, values in came.items()}

    patch.setattr(shared.SharedUpdates, "_packed", stale)


def a_gradient_misses_a_replica(patch):
    patch.setattr(shared.tf, "add_n", lambda values: values[0] * len(values))
