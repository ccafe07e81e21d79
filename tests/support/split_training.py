"""Optimizer steps on parts of samples against the same steps on one device, in one process."""

import keras
import numpy as np
import tensorflow as tf
from split_check import relative
from threads import Threads

from tfunet.parallel.losses import split_loss
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import cut

STEPS = 5


class MeanSquare(keras.Loss):
    """A value for each voxel, or for each sample of a network that predicts numbers."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred - y_true), axis=-1)


def difference(build, split, optimizer, *, batch=1, bounds=None):
    """Return the largest difference of a weight after five steps, over the weight's largest value.

    Args:
        build: Makes the model, with the same weights each time.
        split: Parts along each axis.
        optimizer: Makes an optimizer.
        batch: Samples of a step.
        bounds: Of the parts; by default even ones.
    """
    model = build()
    shape = model.input.shape[1:]
    rng = np.random.RandomState(0)
    steps = []
    for _ in range(STEPS):
        image = tf.constant(rng.normal(size=(batch, *shape)) + 0.5, model.compute_dtype)
        truth = rng.normal(size=(batch, *model.output.shape[1:]))
        steps.append((image, tf.constant(truth, model.compute_dtype)))
    mesh = Mesh(split=split)
    bounds = bounds or part_bounds(shape[:-1], split)
    is_image = len(model.output.shape) == len(model.input.shape)

    def train(network, loss, own, average):
        made = optimizer()
        made.build(network.trainable_variables)
        for image, truth in steps:
            with tf.GradientTape() as tape:
                output = network(own(image), training=True)
                value = tf.reduce_mean(loss.call(own(truth) if is_image else truth, output))
            weights = [variable.value for variable in network.trainable_variables]
            gradients = tape.gradient(value, weights, unconnected_gradients="zero")
            made.apply(list(map(average, gradients)))
        return [variable.numpy() for variable in network.trainable_variables]

    twins = [build() for _ in range(mesh.parts)]
    expected = train(model, MeanSquare(), lambda tensor: tensor, lambda gradient: gradient)

    def device(group):
        twin, loss = twins[group.device], MeanSquare()
        network = SplitNetwork(model=twin, mesh=mesh, bounds=bounds, group=lambda: group)
        network.install()
        split_loss(loss, network)
        return train(
            twin,
            loss,
            lambda tensor: cut(group, tensor, bounds).tensor,
            lambda gradient: group.sum(gradient) / mesh.parts,
        )

    results = Threads(mesh).run(device)
    for other in results[1:]:
        for ours, first in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(ours, first)
    return max(relative(ours, theirs) for ours, theirs in zip(results[0], expected, strict=True))
