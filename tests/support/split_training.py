"""Optimizer steps on parts of samples against the same steps on one device, in one process."""

import math

import keras
import numpy as np
import tensorflow as tf
from threads import Threads

from tfunet.parallel.losses import split_loss
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import cut


class MeanSquare(keras.Loss):
    """A value for each voxel, or for each sample of a network that predicts numbers."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred - y_true), axis=-1)


def differences(build, shape, splits, optimizer, steps):
    """Return for each split the largest difference of a weight after these steps.

    It is a share of the largest weight, whose own rounding is the measure.

    Args:
        build: Makes the model for images of `shape`, with the same weights each time.
        shape: (*spatial, channels).
        splits: Parts along each axis.
        optimizer: Makes an optimizer.
        steps: How many there are.
    """
    rng = np.random.RandomState(0)
    images = [
        tf.constant(rng.normal(size=(1, *shape)), keras.config.floatx()) for _ in range(steps)
    ]
    model, *twins = (build() for _ in range(1 + max(map(math.prod, splits))))
    state = [variable.numpy() for variable in model.variables]
    output = model(images[0])
    truths = [tf.constant(rng.normal(size=output.shape), output.dtype) for _ in images]
    is_image = len(output.shape) == len(shape) + 1

    def train(network, loss, own, average):
        for variable, value in zip(network.variables, state, strict=True):
            variable.assign(value)
        made = optimizer()
        made.build(network.trainable_variables)
        for image, truth in zip(images, truths, strict=True):
            with tf.GradientTape() as tape:
                made_output = network(own(image), training=True)
                value = tf.reduce_mean(loss.call(own(truth) if is_image else truth, made_output))
                value += sum(network.losses)
            weights = [variable.value for variable in network.trainable_variables]
            gradients = tape.gradient(value, weights, unconnected_gradients="zero")
            made.apply([average(gradient) for gradient in gradients])
        return [variable.numpy() for variable in network.trainable_variables]

    expected = train(model, MeanSquare(), lambda tensor: tensor, lambda gradient: gradient)
    largest = max(np.abs(weight).max() for weight in expected)

    def difference(split):
        mesh, bounds = Mesh(split=split), part_bounds(shape[:-1], split)

        def device(group):
            twin, loss = twins[group.device], MeanSquare()
            network = SplitNetwork(model=twin, mesh=mesh, bounds=bounds, group=lambda: group)
            network.install()
            split_loss(loss, network)
            weights = train(
                twin,
                loss,
                lambda tensor: cut(group, tensor, bounds).tensor,
                lambda gradient: group.sum(gradient) / mesh.parts,
            )
            network.uninstall()
            return weights

        results = Threads(mesh).run(device)
        for other in results[1:]:
            for ours, first in zip(other, results[0], strict=True):
                np.testing.assert_array_equal(ours, first)
        pairs = zip(results[0], expected, strict=True)
        return max(np.abs(ours - theirs).max() for ours, theirs in pairs) / largest

    return [difference(split) for split in splits]
