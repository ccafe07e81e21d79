"""Tiles that pass through stages, and parts of tiles, in threads: the gradient of whole samples."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fed_tiles import fed_tiles
from keras import layers
from threads import Pairs

from tfunet.geometry.grid import grid
from tfunet.geometry.receptive_field import alignment, reach
from tfunet.learning.own_part import as_pixels, loss_of_tile
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.feed import own_part, parts_of
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.pipeline.network import read_network
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.part_network import part_network
from tfunet.pipeline.schedules import homes

SHAPE, SAMPLES, CLASSES = (28, 20), 2, 3
TILING = (3, 1)  # Tiles have 10, 8 and 10 rows.

pytestmark = pytest.mark.usefixtures("float64")


def built(shape):
    """A skip over stages, pooling, and a penalty that counts once a step."""
    keras.utils.set_random_seed(0)
    image = keras.Input((*shape, 1))
    first = layers.Conv2D(3, 3, padding="same", activation="gelu")(image)
    x = layers.Conv2D(4, 3, strides=2, padding="same", kernel_regularizer="l2")(first)
    x = layers.UpSampling2D()(layers.Conv2D(3, 3, padding="same", activation="tanh")(x))
    x = layers.Conv2D(3, 3, padding="same")(layers.Concatenate()([x, first]))
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(x))


def data():
    rng = np.random.RandomState(0)
    return rng.normal(size=(SAMPLES, *SHAPE, 1)), rng.randint(0, CLASSES, (SAMPLES, *SHAPE))


def crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def on_whole_samples():
    """Loss, accuracy and gradients of one device."""
    model, (images, masks) = built(SHAPE), data()
    with tf.GradientTape() as tape:
        output = model(images, training=True)
        value = crossentropy()(masks, output) + sum(model.losses)
    gradients = tape.gradient(value, [variable.value for variable in model.trainable_variables])
    return float(value), np.mean(np.argmax(output, -1) == masks), gradients


def as_it_comes(_, came):
    return came


def on_tiles(mesh, schedule, micro_batches, *, recompute=False, halo=as_it_comes):
    """The same of each device: gradients by number, averaged; and pixels that it has seen."""
    whole = built(SHAPE)
    cut = grid(SHAPE, TILING, reach(whole), alignment(whole))
    assert not cut.is_finer_than_halo
    window = cut.largest_window
    bounds, rows = part_bounds(window, mesh.split), fed_tiles(cut, *data())
    models = [built(window) for _ in range(mesh.num_devices)]
    own_tiles = len(rows) // mesh.groups

    def device(group):
        me, model = group.device, models[group.device]
        switch = ExchangeSwitch(
            lambda *arguments: halo(mesh.stage_of(me), group.exchange(*arguments))
        )
        members = SampleGroup(mesh=mesh, device=me, exchange=switch)
        network, total = read_network(model), lambda value: value
        if mesh.is_split:
            split = SplitNetwork(model=model, mesh=mesh, bounds=bounds, group=lambda: members)
            place = members.place
            shape = [
                length if at is None else at[place[axis] + 1] - at[place[axis]]
                for axis, (length, at) in enumerate(zip(window, bounds, strict=True))
            ]
            network, total = part_network(network, split, switch, (*shape, 1)), members.sum
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
        first, sums, values, right = mesh.group_of(me) * own_tiles, [], [], []
        for begin in range(first, first + own_tiles, micro_batches):
            batch = {
                name: tf.concat([row[name] for row in rows[begin : begin + micro_batches]], 0)
                for name in rows[0]
            }
            if mesh.is_split:
                dataset = tf.data.Dataset.from_tensors(batch)
                batch = next(iter(parts_of(dataset, mesh, range(me, me + 1), bounds)))
                batch = own_part(batch, members, bounds)
            tiles = {name: batch[name] for name in ("mask", "own_start", "own_stop")}
            value, gradients, outputs = stage.passes(
                batch["image"],
                tiles,
                lambda tile, output: loss_of_tile(crossentropy(), tile, output, cut, total),
            )
            values.append(float(value))
            sums = [*map(tf.add, sums, gradients)] if sums else gradients
            for at, output in enumerate(outputs if stage.is_last else ()):
                tile = {name: part[at : at + 1] for name, part in tiles.items()}
                truth, logits = as_pixels(tile, tile["mask"]), as_pixels(tile, output)
                right.append(np.argmax(logits, -1) == truth.numpy())
        passes = own_tiles // micro_batches
        means = stage.averaged([total / passes for total in sums])
        numbers = {id(variable): at for at, variable in enumerate(model.trainable_variables)}
        held = {
            numbers[id(variable)]: mean.numpy()
            for variable, mean in zip(stage.variables, means, strict=True)
        }
        return held, np.mean(values), right

    return Pairs(mesh).run(device)


def difference(results, expected):
    """The largest of a gradient, as a share of the largest, on any device."""
    largest = max(np.abs(gradient).max() for gradient in expected)
    assert set.union(*(set(held) for held, _, _ in results)) == set(range(len(expected)))
    return max(
        np.abs(value - expected[at]).max() / largest
        for held, _, _ in results
        for at, value in held.items()
    )


@pytest.mark.parametrize(
    ("mesh", "schedule", "micro_batches", "recompute"),
    [
        (Mesh(stages=2), "1f1b", 6, False),
        (Mesh(stages=3), "gpipe", 3, True),
        (Mesh(stages=2), "v", 2, False),
        # Two pipelines, of which each has a sample and a half.
        (Mesh(groups=2, stages=2), "1f1b", 1, True),
    ],
    ids=str,
)
def test_gradients_losses_and_pixels_are_those_of_whole_samples(
    mesh, schedule, micro_batches, recompute
):
    value, accuracy, expected = on_whole_samples()
    results = on_tiles(mesh, schedule, micro_batches, recompute=recompute)
    assert difference(results, expected) <= 1e-12
    # Stages of a pipeline have its loss, and pipelines a mean together.
    assert np.mean([loss for _, loss, _ in results]) == pytest.approx(value, rel=1e-12)
    right = np.concatenate([each for _, _, of_device in results for each in of_device])
    assert len(right) == SAMPLES * SHAPE[0] * SHAPE[1]  # Each pixel once.
    assert np.mean(right) == accuracy


PARTS = [
    (Mesh(split=(2, 1)), "1f1b", 1),
    # Also thinner than a halo. Some devices have nothing of a tile's own part.
    (Mesh(split=(4, 1)), "1f1b", 3),
    (Mesh(split=(1, 2), stages=2), "gpipe", 2),
    (Mesh(groups=2, split=(2, 1), stages=2), "1f1b", 3),
]


@pytest.mark.parametrize(("mesh", "schedule", "micro_batches"), PARTS, ids=str)
def test_so_are_those_of_parts_of_tiles(mesh, schedule, micro_batches):
    value, accuracy, expected = on_whole_samples()
    results = on_tiles(mesh, schedule, micro_batches)
    assert difference(results, expected) <= 1e-12
    assert np.mean([loss for _, loss, _ in results]) == pytest.approx(value, rel=1e-12)
    right = np.concatenate([each for _, _, of_device in results for each in of_device])
    assert len(right) == SAMPLES * SHAPE[0] * SHAPE[1]
    assert np.mean(right) == accuracy
    has_none = [not all(map(len, of_device)) for _, _, of_device in results]
    assert any(has_none) == (mesh.split[0] > 1)


def without_borders(_, came):
    return {other: tf.zeros_like(value) for other, value in came.items()}


def test_a_broken_exchange_of_borders_is_found():
    _, _, expected = on_whole_samples()
    results = on_tiles(Mesh(split=(2, 1), stages=2), "1f1b", 2, halo=without_borders)
    assert difference(results, expected) > 1e-6
