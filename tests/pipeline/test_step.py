"""A step through stages against the whole model: loss and gradients to 1e-12 in float64."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfunet.models import unet
from tfunet.pipeline.chain import Chain, ChainLayer
from tfunet.pipeline.network import read_network
from tfunet.pipeline.schedules import Action, gpipe, one_f_one_b
from tfunet.pipeline.simulation import Work, scheduled
from tfunet.pipeline.step import StagedStep

BATCH, MICRO_BATCHES = 4, 4


pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(0)


def convolved(x, filters, **options):
    return layers.Conv2D(filters, 3, padding="same", **options)(x)


def small_unet():
    model = unet.build(image_shape=(16, 16, 1), num_classes=2, filters=4, levels=2)
    # Its logits are float32 under every policy.
    image = keras.Input((16, 16, 1))
    inner = keras.Model(model.input, model.layers[-1].input)
    return keras.Model(image, layers.Conv2D(2, 1)(inner(image)))


def long_skips():
    image = keras.Input((8, 8, 2))
    a = convolved(image, 3, activation="tanh")
    b = convolved(a, 3, activation="tanh")
    c = layers.Add()([convolved(b, 3), a])
    d = layers.Concatenate()([c, image, a])
    return keras.Model(image, convolved(d, 2))


def shared_layer():
    image = keras.Input((8, 8, 3))
    again = layers.Conv2D(3, 3, padding="same", activation="tanh", name="again")
    x = convolved(again(again(image)), 4, activation="tanh")
    relu = layers.ReLU()
    return keras.Model(image, convolved(relu(layers.Conv2D(4, 1)(relu(x))), 2))


def nested():
    inside = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(3, 3, padding="same")])
    image = keras.Input((8, 8, 3))
    branch = keras.Model(image, [layers.ReLU()(inside(image)), layers.Conv2D(3, 1)(image)])
    outer = keras.Input((8, 8, 3))
    first, second = branch(outer)
    joined = layers.Multiply()([first, second, inside(outer)])
    return keras.Model(outer, convolved(convolved(convolved(joined, 4), 4), 2))


def regularized():
    image = keras.Input((8, 8, 2))
    x = convolved(image, 4, kernel_regularizer="l2", activity_regularizer="l1")
    x = layers.BatchNormalization()(convolved(x, 4, bias_regularizer="l1"))
    return keras.Model(image, convolved(layers.UpSampling2D()(layers.MaxPooling2D()(x)), 2))


def operations():
    image = keras.Input((8, 8, 2))
    x = keras.ops.tanh(convolved(image, 4))
    x = x * 2.0 + keras.ops.mean(x, axis=(1, 2), keepdims=True)
    first, second = keras.ops.split(x, 2, axis=-1)
    return keras.Model(image, convolved(keras.ops.concatenate([second, first], -1), 2))


class Gated(layers.Layer):
    """Takes two tensors by name."""

    def call(self, inputs, *, gate, strength=1.0):
        return inputs * tf.tanh(strength * gate)


def by_name():
    """Tensors of earlier stages that a layer takes by name."""
    image = keras.Input((8, 8, 2))
    first = convolved(image, 4, activation="tanh")
    second = convolved(first, 4)
    x = Gated()(second, gate=first, strength=0.5)
    attention = layers.MultiHeadAttention(2, 2, attention_axes=(1, 2))
    x = attention(query=convolved(x, 4), value=first, key=second)
    return keras.Model(image, convolved(x, 2))


MODELS = [small_unet, long_skips, shared_layer, nested, operations, by_name, regularized]


def loss(targets, outputs):
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
    return tf.reduce_mean(entropy)


def data(model):
    draw = np.random.default_rng(0)
    shape = (BATCH, *model.input.shape[1:])
    images = tf.constant(draw.normal(size=shape))
    return images, tf.constant(draw.integers(0, 2, shape[:-1]))


def whole(model, images, targets):
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        value = loss(targets, model(images, training=True))
        value += tf.add_n(model.losses) if model.losses else 0.0
    return value, tape.gradient(value, variables)


def free_cuts(network):
    """Return the cuts between which no variable is shared."""
    chain = Chain(
        layers=tuple(
            ChainLayer(
                name=node.name, variables={id(variable): None for variable in node.variables}
            )
            for node in network.nodes
        ),
        tensor_bytes=[],
    )
    return [cut for cut in range(1, len(network.nodes)) if cut not in chain.shared]


def orders_of(schedule, num_stages, micro_batches=MICRO_BATCHES):
    if schedule != "v":
        return {"gpipe": gpipe, "1f1b": one_f_one_b}[schedule](num_stages, micro_batches)
    devices = [*range(num_stages // 2), *reversed(range(num_stages // 2))]
    chain = Work(
        forward=[1.0] * num_stages,
        backward=[2.0] * num_stages,
        devices=devices,
        messages={(at, at + 1): 1 for at in range(num_stages - 1)},
        kept_bytes=[1] * num_stages,
    )
    return scheduled("v", chain, micro_batches).orders


@pytest.mark.parametrize(
    ("build", "schedule", "parts"),
    [
        (small_unet, "1f1b", 3),
        (small_unet, "v", 4),
        *((build, "gpipe", 2) for build in MODELS[1:]),
        *((build, "1f1b", 4) for build in MODELS[1:]),
        *((build, "v", 4) for build in MODELS[1:]),
    ],
)
def test_gradients_are_those_of_the_whole_model(build, schedule, parts):
    model = build()
    images, targets = data(model)
    network = read_network(model)
    if build is regularized:  # Its statistics are those of a micro-batch.
        expected = micro_batches_of_the_whole(model, images, targets)
    else:
        expected = whole(model, images, targets)
    free = free_cuts(network)
    inner = [free[at * len(free) // (parts - 1)] for at in range(parts - 1)]
    step = StagedStep(network, [0, *inner, len(network.nodes)])
    value, pairs = step.run(orders_of(schedule, parts), [images], targets, loss)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    found = {id(variable): gradient for variable, gradient in pairs}
    largest = max(float(tf.reduce_max(tf.abs(gradient))) for gradient in expected[1])
    assert len(found) == len(model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, expected[1], strict=True):
        difference = np.abs(found[id(variable)] - gradient).max()
        assert difference <= 1e-12 * largest, variable.path
    if schedule == "1f1b":
        assert step.peak_kept == [min(MICRO_BATCHES, parts - stage) for stage in range(parts)]


def micro_batches_of_the_whole(model, images, targets):
    parts = [
        whole(model, *pair)
        for pair in zip(
            tf.split(images, MICRO_BATCHES), tf.split(targets, MICRO_BATCHES), strict=True
        )
    ]
    gradients = zip(*(gradients for _, gradients in parts), strict=True)
    means = [tf.add_n(list(each)) / MICRO_BATCHES for each in gradients]
    return tf.add_n([value for value, _ in parts]) / MICRO_BATCHES, means


def test_schedules_give_the_same_bits_and_leave_nothing_behind():
    model = long_skips()
    images, targets = data(model)
    network = read_network(model)
    results = []
    for orders in (gpipe(2, MICRO_BATCHES), one_f_one_b(2, MICRO_BATCHES)):
        step = StagedStep(network, [0, 2, len(network.nodes)])
        results.append(
            [gradient.numpy() for _, gradient in step.run(orders, [images], targets, loss)[1]]
        )
        assert not any(stage.kept for stage in step.stages)
        # The next step begins anew.
        again = step.run(orders, [images], targets, loss)[1]
        np.testing.assert_array_equal(results[-1][0], again[0][1])
        gone = weakref.ref(step)
        del step
        gc.collect()
        assert gone() is None
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def traced(network, recompute, schedule=one_f_one_b):
    """Return a step of two micro-batches, traced."""

    @tf.function(autograph=False)
    def step(one, other):
        staged = StagedStep(network, [0, 2, len(network.nodes)])
        value, pairs = staged.run(schedule(2, 2), [one], other, loss, recompute=recompute)
        return value, [gradient for _, gradient in pairs]

    return step


@pytest.mark.parametrize("recompute", [False, True])
def test_a_traced_step_is_the_same(recompute):
    model = long_skips()
    images, targets = data(model)
    network = read_network(model)
    value, gradients = traced(network, recompute)(images, targets)
    expected = whole(model, images, targets)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    by_name = {
        variable.path: gradient
        for variable, gradient in zip(model.trainable_variables, expected[1], strict=True)
    }
    variables = [weight for node in network.nodes for weight in node.trainable_variables]
    for variable, gradient in zip(variables, gradients, strict=True):
        np.testing.assert_allclose(gradient, by_name[variable.path], rtol=1e-10, atol=1e-12)


def test_what_cannot_be_cut_is_refused_by_name():
    model = shared_layer()
    network = read_network(model)
    with pytest.raises(ValueError, match="'again' shares the variable"):
        StagedStep(network, [0, 1, len(network.nodes)])
    images, targets = data(model)
    with pytest.raises(ValueError, match="4 samples cannot be cut into 3 micro-batches"):
        StagedStep(network, [0, 2, len(network.nodes)]).run(gpipe(2, 3), [images], targets, loss)
    turned = [(Action("backward", 0, 0), Action("forward", 0, 0)), (Action("forward", 1, 0),)]
    with pytest.raises(ValueError, match="for ever"):
        StagedStep(network, [0, 2, len(network.nodes)]).run(turned, [images], targets, loss)
    image = keras.Input((8, 8, 3))
    layer = layers.Conv2D(3, 1, activity_regularizer="l2", name="twice")
    with pytest.raises(ValueError, match="'twice' is called 2 times"):
        StagedStep(read_network(keras.Model(image, layer(layer(image)))), [0, 2])


def test_models_that_are_no_graph_or_pass_masks_are_refused():
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    with pytest.raises(ValueError, match="is a class of its own"):
        read_network(Own())
    words = keras.Input((4,))
    embedded = layers.Embedding(5, 3, mask_zero=True, name="words")(words)
    with pytest.raises(ValueError, match="'words' makes a mask"):
        read_network(keras.Model(words, layers.Dense(1)(embedded)))


def test_nodes_of_inner_models_are_listed_and_what_nobody_reads_is_not():
    names = [node.name for node in read_network(nested()).nodes]
    assert len(names) == 8
    assert sum("/" in name for name in names) == 4
    image = keras.Input((4, 4, 1))
    both = layers.Conv2D(1, 1, name="read")(image)
    layers.Conv2D(1, 1, name="unread")(image)
    assert [node.name for node in read_network(keras.Model(image, both)).nodes] == ["read"]


class Shaken(layers.Layer):
    """Draws numbers of its own, and counts its calls, which its output depends on."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        noise = keras.random.normal(inputs.shape[1:], dtype=inputs.dtype, seed=self.seeds)
        return inputs * (1 + 0.1 * noise) / (1 + self.calls)


