"""Training with ops in slabs: the losses and weights are those without, in less memory."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from kinds import FEW_KINDS
from strategies import AllThatMayBeSplit
from supported_runs import (
    FEW_SLABS,
    FLOAT32,
    WHOLE,
    assert_same,
    forced,
    passed_with_onednn,
    plain,
    trained,
)

from tfunet.swap import LargeModelSupport
from tfunet.swap.plan import slab_chains, split
from tfunet.swap.plan.plan import Plan


@pytest.fixture(autouse=True)
def few_slabs(monkeypatch):
    monkeypatch.setattr(slab_chains, "MOST_SLABS", FEW_SLABS)


def all_split():
    return forced(AllThatMayBeSplit())


def assert_close(first, second, rtol):
    np.testing.assert_allclose(first[0], second[0], rtol=rtol)
    for a, b in zip(first[1], second[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_training_in_slabs_is_training(kind):
    policy = "float32" if kind in FLOAT32 else "float64"
    support = all_split()
    in_slabs = trained(kind, [support], policy)
    # The U-Nets end in float32 whatever the policy.
    assert_close(in_slabs, plain(kind, policy), rtol=2e-6)
    assert bool(support.plans[-1].split) == (kind not in WHOLE)


splittable = split.splittable


# Tensors of each kind that may not be split. Something large of the latter two cannot be.
@pytest.mark.parametrize(
    ("kind", "whole"), [("unet, batch", "down1"), ("separable", "none"), ("own train_step", "none")]
)
def test_split_beside_swapped_and_repeated(kind, whole, monkeypatch):
    def that_may_be(trace):
        return {index for index in splittable(trace) if whole not in trace.tensors[index].name}

    monkeypatch.setattr(split, "splittable", that_may_be)
    support = LargeModelSupport(0, threshold_bytes=256, verbose=0)
    assert_close(trained(kind, [support], "float64"), plain(kind, "float64"), rtol=2e-6)
    plan = support.plans[-1]
    assert plan.split
    assert plan.decisions
    assert plan.peak_bytes < plan.unlimited_peak_bytes


def test_bfloat16_in_slabs():
    support = LargeModelSupport(0, threshold_bytes=256, verbose=0, allowed=["split"])
    in_slabs = trained("shared layers", [support], "mixed_bfloat16")
    assert_close(in_slabs, plain("shared layers", "mixed_bfloat16"), rtol=2e-2)
    assert support.plans[-1].split


def first_loss(callbacks):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    x = image = keras.Input((24, 16, 4))
    for _ in range(2):
        x = keras.layers.Conv2D(8, 3, padding="same", dtype="mixed_bfloat16")(x)
        x = keras.layers.LeakyReLU(0.2, dtype="mixed_bfloat16")(x)
    model = keras.Model(image, keras.layers.Conv2D(1, 1)(x))
    model.compile("sgd", "mean_absolute_error", jit_compile=False)
    images = np.random.default_rng(0).normal(size=(2, 24, 16, 4))
    far = np.full((2, 24, 16, 1), 3.0)
    return model.fit(images, far, batch_size=2, verbose=0, callbacks=callbacks).history["loss"]


def test_forward_pass_of_16_bits_is_rounded_as_without_slabs():
    support = LargeModelSupport(0, threshold_bytes=256, verbose=0, allowed=["split"])
    assert first_loss([support]) == first_loss([])
    plan = support.plans[-1]
    # An activation whose input nobody else reads.
    assert plan.split
    assert plan.from_outputs


def test_forward_pass_of_16_bits_is_rounded_as_without_slabs_by_onednn():
    # It makes one op of a convolution, its bias and its activation.
    test = test_forward_pass_of_16_bits_is_rounded_as_without_slabs.__name__
    assert passed_with_onednn(f"{__file__}::{test}") == 1


def test_slabs_of_16_bits_are_added_up_in_32(monkeypatch):
    monkeypatch.setattr(slab_chains, "MOST_SLABS", 64)
    support = all_split()
    image = keras.Input((64, 2, 8))
    convolution = keras.layers.Conv2D(1, 1, use_bias=False, dtype="mixed_bfloat16")
    model = keras.Model(image, convolution(keras.layers.Activation("relu")(image)))
    model.compile(keras.optimizers.SGD(1.0), "mean_absolute_error", jit_compile=False)
    before = convolution.kernel.numpy()
    images = np.random.default_rng(0).uniform(1, 2, (1, 64, 2, 8))
    far = np.full((1, 64, 2, 1), 1e3)
    model.fit(images, far, batch_size=1, verbose=0, callbacks=[support])
    assert set(support.plans[-1].slab_rows.values()) == {1}
    gradient = (convolution.kernel.numpy() - before).ravel()
    # A rounding to 16 bits is off by 0.4 % at the most; 64, one after the other, by more.
    np.testing.assert_allclose(gradient, images.mean((0, 1, 2)), rtol=4e-3)


def test_nothing_is_split_where_swapping_is_enough():
    unlimited = LargeModelSupport("8GiB", threshold_bytes=256, verbose=0)
    trained("unet, batch", [unlimited])
    budget = int(unlimited.plans[-1].unlimited_peak_bytes * 0.9) + 2**16
    support = LargeModelSupport(budget, threshold_bytes=256, margin=0, verbose=0)
    trained("unet, batch", [support])
    assert not support.plans[-1].split


def test_plan_with_slabs_is_used_again_and_gives_the_same_bits():
    first = LargeModelSupport(0, threshold_bytes=256, margin=0.0, verbose=0)
    first_run = trained("subclassed", [first])
    plan = Plan.from_json(first.plans[-1].to_json())
    assert plan == first.plans[-1]
    assert plan.split
    assert plan.slab_rows
    again = LargeModelSupport("8GiB", threshold_bytes=256, plan=plan, verbose=0)
    assert_same(first_run, trained("subclassed", [again]))


def graph_of(step, shape):
    traced = tf.function(lambda image: step((image, image)), autograph=False)
    return traced.get_concrete_function(tf.TensorSpec(shape)).graph


def reached(graph):
    """Return the names of the ops that a graph runs."""
    names = set()
    following = [tensor.op for tensor in graph.outputs]
    following += [op for op in graph.get_operations() if op.op_def.is_stateful]
    while following:
        op = following.pop()
        if op.name not in names:
            names.add(op.name)
            following += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return names


class Own(keras.Model):
    """Its step returns what is summed over all voxels, and a number that an op elsewhere made."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Conv2D(4, 3, padding="same", activation="relu")
        self.last = keras.layers.Conv2D(1, 3, padding="same")

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            image = self(x, training=True)
            loss = tf.reduce_mean(tf.square(image - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        with tf.device("CPU:0"):
            highest = tf.reduce_max(image)
        return {"loss": loss, "highest": highest}


def test_results_of_a_step_come_from_slabs_and_the_whole_ops_are_gone():
    x = np.random.default_rng(0).normal(size=(2, 16, 16, 1)).astype("float32")
    results = []
    for support in (None, all_split()):
        keras.utils.set_random_seed(0)
        model = Own()
        model.compile(optimizer="sgd", jit_compile=False)
        model(x)
        with support.on(model) if support else contextlib.nullcontext():
            results.append([model.train_on_batch(x, x, return_dict=True) for _ in range(2)])
            if support:
                assert support.plans[-1].split
                graph = graph_of(model.train_step, (2, 16, 16, 1))
                in_slabs = set(support.plans[-1].slab_rows)
                assert in_slabs
                assert in_slabs & reached(graph) == set()
    for whole, in_slabs in zip(*results, strict=True):
        assert whole == pytest.approx(in_slabs, rel=1e-5)


CAPPED = """
import json
import sys

import keras
import numpy as np
import tensorflow as tf

from tfunet.models.make import make_model
from tfunet.swap import LargeModelSupport

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
keras.utils.set_random_seed(0)
options = {"filters": 8, "levels": 1, "normalization": "none"}
model = make_model("unet", image_shape=(64, 64, 64, 1), num_classes=2, options=options)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss, jit_compile=False)
image = np.random.default_rng(0).normal(size=(1, 64, 64, 64, 1)).astype("float32")
support = LargeModelSupport("20MiB", allowed=json.loads(sys.argv[1]), margin=0, verbose=0)
losses = []
try:
    with support.on(model):
        for _ in range(3):
            losses.append(float(model.train_on_batch(image, (image[..., 0] > 0.3) * 1)))
except tf.errors.ResourceExhaustedError:
    print("exhausted")
    sys.exit()
print(json.dumps({"losses": losses, "split": len(support.plans[-1].split)}))
"""


def in_arena(cap_mib, allowed):
    """Return what a process printed that trained a U-Net of 64^3 in a capped allocator."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CAPPED), json.dumps(allowed)],
        env={
            **os.environ,
            "TF_CPU_ALLOCATOR_USE_BFC": "true",
            "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(cap_mib),
            "TF_ENABLE_ONEDNN_OPTS": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    # Where its own scratch does not fit, oneDNN ends the process.
    return "exhausted" if done.returncode < 0 else done.stdout.splitlines()[-1]


def test_what_one_op_alone_does_not_fit_in_trains_in_slabs():
    # The gradient of the convolution after the concatenation: 32 MiB at once, beside others.
    ways = ["swap", "recompute"]
    with ThreadPoolExecutor() as pool:
        # TensorFlow waits for ten seconds before it refuses memory.
        exhausted = pool.submit(in_arena, 40, ways)
        everything = json.loads(in_arena(400, ways))
        in_slabs = json.loads(in_arena(40, [*ways, "split"]))
    assert in_slabs["split"]
    assert not everything["split"]
    np.testing.assert_allclose(in_slabs["losses"], everything["losses"], rtol=1e-5)
    assert exhausted.result() == "exhausted"
