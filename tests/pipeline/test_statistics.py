"""Moving statistics of batch normalization that micro-batches defer, against those of one device.

With the cases of torchgpipe's tests of DeferredBatchNorm. Keras has no momentum None.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from staged_step import StagedStep

from tfunet.config.run import RunConfig
from tfunet.pipeline.chunk import chunks_of
from tfunet.pipeline.network import read_network
from tfunet.pipeline.schedules import gpipe, one_f_one_b
from tfunet.pipeline.statistics import batch_normalizations
from tfunet.training.stage_cut import check_graph

pytestmark = pytest.mark.usefixtures("float64", "seeded")


def images_of(*shape):
    """Return images whose micro-batches have different statistics."""
    draw = np.random.default_rng(0)
    scales = draw.uniform(0.5, 2.0, (shape[0], *[1] * (len(shape) - 1)))
    return tf.constant(draw.normal(scales, scales, shape))


def square(_, output):
    return tf.reduce_mean(tf.square(output - 0.3))


def run(model, cuts, orders, images, **options):
    """Return the gradients of a step."""
    recompute = options.pop("recompute", False)
    step = StagedStep(read_network(model), cuts, **options)
    _, pairs = step.run(orders, [images], images, square, recompute=recompute)
    return [gradient for _, gradient in pairs]


def moving(model):
    """Return the moving statistics of a model."""
    norms = batch_normalizations([model])
    return [moment.numpy() for norm in norms for moment in (norm.moving_mean, norm.moving_variance)]


def one_norm(**options):
    image = keras.Input((24, 24, 3))
    return keras.Model(image, layers.BatchNormalization(**options)(image))


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("momentum", [0.9, 0.0, 1.0])
def test_torchgpipes_case(chunks, momentum):
    images = images_of(16, 24, 24, 3)
    alone, chunked, deferred = (one_norm(momentum=momentum) for _ in range(3))
    by_chunks = run(chunked, [0, 1], gpipe(1, chunks), images)
    for _ in range(2):
        alone(images, training=True)
        gradients = run(deferred, [0, 1], gpipe(1, chunks), images, deferred=True)
    # Outputs are those of micro-batches.
    for gradient, two in zip(gradients, by_chunks, strict=True):
        np.testing.assert_array_equal(gradient, two)
    for gradient, two in zip(moving(deferred), moving(alone), strict=True):
        np.testing.assert_allclose(gradient, two, rtol=0 if chunks == 1 else 1e-12)
    np.testing.assert_allclose(
        deferred(images, training=False), alone(images, training=False), rtol=0, atol=1e-12
    )
    assert batch_normalizations([deferred])[0].momentum == momentum


class Block(layers.Layer):
    """Calls its normalization twice."""

    def __init__(self):
        super().__init__(name="block")
        self.norm = layers.BatchNormalization(momentum=0.5)

    def call(self, inputs, training=False):
        self.norm(inputs, training=training)
        return self.norm(3.0 * inputs, training=training)


def test_every_call_of_a_layer_counts_and_frozen_ones_do_not():
    def build():
        image = keras.Input((6, 6, 2))
        twice = layers.BatchNormalization(momentum=0.8, scale=False, name="twice")
        frozen = layers.BatchNormalization(trainable=False)
        last = layers.BatchNormalization(axis=1, center=False)
        parts = [twice(image), twice(2.0 * image), frozen(image), Block()(image), last(image)]
        return keras.Model(image, layers.Add()(parts))

    images = images_of(8, 6, 6, 2)
    alone, model = build(), build()
    size = len(read_network(model).nodes)
    for _ in range(2):
        alone(images, training=True)
        run(model, [0, size], gpipe(1, 4), images, deferred=True)
    assert len(moving(model)) == 8
    for one, two in zip(moving(model), moving(alone), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)
    assert [np.ptp(moment) for moment in moving(model)].count(0.0) == 2  # The frozen one's.


class Seen(layers.Layer):
    """Remembers what it is given in training."""

    def __init__(self):
        super().__init__()
        self.given = {}

    def call(self, inputs, training=False):
        if training and tf.executing_eagerly():
            self.given[inputs[0].numpy().tobytes()] = inputs
        return inputs


def in_two_stages(seen):
    """Batch normalization in both stages, beside what a second pass could change."""
    image = keras.Input((6, 6, 2))
    x = layers.Conv2D(3, 3, padding="same")(layers.BatchNormalization(name="outer")(image))
    x = layers.Dropout(0.3, seed=1)(layers.BatchNormalization(momentum=0.9)(x))
    x = seen(layers.Conv2D(4, 3, padding="same", activation="tanh")(x))
    return keras.Model(image, layers.Conv2D(2, 1)(layers.BatchNormalization(name="inner")(x)))


def test_statistics_are_those_of_the_whole_batch_in_every_stage():
    images, micro_batches = images_of(8, 6, 6, 2), 4
    results = []
    for schedule, recompute in ((gpipe, False), (one_f_one_b, True), (gpipe, True)):
        keras.utils.set_random_seed(0)
        seen = Seen()
        model = in_two_stages(seen)
        cuts, orders = [0, 3, 8], schedule(2, micro_batches)
        gradients = run(model, cuts, orders, images, deferred=True, recompute=recompute)
        results.append([*gradients, *(variable.numpy() for variable in model.variables)])
        assert len(seen.given) == micro_batches
    for others in results[1:]:
        for result, two in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(result, two)

    @tf.function(autograph=False)
    def traced(batch):
        return run(model, cuts, orders, batch, deferred=True, recompute=True)

    for given in (images, tf.concat(list(seen.given.values()), 0)):
        name = "outer" if given is images else "inner"
        norm = model.get_layer(name)
        mean, variance = tf.nn.moments(given, [0, 1, 2])
        np.testing.assert_allclose(norm.moving_mean.numpy(), 0.01 * mean, rtol=1e-12)
        np.testing.assert_allclose(norm.moving_variance.numpy(), 0.99 + 0.01 * variance, rtol=1e-12)
    # A traced step is the same: the first one of another model.
    keras.utils.set_random_seed(0)
    model = in_two_stages(Seen())
    gradients = traced(images)
    again = [*gradients, *(variable.numpy() for variable in model.variables)]
    for result, two in zip(results[0], again, strict=True):
        np.testing.assert_allclose(result, two, rtol=1e-9, atol=1e-12)


def test_statistics_of_half_precision_are_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    alone, model = one_norm(), one_norm()
    images = tf.cast(images_of(8, 24, 24, 3), tf.bfloat16)
    alone(images, training=True)
    run(model, [0, 1], gpipe(1, 4), images, deferred=True)
    for one, two in zip(moving(model), moving(alone), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_allclose(one, two, rtol=1e-5)


class Own(layers.BatchNormalization):
    """One whose statistics are of its own making."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask)


