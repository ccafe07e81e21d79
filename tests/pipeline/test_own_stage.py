"""Optimizer steps in stages that exchange, each a thread of this process, against one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import with_encoder
from keras import layers
from threads import Threads

from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.losses import CrossEntropy
from tfunet.models import unet
from tfunet.parallel.mesh import Mesh
from tfunet.pipeline.network import read_network
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.schedules import homes

BATCH, STEPS = 4, 2


pytestmark = pytest.mark.usefixtures("float64")


def noisy():
    """Every kind of noise, and skips over several stages."""
    image = keras.Input((8, 8, 2))
    drop = layers.Dropout(0.4, seed=1)
    first = layers.Conv2D(4, 3, padding="same", activation="gelu")(image)
    x = drop(first)
    x = layers.SpatialDropout2D(0.3, seed=2)(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.GaussianNoise(0.1, seed=3)(x)
    x = layers.GaussianDropout(0.2, seed=4)(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.AlphaDropout(0.2, seed=5)(layers.Concatenate()([x, first]))
    x = layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")(x)
    return keras.Model(image, layers.Conv2D(2, 1)(x + first))


def twice_dropped():
    """A layer of noise that is called twice in one stage."""
    image = keras.Input((8, 8, 2))
    drop = layers.Dropout(0.4, seed=1)
    x = drop(layers.Conv2D(4, 3, padding="same")(image))
    x = drop(layers.Conv2D(4, 3, padding="same")(x))
    return keras.Model(image, layers.Conv2D(2, 1)(layers.Conv2D(4, 1)(x)))


def small_unet():
    model = unet.build(image_shape=(16, 16, 1), num_classes=2, filters=4, levels=2, dropout=0.2)
    # Its logits are float32 under every policy.
    return keras.Model(model.input, layers.Conv2D(2, 1)(model.layers[-1].input))


def quiet():
    image = keras.Input((8, 8, 2))
    first = layers.Conv2D(4, 3, padding="same", activation="tanh")(image)
    x = layers.GroupNormalization(2)(layers.Conv2D(4, 3, padding="same")(first))
    return keras.Model(image, layers.Conv2D(2, 1)(layers.Concatenate()([x, first, image])))


def watched():
    """Batch normalization of which only the moving statistics matter, in the first stage."""
    image = keras.Input((8, 8, 2))
    first = layers.Conv2D(4, 3, padding="same", activation="tanh")(image)
    unused = layers.Rescaling(0.0)(layers.BatchNormalization(momentum=0.5)(first))
    x = layers.Conv2D(4, 3, padding="same", activation="tanh")(layers.Add()([first, unused]))
    x = layers.Dropout(0.2, seed=1)(layers.Conv2D(4, 3, padding="same")(x))
    return keras.Model(image, layers.Conv2D(2, 1)(layers.Concatenate()([x, first])))


def encoded():
    """A network with one inside that normalizes its batches."""
    return with_encoder.build(image_shape=(8, 8, 2), num_classes=2)


NETWORKS = {
    build.__name__: build for build in (noisy, twice_dropped, small_unet, quiet, watched, encoded)
}
# Between these its layer that is called twice is in one stage.
CUTS = {"twice_dropped": [0, 4, 6]}


def built(name):
    keras.utils.set_random_seed(0)
    return NETWORKS[name]()


def loss(targets, output):
    return tf.reduce_mean(tf.square(output - targets))


def crossentropy(*, class_weights=(), ignored=None):
    """The cross-entropy of labels, which tell the larger one of two targets."""
    made = CrossEntropy(class_weights)
    if ignored is not None:
        ignore_in_loss(made, ignored)
    return lambda targets, output: made(tf.argmax(targets, -1), output)


def batches(model):
    rng = np.random.RandomState(0)
    shapes = (BATCH, *model.input_shape[1:]), (BATCH, *model.output_shape[1:])
    return [[tf.constant(rng.normal(size=shape)) for shape in shapes] for _ in range(STEPS)]


def on_one_device(name, loss=loss):
    model = built(name)
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
    images = batches(model)[0][0]
    return model, values, model(tf.concat([images, images[:3]], 0), training=False)


def in_stages(
    name,
    mesh,
    schedule,
    micro_batches,
    change=lambda stage, came: came,
    *,
    recompute=False,
    deferred=False,
    loss=loss,
):
    """Return the model of each pipeline, and losses and output of each device."""
    models = [built(name) for _ in range(mesh.groups)]
    networks = [read_network(model) for model in models]
    chunks = len(homes(schedule, mesh.stages))
    even = np.linspace(0, len(networks[0].nodes), chunks + 1).astype(int)
    data = batches(models[0])

    def device(group):
        def exchange(*arguments):
            return change(mesh.stage_of(group.device), group.exchange(*arguments))

        at = mesh.group_of(group.device)
        stage = OwnStage(
            networks[at],
            CUTS.get(name, even),
            mesh=mesh,
            device=group.device,
            exchange=exchange,
            schedule=schedule,
            micro_batches=micro_batches,
            recompute=recompute,
            deferred=deferred,
        )
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(stage.variables)
        rows, values = BATCH // mesh.groups, []
        for images, targets in data:
            own = slice(at * rows, (at + 1) * rows)
            value, gradients, _ = stage.train(images[own], targets[own], loss)
            optimizer.apply(gradients, stage.variables)
            values.append(float(value))
        images = data[0][0]
        # Three samples cannot be cut into as many micro-batches as a batch of training.
        return values, tf.concat([stage.predict(images), stage.predict(images[:3])], 0)

    results = Threads(mesh).run(device)
    return models, results


def difference(model, other):
    largest = max(np.abs(variable.numpy()).max() for variable in other.trainable_variables)
    pairs = zip(model.trainable_variables, other.trainable_variables, strict=True)
    return max(np.abs(one.numpy() - two.numpy()).max() for one, two in pairs) / largest


@pytest.mark.parametrize(
    ("name", "stages", "schedule", "micro_batches", "recompute"),
    [
        ("watched", 2, "v", 4, False),
        ("watched", 3, "1f1b", 4, True),
        ("noisy", 2, "1f1b", 2, False),
        ("noisy", 3, "gpipe", 4, True),
        ("noisy", 4, "1f1b", 4, False),
        ("noisy", 2, "v", 4, False),
        ("twice_dropped", 2, "1f1b", 2, True),
        ("small_unet", 3, "1f1b", 4, True),
        ("encoded", 3, "1f1b", 1, False),
    ],
)
def test_steps_are_those_of_one_device(name, stages, schedule, micro_batches, recompute):
    expected, values, output = on_one_device(name)
    (model,), results = in_stages(
        name, Mesh(stages=stages), schedule, micro_batches, recompute=recompute, deferred=True
    )
    assert difference(model, expected) <= 1e-12
    if micro_batches == 1 or name == "watched":  # Each layer is given what it is on one device.
        pairs = zip(model.non_trainable_variables, expected.non_trainable_variables, strict=True)
        for variable, two in pairs:
            np.testing.assert_allclose(variable.numpy(), two.numpy(), rtol=1e-10)
    states = [variable for variable in expected.variables if "seed_generator" in variable.path]
    for variable, two in zip(model.variables, expected.variables, strict=True):
        if any(two is state for state in states):
            np.testing.assert_array_equal(variable.numpy(), two.numpy())
    for losses, predicted in results:
        np.testing.assert_allclose(losses, values, rtol=1e-12)
        np.testing.assert_allclose(predicted, output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"class_weights": [3.0, 5.0]}, {"ignored": 1}], ids=str)
def test_losses_of_micro_batches_are_those_of_the_batch(options):
    expected, values, _ = on_one_device("quiet", crossentropy(**options))
    mesh = Mesh(stages=2)
    (model,), results = in_stages("quiet", mesh, "1f1b", 4, loss=crossentropy(**options))
    assert difference(model, expected) <= 1e-6  # The losses of tfunet compute in float32.
    for losses, _ in results:
        np.testing.assert_allclose(losses, values, rtol=1e-6)


def test_two_pipelines_side_by_side_are_one_device_with_both_batches():
    expected, values, _ = on_one_device("quiet")
    models, results = in_stages("quiet", Mesh(groups=2, stages=2), "1f1b", 2)
    assert difference(models[0], expected) <= 1e-12
    assert difference(models[1], models[0]) == 0
    np.testing.assert_allclose(np.mean([loss for loss, _ in results], axis=0), values, rtol=1e-12)


# Equal stages wait (p - 1) times for both passes of a micro-batch.
# A stage is as slow as its slowest part.
@pytest.mark.parametrize(
    ("mesh", "schedule", "slow", "bubble"),
    [
        (Mesh(stages=2), "1f1b", 1.0, 3.0),
        (Mesh(stages=2), "gpipe", 1.0, 3.0),
        (Mesh(stages=3), "1f1b", 1.0, 6.0),
        (Mesh(split=(2, 1), stages=2), "1f1b", 1.0, 3.0),
        (Mesh(split=(2, 1), stages=2), "1f1b", 2.0, 3.0),
    ],
)
def test_the_bubble_follows_from_the_times_of_passes(mesh, schedule, slow, bubble):
    network = read_network(built("quiet"))
    stage = OwnStage(
        network,
        np.linspace(0, len(network.nodes), mesh.stages + 1).astype(int),
        mesh=mesh,
        device=0,
        exchange=lambda *_: {},
        schedule=schedule,
        micro_batches=4,
    )
    seconds = [
        [
            (1.0 if action.kind == "forward" else 2.0) * (slow if device == 3 else 1.0)
            for action in stage.orders[mesh.stage_of(device)]
        ]
        for device in range(mesh.num_devices)
    ]
    assert stage.bubble_seconds(seconds) == pytest.approx(bubble)


@pytest.mark.parametrize(
    ("stages", "schedule", "rows"),
    # Three samples cannot be cut into as many micro-batches as a batch of training.
    [(2, "1f1b", 4), (3, "gpipe", 4), (2, "v", 4), (2, "1f1b", 3)],
)
def test_an_evaluation_is_of_micro_batches_and_known_to_the_last_stage(stages, schedule, rows):
    model, mesh, seen = built("quiet"), Mesh(stages=stages), []
    network, images = read_network(model), batches(model)[0][0][:rows]
    even = np.linspace(0, len(network.nodes), len(homes(schedule, stages)) + 1).astype(int)

    def use(part, output):
        seen.append(part["row"].numpy().tolist())
        return {"row": part["row"], "output": output}

    def device(group):
        stage = OwnStage(
            network,
            even,
            mesh=mesh,
            device=group.device,
            exchange=group.exchange,
            schedule=schedule,
            micro_batches=2,
        )
        batch = {"image": images, "row": tf.range(rows)}
        return stage.is_last, stage.evaluate(batch, use, lambda: tf.constant("nothing"))

    results = Threads(mesh).run(device)
    (found,) = (found for is_last, found in results if is_last)
    assert {found.numpy() for is_last, found in results if not is_last} == {b"nothing"}
    assert seen == ([[0, 1], [2, 3]] if rows == 4 else [[0, 1, 2]])
    assert found["row"].numpy().tolist() == list(range(rows))
    np.testing.assert_allclose(found["output"], model(images, training=False), rtol=0, atol=1e-12)


def lost_value(_, came):
    flat = {at: tensor for at, tensor in came.items() if tensor.shape.rank == 1}
    return {**came, **{at: tf.concat([tensor[:-1], [0.0]], 0) for at, tensor in flat.items()}}


def lost_gradients(stage, came):
    is_lost = stage == 0 and all(tensor.shape.rank == 1 for tensor in came.values())
    return {at: tf.zeros_like(tensor) for at, tensor in came.items()} if is_lost else came


@pytest.mark.parametrize("change", [lost_value, lost_gradients])
def test_a_broken_exchange_is_found(change):
    expected, _, _ = on_one_device("quiet")
    (model,), _ = in_stages("quiet", Mesh(stages=2), "1f1b", 2, change)
    assert difference(model, expected) > 1e-6


def ancestors(op):
    seen, left = set(), [op]
    while left:
        for before in (*(tensor.op for tensor in left[-1].inputs), *left.pop().control_inputs):
            if before not in seen:
                seen.add(before)
                left.append(before)
    return seen


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_what_a_pass_made_is_sent_before_the_next_pass(schedule):
    """Or the next stage waits: one thread takes what became ready last."""
    model, exchanged = built("quiet"), []

    def exchange(sent, received, dtype):
        exchanged.append(tf.no_op(name="exchange"))
        return {other: tf.zeros(shape, dtype) for other, shape in received.items()}

    mesh = Mesh(stages=2)
    network = read_network(model)
    stage = OwnStage(
        network,
        [0, 1, len(network.nodes)],
        mesh=mesh,
        device=0,
        exchange=exchange,
        schedule=schedule,
        micro_batches=BATCH,
    )
    step = tf.function(lambda *data: stage.train(*data, loss)[0])
    graph = step.get_concrete_function(*batches(model)[0]).graph
    passes = [op for op in graph.get_operations() if op.type == "Conv2D"]
    assert len(passes) == BATCH
    for number, op in enumerate(passes[1:]):
        assert exchanged[number] in ancestors(op)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("device", [0, 1])
def test_an_evaluation_has_two_micro_batches_between_two_stages(device, in_order):
    """Or a stage that is fast would send all of them to one that is slow."""
    model, exchanged = built("quiet"), []

    def exchange(sent, received, dtype):
        with tf.control_dependencies(list(sent.values())):
            done = tf.no_op(name="exchange")
        exchanged.append(done)
        with tf.control_dependencies([done]):
            return {other: tf.zeros(shape, dtype) for other, shape in received.items()}

    network = read_network(model)
    stage = OwnStage(
        network,
        [0, 1, len(network.nodes)],
        mesh=Mesh(stages=2),
        device=device,
        exchange=exchange,
        schedule="1f1b",
        micro_batches=BATCH,
        in_order=in_order,
    )

    def evaluation(images):
        return stage.evaluate({"image": images}, lambda _, output: output[0], lambda: tf.zeros(1))

    graph = tf.function(evaluation).get_concrete_function(batches(model)[0][0]).graph
    first = next(node.name for node in network.nodes[device and 1 :] if "conv" in node.name)
    passes = [op for op in graph.get_operations() if op.type == "Conv2D" and first in op.name]
    assert len(passes) == BATCH
    # In one process a token goes the other way after each message.
    messages, tokens = (exchanged, []) if in_order else (exchanged[::2], exchanged[1::2])
    assert (len(messages), len(tokens)) == (BATCH, 0 if in_order else BATCH)
    for number, op in enumerate(passes[1:]):
        assert passes[number] in ancestors(op)
    # What nobody waits for might not be sent.
    waited = (*passes, *(messages if in_order else ()))
    assert ancestors(graph.outputs[0].op).issuperset(waited)
    if device == 0:
        # An exchange ends when both devices have come to it, or the token has.
        for before, op in zip(messages if in_order else tokens, passes[1:], strict=False):
            assert before in ancestors(op)
        return
    for number, op in enumerate(messages if in_order else tokens):
        assert len(ancestors(op).intersection(passes)) == max(0, number - 1)
