"""Stages of which each device has a part of every sample, in threads, against one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from threads import Pairs

from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.losses import split_loss
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import cut
from tfunet.pipeline.network import read_network
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.part_network import part_network
from tfunet.pipeline.schedules import homes

BATCH, STEPS = 4, 2


pytestmark = pytest.mark.usefixtures("float64")


def mixed():
    """Every kind of noise; statistics, and a tensor without rows, that cross the border."""
    image = keras.Input((12, 8, 2))
    first = layers.Conv2D(4, 3, padding="same", activation="gelu")(image)
    x = layers.Dropout(0.4, seed=1)(first)
    x = layers.GroupNormalization(2)(layers.Conv2D(4, 3, strides=2, padding="same")(x))
    x = layers.SpatialDropout2D(0.3, seed=2)(layers.MaxPooling2D(3, 1, padding="same")(x))
    x = layers.GaussianNoise(0.1, seed=3)(x)
    weight = layers.Dense(4, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.GaussianDropout(0.2, seed=4)(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.UpSampling2D()(layers.Multiply()([x, weight]))
    x = layers.AlphaDropout(0.2, seed=5)(layers.Concatenate()([x, first]))
    x = layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")(x)
    return keras.Model(image, layers.Conv2D(2, 1)(x + first))


def normalized():
    """Batches are normalized, and the sizes of parts differ."""
    image = keras.Input((10, 8, 2))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(image))
    x = layers.Conv2D(4, 3, padding="same", activation="tanh")(x)
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    return keras.Model(image, layers.Conv2D(2, 1)(layers.Concatenate()([x, image])))


def quiet():
    """Without chance; a skip over the border."""
    image = keras.Input((8, 8, 2))
    first = layers.Conv2D(4, 3, padding="same", activation="tanh")(image)
    x = layers.GroupNormalization(2)(layers.Conv2D(4, 3, strides=2, padding="same")(first))
    x = layers.Concatenate()([layers.UpSampling2D()(x), first])
    return keras.Model(image, layers.Conv2D(2, 3, padding="same")(x))


def numbers():
    """Numbers of a sample, from dense layers that every device has."""
    image = keras.Input((8, 8, 2))
    x = layers.MaxPooling2D()(layers.Conv2D(4, 3, padding="same", activation="relu")(image))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    x = layers.Dense(6, activation="relu")(layers.Flatten()(x))
    return keras.Model(image, layers.Dense(3)(layers.Dropout(0.3, seed=1)(x)))


NETWORKS = {build.__name__: build for build in (mixed, normalized, quiet, numbers)}


class MeanSquare(keras.Loss):
    """A value for each voxel, or for each sample of a network that predicts numbers."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred - y_true), axis=-1)


def built(name):
    keras.utils.set_random_seed(0)
    return NETWORKS[name]()


def batches(model):
    rng = np.random.RandomState(0)
    shapes = (BATCH, *model.input_shape[1:]), (BATCH, *model.output_shape[1:])
    return [[tf.constant(rng.normal(size=shape)) for shape in shapes] for _ in range(STEPS)]


def on_one_device(name):
    model, loss = built(name), MeanSquare()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    values = []
    for images, targets in batches(model):
        with tf.GradientTape() as tape:
            value = loss(targets, model(images, training=True)) + sum(model.losses)
        optimizer.apply(
            tape.gradient(value, [variable.value for variable in model.trainable_variables])
        )
        values.append(float(value))
    return model, values, model(batches(model)[0][0], training=False)


def as_it_comes(_, came):
    return came


def together(name, mesh, schedule, micro_batches, *, recompute=False, halo=as_it_comes):
    """Return of each device its variables by number, losses, and the whole output it predicts."""
    models = [built(name) for _ in range(mesh.num_devices)]
    data, bounds = batches(models[0]), part_bounds(models[0].input_shape[1:-1], mesh.split)

    def device(group):
        me, model, loss = group.device, models[group.device], MeanSquare()

        def exchange(*arguments):
            return halo(mesh.stage_of(me), group.exchange(*arguments))

        switch = ExchangeSwitch(exchange)
        members = SampleGroup(mesh=mesh, device=me, exchange=switch)
        split = SplitNetwork(model=model, mesh=mesh, bounds=bounds, group=lambda: members)
        split_loss(loss, split)

        def own(tensor):
            is_image = len(tensor.shape) == len(bounds) + 2
            return cut(members, tensor, bounds).tensor if is_image else tensor

        shape = own(data[0][0]).shape[1:]
        network = part_network(read_network(model), split, switch, shape)
        chunks = len(homes(schedule, mesh.stages))
        stage = OwnStage(
            network,
            np.linspace(0, len(network.nodes), chunks + 1).astype(int),
            mesh=mesh,
            device=me,
            exchange=group.exchange,
            schedule=schedule,
            micro_batches=micro_batches,
            recompute=recompute,
        )
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(stage.variables)
        rows, values = BATCH // mesh.groups, []
        samples = slice(mesh.group_of(me) * rows, (mesh.group_of(me) + 1) * rows)
        for images, targets in data:
            value, gradients, _ = stage.train(own(images[samples]), own(targets[samples]), loss)
            optimizer.apply(gradients, stage.variables)
            values.append(float(value))
        predicted = split.whole_output(stage.predict(own(data[0][0])), members)
        numbers = {id(variable): at for at, variable in enumerate(model.variables)}
        held = {
            numbers[id(variable)]: variable.numpy()
            for chunk in stage.chunks.values()
            for variable in (*chunk.variables, *chunk.states)
        }
        return held, values, predicted

    return Pairs(mesh).run(device)


