"""The traced step of one stage, with large-model support and without: the same bits."""

import itertools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfunet.graph import passes, reader
from tfunet.graph.capture import taken_over
from tfunet.graph.gradient_sums import in_order_of_graph
from tfunet.graph.traced import traced
from tfunet.learning.losses import DiceCrossEntropy
from tfunet.parallel.mesh import Mesh
from tfunet.pipeline.network import read_network
from tfunet.pipeline.own_stage import OwnStage
from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan

MICRO_BATCHES = 4
CUTS = {"gpipe": [0, 5, 11], "1f1b": [0, 5, 11], "v": [0, 3, 5, 7, 11]}


def build():
    image = keras.Input((16, 16, 1))
    first = layers.Conv2D(4, 3, padding="same", activation="relu", name="first")(image)
    x = layers.Dropout(0.2, seed=1)(layers.BatchNormalization()(first))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.LeakyReLU()(layers.GroupNormalization(2)(x))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.UpSampling2D()(x))
    return keras.Model(image, layers.Conv2D(2, 1)(layers.Concatenate()([x, first])))


def stage_of(network, device, schedule, **options):
    """A stage that gets other numbers in each exchange, whatever it sends."""
    count = itertools.count()
    numbers = np.random.default_rng(0).normal(size=2**16).astype("float32")

    def exchange(sent, received, dtype):
        came = {}
        for other, shape in received.items():
            size = math.prod(shape)
            begin = 97 * next(count)
            gave = [tf.reduce_sum(tensor) for tensor in sent.values()]
            with tf.control_dependencies(gave):
                made = tf.numpy_function(
                    lambda begin=begin, size=size: numbers[begin : begin + size].copy(),
                    [],
                    tf.float32,
                    name="exchange",
                )
            made.set_shape([size])
            came[other] = tf.reshape(tf.cast(made, dtype), shape)
        return came

    return OwnStage(
        network,
        CUTS[schedule],
        mesh=Mesh(groups=1, split=(1, 1), stages=2),
        device=device,
        exchange=exchange,
        schedule=schedule,
        micro_batches=MICRO_BATCHES,
        note=lambda *_: None,
        **options,
    )


class Steps:
    """Steps of a stage that begin with the same weights; `names` are those of the last graph."""

    def __init__(self, device, schedule, **options):
        keras.utils.set_random_seed(0)
        self.model = build()
        self.model.compile(loss=DiceCrossEntropy(), optimizer="sgd")
        self.network = read_network(self.model)
        self.of_stage = device, schedule, options
        rng = np.random.default_rng(1)
        self.images = tf.constant(rng.normal(size=(MICRO_BATCHES, 16, 16, 1)), tf.float32)
        self.truth = tf.constant(rng.random((MICRO_BATCHES, 16, 16)) > 0.5, tf.int32)

    def take(self, support=None):
        device, schedule, options = self.of_stage
        stage = stage_of(self.network, device, schedule, **options)
        loss = DiceCrossEntropy()

        def step(images, truth):
            value, gradients, _ = stage.train(images, truth, loss)
            known = [gradient for gradient in gradients if gradient is not None]
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(gradient**2) for gradient in known]))
            return [value, *(gradient * (0.1 / norm) for gradient in known)]

        function = traced(step if support is None else taken_over(step, support._rewrite))
        before = [variable.numpy() for variable in self.model.variables]
        made = [tensor.numpy() for tensor in in_order_of_graph(function)(self.images, self.truth)]
        made += [variable.numpy() for variable in self.model.variables]
        for variable, value in zip(self.model.variables, before, strict=True):
            variable.assign(value)
        graph = function.get_concrete_function(self.images, self.truth).graph
        self.names = [op.name for op in graph.get_operations()]
        return made

    def swapped(self, **options):
        """What a step makes with all given up that can be, and its plan."""
        support = LargeModelSupport(0, threshold_bytes=1024, verbose=0, **options)
        support.plan_stage(self.model.variables)
        with support.on(self.model):
            return self.take(support), support.plans[0]


@pytest.mark.parametrize(
    ("device", "schedule", "options"),
    [
        (0, "1f1b", {"deferred": True}),
        (1, "1f1b", {"recompute": True}),
        (1, "v", {}),
        (0, "gpipe", {}),
    ],
)
def test_a_plan_changes_no_bit_and_no_exchange(device, schedule, options):
    steps = Steps(device, schedule, **options)
    expected = steps.take()
    exchanges = [name for name in steps.names if name.startswith("exchange")]
    made, plan = steps.swapped()
    assert plan.count("swap") + plan.count("recompute") >= MICRO_BATCHES
    for one, other in zip(made, expected, strict=True):
        assert one.tobytes() == other.tobytes()
    assert [name for name in steps.names if name.startswith("exchange")] == exchanges
    assert plan.peak_bytes < plan.unlimited_peak_bytes


def test_what_later_micro_batches_keep_goes_too():
    _, plan = Steps(0, "1f1b").swapped(allowed=["swap", "split"])
    assert not plan.split
    # The first pass comes before any gradient, and the others after some.
    passes_of_first = [name for name in plan.decisions if re.fullmatch(r"first.*/Relu:0", name)]
    assert len(passes_of_first) == MICRO_BATCHES
    assert plan.peak_bytes < plan.unlimited_peak_bytes


def test_plans_of_whole_networks_are_refused():
    with pytest.raises(ValueError, match="a plan of its own for each stage"):
        LargeModelSupport(0, plan=Plan()).plan_stage([])


def test_which_ops_belong_to_backward_passes_where_passes_take_turns():
    @tf.function(autograph=False)
    def step(first, second):
        weights = tf.constant([2.0]) * first[:1]
        sums = None
        for number, given in enumerate((first, second)):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                made = tf.tanh(given * weights, name=f"forward{number}")
            (gradient,) = tape.gradient(made, [weights])
            sums = gradient if sums is None else tf.add(sums, gradient, name="sum")
        return tf.sqrt(sums, name="update")

    ones = tf.ones(3)
    ops = step.get_concrete_function(ones, ones).graph.get_operations()
    turns, once = (
        dict(zip([op.name for op in ops], belong(ops), strict=True))
        for belong in (passes.of_many_turns, passes.of_one_turn)
    )
    names = ["forward0", "forward1", "sum", "update"]
    assert [turns[name] for name in names] == [False, False, True, True]
    assert [once[name] for name in names] == [False, True, True, True]
    trace, _ = reader.read(ops, takes_turns=True)
    assert [op.is_backward for op in trace.ops] == list(turns.values())