class Masked(layers.Layer):
    """Normalizes part of a batch."""

    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization(name="part")

    def call(self, inputs, training=False):
        return self.norm(inputs, training=training, mask=inputs[..., 0] > 0)


def test_what_cannot_be_deferred_is_refused_by_name():
    image = keras.Input((6, 6, 2))
    config = RunConfig(backend="horovod", stages=2, batch_norm="deferred")
    for layer, words in (
        (layers.BatchNormalization(renorm=True, name="again"), "'again': it has renorm=True"),
        (Own(name="ours"), "'ours': it has a call of its own"),
    ):
        graph = read_network(keras.Model(image, layer(layers.Conv2D(2, 1)(image))))
        check_graph(graph, RunConfig(backend="horovod", stages=2))
        chunks_of(graph, [0, 1, 2])
        with pytest.raises(ValueError, match=words):
            check_graph(graph, config)
        with pytest.raises(ValueError, match=words):
            chunks_of(graph, [0, 1, 2], deferred=True)
    model = keras.Model(image, Masked()(image))
    with pytest.raises(ValueError, match="'part' normalises a batch with a mask"):
        run(model, [0, 1], gpipe(1, 2), images_of(4, 6, 6, 2), deferred=True)


def test_a_synchronized_layer_has_the_statistics_of_its_only_pipeline():
    images = images_of(4, 8, 8, 3)

    def made(**options):
        keras.utils.set_random_seed(0)
        image = keras.Input((8, 8, 3))
        tensor = layers.BatchNormalization(**options)(layers.Conv2D(3, 3)(image))
        return keras.Model(image, layers.Conv2D(2, 1)(tensor))

    plain, synchronized = made(), made(synchronized=True)
    expected = run(plain, [0, 2, 3], one_f_one_b(2, 2), images)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    gradients = strategy.run(
        lambda: run(synchronized, [0, 2, 3], one_f_one_b(2, 2), images, recompute=True)
    )
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert synchronized.layers[2].synchronized