def differences(held, model):
    """Return the largest difference of a weight, as a share of the largest, and of a state."""
    largest = max(np.abs(variable.numpy()).max() for variable in model.trainable_variables)
    trained = {id(variable) for variable in model.trainable_variables}
    apart = {True: [0.0], False: [0.0]}
    for at, value in held.items():
        one = model.variables[at]
        found = np.abs(value.astype(float) - one.numpy().astype(float)).max()
        apart[id(one) in trained].append(found)
    return max(apart[True]) / largest, max(apart[False])


@pytest.mark.parametrize(
    ("name", "mesh", "schedule", "micro_batches", "recompute"),
    [
        ("mixed", Mesh(split=(2, 1), stages=2), "1f1b", 4, False),
        ("mixed", Mesh(split=(1, 2), stages=2), "gpipe", 2, True),
        ("quiet", Mesh(split=(2, 2), stages=2), "v", 2, False),
        ("normalized", Mesh(split=(2, 1), stages=3), "1f1b", 1, False),
        ("numbers", Mesh(split=(2, 1), stages=2), "1f1b", 2, False),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_steps_are_those_of_one_device(name, mesh, schedule, micro_batches, recompute):
    expected, values, output = on_one_device(name)
    results = together(name, mesh, schedule, micro_batches, recompute=recompute)
    for held, losses, predicted in results:
        assert max(differences(held, expected)) <= 1e-12
        np.testing.assert_allclose(losses, values, rtol=1e-12)
        np.testing.assert_allclose(predicted, output, rtol=0, atol=1e-12)
    # Each stage has its variables, and all devices that have it the same bits of them.
    of_stages = [{*results[mesh.holders(stage)[0]][0]} for stage in range(mesh.stages)]
    assert sum(map(len, of_stages)) == len(set.union(*of_stages)) == len(expected.variables)
    for device, (held, _, _) in enumerate(results):
        first = results[mesh.holders(mesh.stage_of(device))[0]][0]
        assert {*held} == {*first}
        for at, value in held.items():
            np.testing.assert_array_equal(value, first[at])


def test_two_replicas_of_two_stages_of_two_parts_are_one_device_with_both_batches():
    expected, values, _ = on_one_device("quiet")
    mesh = Mesh(groups=2, split=(2, 1), stages=2)
    results = together("quiet", mesh, "1f1b", 2)
    for held, _, _ in results:
        assert differences(held, expected)[0] <= 1e-12
    means = np.mean([losses for _, losses, _ in results], axis=0)
    np.testing.assert_allclose(means, values, rtol=1e-12)


def without_borders(_, came):
    return {other: tf.zeros_like(value) for other, value in came.items()}


def without_borders_in_stage_2(stage, came):
    return without_borders(stage, came) if stage == 1 else came


@pytest.mark.parametrize("halo", [without_borders, without_borders_in_stage_2])
def test_a_broken_exchange_of_borders_is_found(halo):
    expected, _, _ = on_one_device("quiet")
    mesh = Mesh(split=(2, 1), stages=2)
    results = together("quiet", mesh, "1f1b", 2, halo=halo)
    assert max(differences(held, expected)[0] for held, _, _ in results) > 1e-6


def test_tensors_that_cross_are_those_of_the_part():
    mesh, model = Mesh(split=(2, 1), stages=2), built("numbers")
    switch = ExchangeSwitch(lambda *_: {})
    group = SampleGroup(mesh=mesh, device=0, exchange=switch)
    bounds = part_bounds((8, 8), mesh.split)
    split = SplitNetwork(model=model, mesh=mesh, bounds=bounds, group=lambda: group)
    network = part_network(read_network(model), split, switch, (4, 8, 2))
    shapes = [tuple(tensor.shape) for tensor in network.tensors]
    assert shapes[0] == (None, 4, 8, 2)
    assert (None, 2, 4, 4) in shapes
    assert shapes[-1] == (None, 3)
    assert (None, 64) in shapes  # Flat, as a whole.
    assert "(Flatten, " in split.summary()
    assert "2 devices of each stage (2 x 1)" in split.summary()