def with_states():
    """Dropout, statistics of batches, a seed and a count: all that a second pass could change."""
    image = keras.Input((8, 8, 2))
    x = layers.BatchNormalization()(convolved(image, 4, kernel_regularizer="l2"))
    x = layers.Dropout(0.3, seed=1)(x)
    x = convolved(Shaken()(x), 4, activity_regularizer="l2")
    x = layers.SpatialDropout2D(0.3, seed=2)(x)
    return keras.Model(image, convolved(layers.BatchNormalization()(x), 2))


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_recomputed_passes_give_the_same_bits_and_change_no_state(schedule):
    results = []
    for recompute in (False, True):
        keras.utils.set_random_seed(0)
        model = with_states()
        images, targets = data(model)
        step = StagedStep(read_network(model), [0, 4, 6, 8])
        for _ in range(2):
            orders = schedule(3, MICRO_BATCHES)
            value, pairs = step.run(orders, [images], targets, loss, recompute=recompute)
        gradients = [gradient for _, gradient in pairs]
        results.append([value, *gradients, *(variable.numpy() for variable in model.variables)])
        assert not any(stage.kept for stage in step.stages)
    for kept, recomputed in zip(*results, strict=True):
        np.testing.assert_array_equal(kept, recomputed)


class Seen(layers.Layer):
    """Remembers what it made, without holding it."""

    def __init__(self):
        super().__init__()
        self.made = []

    def call(self, inputs):
        outputs = inputs * 2.0
        self.made.append(weakref.ref(outputs))
        return outputs


