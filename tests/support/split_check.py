"""Compares a model on parts of a sample with the same model on one device, in float64."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from threads import Threads

from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import Part, cut


def relative(ours, theirs, scale=None):
    """Return the largest difference, over the largest value or `scale`."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    largest = np.max(np.abs(theirs)) if scale is None else scale
    return float(np.max(np.abs(ours - theirs), initial=0) / max(largest, 1e-30))


def assert_exact(
    model,
    split,
    *,
    bounds=None,
    batch=2,
    training=True,
    tolerance=1e-12,
    gathers=(),
    calls=1,
    nudge=0.3,
):
    """Assert that output, loss, gradients and moving statistics are those of one device.

    Gradients are those of the input and of all weights. `gathers` are the classes of the layers
    that run on whole tensors. Draws are those of `calls` calls. Weights are changed by `nudge`.
    """
    spatial = tuple(model.input_shape[1:-1])
    rng = np.random.RandomState(0)
    for variable in model.trainable_variables:  # Zero biases and unit scales would hide mistakes.
        variable.assign(variable + nudge * rng.normal(size=variable.shape))
    image = rng.normal(size=(batch, *model.input_shape[1:])) + 0.5
    x = tf.constant(image, model.compute_dtype)
    state = [variable.numpy() for variable in model.variables]
    shape = model.compute_output_shape(x.shape)
    weight = tf.constant(rng.normal(size=shape), model.compute_dtype)

    def tapped(network, image, objective):
        weights = [variable.value for variable in network.trainable_variables]
        for _ in range(calls):
            with tf.GradientTape() as tape:
                tape.watch(image)
                value, output = objective(network)
        wanted = [image, *weights]
        return value, output, tape.gradient(value, wanted, unconnected_gradients="zero")

    def whole(network):
        output = network(x, training=training)
        return tf.reduce_sum(tf.sin(output) * weight), output

    loss, output, gradients = tapped(model, x, whole)
    mesh = Mesh(split=split)
    bounds = bounds or part_bounds(spatial, split)

    def device(group):
        twin = keras.models.clone_model(model)
        for variable, value in zip(twin.variables, state, strict=True):
            variable.assign(value)
        network = SplitNetwork(model=twin, mesh=mesh, bounds=bounds, group=lambda: group)
        own = cut(group, x, bounds).tensor

        def parts(_):
            made = network.run(twin, Part(tensor=own, bounds=bounds), group, training)
            if not isinstance(made, Part):
                return tf.reduce_sum(tf.sin(made) * weight), made
            theirs = cut(group, weight, made.bounds).tensor
            return group.sum(tf.reduce_sum(tf.sin(made.tensor) * theirs)), made.whole(group)

        value, made, slopes = tapped(twin, own, parts)
        moving = [variable.numpy() for variable in twin.non_trainable_variables]
        return value, made, slopes, moving, {entry.kind for entry in network.gathered.values()}

    results = Threads(mesh).run(device)
    image_gradient = np.zeros(x.shape)
    for number, (value, made, slopes, moving, gathered) in enumerate(results):
        assert gathered == set(gathers)
        assert relative(made, output) <= tolerance
        assert abs(float(value - loss)) <= tolerance * max(1, np.abs(weight).sum())
        place = mesh.place_of(number)
        rows = [
            slice(None) if edges is None else slice(*edges[place[axis] : place[axis] + 2])
            for axis, edges in enumerate(bounds)
        ]
        # Each device has the gradient of the sum of what all say, of which the mean is wanted.
        image_gradient[(slice(None), *rows)] = slopes[0] / mesh.parts
        for ours, theirs in zip(moving, model.non_trainable_variables, strict=True):
            assert relative(ours.astype(float), theirs.numpy().astype(float)) <= tolerance
    assert relative(image_gradient, gradients[0]) <= tolerance
    # A weight whose gradient is zero has rounding of the others in it.
    scale = max((np.max(np.abs(gradient)) for gradient in gradients[1:]), default=1)
    for index, theirs in enumerate(gradients[1:], start=1):
        mean = sum(np.asarray(slopes[index]) for _, _, slopes, _, _ in results) / mesh.parts
        assert relative(mean, theirs, scale) <= tolerance, model.trainable_variables[index - 1]


def layered(shape, *layers):
    """Return a model of layers, one after the other."""
    keras.utils.set_random_seed(1)
    image = tensor = keras.Input(shape)
    for layer in layers:
        tensor = layer(tensor)
    return keras.Model(image, tensor)


def every(*lists):
    """Return all combinations, the last list fastest."""
    return list(itertools.product(*lists))