@pytest.mark.parametrize("recompute", [False, True])
def test_a_recomputed_stage_keeps_only_what_it_read(recompute):
    seen = Seen()
    image = keras.Input((8, 8, 2))
    x = convolved(image, 2)
    x = convolved(convolved(seen(convolved(x, 3)), 3, activation="tanh"), 3)
    model = keras.Model(image, convolved(x, 2))
    seen.made.clear()
    images, _ = data(model)
    step = StagedStep(read_network(model), [0, 1, 5, 6])
    first, middle, _ = step.stages
    middle.predict(first.predict({0: images}))
    gc.collect()
    assert seen.made[-1]() is None
    seen.made.clear()
    for stage in (first, middle):
        stage.begin(1, {0} if recompute else ())
    given = first.forward(0, {0: images}, None)
    for _ in range(2):  # Any other step than the last.
        made = middle.forward(0, given, None)
        gc.collect()
        assert (seen.made[-1]() is None) == recompute
    gradients = middle.backward(0, {at: tf.ones_like(tensor) for at, tensor in made.items()})
    assert len(gradients) == 1
    assert len(seen.made) == (3 if recompute else 2)
    gc.collect()
    assert not any(reference() is not None for reference in seen.made)


class OwnDraw(layers.Layer):
    """Draws numbers in a way that a second pass cannot repeat."""

    def __init__(self, draw, name):
        super().__init__(name=name)
        self.draw = draw

    def call(self, inputs):
        return inputs + self.draw(tuple(inputs.shape))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


@tf.function
def inside(shape):
    return tf.random.uniform(shape, dtype="float64")


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda shape: tf.random.normal(shape, dtype="float64"), r"'shaky.*\(RandomStandardNor"),
        (inside, "random numbers of its own .RandomUniform"),
        (lambda shape: keras.random.normal(shape, dtype="float64"), "'shaky.* changes a var"),
    ],
)
def test_what_would_draw_other_numbers_in_a_second_pass_is_refused(draw, words):
    image = keras.Input((8, 8, 2))
    x = OwnDraw(draw, "shaky")(convolved(image, 2))
    model = keras.Model(image, convolved(convolved(x, 2), 2))
    images, targets = data(model)
    network = read_network(model)
    traced(network, recompute=False)(images, targets)
    with pytest.raises(ValueError, match=words):
        traced(network, recompute=True)(images, targets)


# torchgpipe's test of a skip from the first to the third of three convolutions, in three
# micro-batches, and PyTorch's of a perceptron, which its 1F1B cannot run with a skip.
@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2]])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_skip_over_any_cut(cuts, recompute):
    image = keras.Input((6, 6, 3))
    first = layers.Conv2D(3, 1)(image)
    second = layers.Conv2D(3, 1)(first)
    model = keras.Model(image, layers.Conv2D(3, 1)(layers.Add()([second, first])))
    images = tf.random.normal((3, 6, 6, 3), dtype="float64")

    def square(_, output):
        return tf.reduce_mean(output**2)

    network = read_network(model)
    step = StagedStep(network, [0, *cuts, 4])
    for schedule in (gpipe, one_f_one_b):
        orders = schedule(len(cuts) + 1, 3)
        value, pairs = step.run(orders, [images], images, square, recompute=recompute)
        variables = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            expected = square(None, model(images, training=True))
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        gradients = tape.gradient(expected, variables)
        for (_, found), known in zip(pairs, gradients, strict=True):
            np.testing.assert_allclose(found, known, rtol=0, atol=1e-12)


# torchgpipe's test of transparency: layers of 1, 2, 4, 2 and 1 units, 8 samples, 4 micro-batches.
def test_a_chain_of_dense_layers_is_the_same_in_stages():
    numbers = keras.Input((1,))
    x = numbers
    for width in (2, 4, 2, 1):
        x = layers.Dense(width)(x)
    model = keras.Model(numbers, x)
    given = tf.random.normal((8, 1), dtype="float64")

    def mean(_, output):
        return tf.reduce_mean(output)

    step = StagedStep(read_network(model), [0, 2, 4])
    _, pairs = step.run(one_f_one_b(2, 4), [given], given, mean)
    with tf.GradientTape() as tape:
        value = mean(None, model(given))
    expected = tape.gradient(value, [variable.value for variable in model.trainable_variables])
    for (_, found), known in zip(pairs, expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-12)


# PyTorch's tests of a perceptron of 512 units, a layer a stage, with its tolerances: gradients of
# two steps in four micro-batches, or in eight with two stages a device; and twenty steps.
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "v"])
def test_a_perceptron_is_the_same_in_stages(schedule):
    micro_batches = 8 if schedule == "v" else 4
    keras.config.set_dtype_policy("float32")
    numbers = x = keras.Input((512,))
    for _ in range(4):
        x = layers.Dense(512, activation="relu")(x)
    model = keras.Model(numbers, x)
    alone = keras.models.clone_model(model)
    alone.set_weights(model.get_weights())
    draw = np.random.default_rng(0)
    given, wanted = (tf.constant(draw.normal(size=(256, 512)), tf.float32) for _ in range(2))

    def squares(targets, output):
        return tf.reduce_mean(tf.reduce_sum(tf.square(targets - output), axis=-1))

    network = read_network(model)
    step = StagedStep(network, range(5))
    for turn in range(20 if schedule == "1f1b" else 2):
        orders = orders_of(schedule, 4, micro_batches)
        _, pairs = step.run(orders, [given], wanted, squares)
        with tf.GradientTape() as tape:
            value = squares(wanted, alone(given, training=True))
        variables = alone.trainable_variables
        gradients = tape.gradient(value, [weight.value for weight in variables])
        for (_, found), known in zip(pairs, gradients, strict=True):
            if turn < 2:
                np.testing.assert_allclose(found, known, rtol=1e-5, atol=4e-5)
        for own, found, known in zip(variables, pairs, gradients, strict=True):
            variable, gradient = found
            variable.assign_sub(1e-4 * gradient)
            own.assign_sub(1e-4 * known)
    np.testing.assert_allclose(model(given), alone(given), rtol=1e-3, atol=1e-4)
