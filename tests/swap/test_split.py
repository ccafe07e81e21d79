"""Training with ops in slabs: the losses and weights are those without, in less memory."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from kinds import KINDS
from test_exactness import trained

from tfunet.swap import LargeModelSupport
from tfunet.swap.plan import Plan

# In float64 an error is not hidden by rounding; the poolings of 3D have no such kernel.
FLOAT32 = {"unet 3D", "isensee"}
# Their large ops have no rows, or ops among them that cannot be cut.
WHOLE = {"1D", "attention", "recurrent"}


def assert_close(one, other, rtol):
    np.testing.assert_allclose(one[0], other[0], rtol=rtol)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", KINDS)
def test_training_in_slabs_is_training(kind):
    policy = "float32" if kind in FLOAT32 else "float64"
    support = LargeModelSupport(0, threshold_bytes=256, verbose=0, allowed=["split"])
    in_slabs = trained(kind, [support], policy)
    # The U-Nets end in float32 whatever the policy.
    assert_close(in_slabs, trained(kind, [], policy), rtol=2e-6)
    assert bool(support.plans[-1].split) == (kind not in WHOLE)


@pytest.mark.parametrize("kind", ["unet, batch", "two outputs", "own train_step", "MobileNetV2"])
def test_split_beside_swapped_and_repeated(kind):
    support = LargeModelSupport(0, threshold_bytes=256, verbose=0)
    assert_close(trained(kind, [support], "float64"), trained(kind, [], "float64"), rtol=2e-6)
    plan = support.plans[-1]
    assert plan.split
    assert plan.decisions
    assert plan.peak_bytes < plan.unlimited_peak_bytes


def test_bfloat16_in_slabs():
    support = LargeModelSupport(0, threshold_bytes=256, verbose=0, allowed=["split"])
    in_slabs = trained("shared layers", [support], "mixed_bfloat16")
    assert_close(in_slabs, trained("shared layers", [], "mixed_bfloat16"), rtol=2e-2)
    assert support.plans[-1].split


def test_nothing_is_split_where_swapping_is_enough():
    unlimited = LargeModelSupport("8GiB", threshold_bytes=256, verbose=0)
    trained("unet, batch", [unlimited])
    budget = int(unlimited.plans[-1].unlimited_peak_bytes * 0.9) + 2**16
    support = LargeModelSupport(budget, threshold_bytes=256, margin=0, verbose=0)
    trained("unet, batch", [support])
    assert not support.plans[-1].split


def test_plan_with_slabs_is_used_again_and_gives_the_same_bits():
    first = LargeModelSupport(0, threshold_bytes=256, verbose=0)
    one = trained("unet, group", [first])
    plan = Plan.from_json(first.plans[-1].to_json())
    assert plan == first.plans[-1]
    assert plan.split
    assert plan.slab_rows
    again = LargeModelSupport("8GiB", threshold_bytes=256, plan=plan, verbose=0)
    other = trained("unet, group", [again])
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(a, b)


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
support = LargeModelSupport("28MiB", allowed=json.loads(sys.argv[1]), margin=0, verbose=0)
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
            # oneDNN's own scratch ends a process where it does not fit.
            "TF_ENABLE_ONEDNN_OPTS": "0",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def test_what_one_op_alone_does_not_fit_in_trains_in_slabs():
    # The gradient of the convolution after the concatenation: 40 MiB at once.
    everything = json.loads(in_arena(400, ["swap", "recompute"]))
    in_slabs = json.loads(in_arena(50, ["swap", "recompute", "split"]))
    assert in_slabs["split"]
    assert not everything["split"]
    np.testing.assert_allclose(in_slabs["losses"], everything["losses"], rtol=1e-5)
    assert in_arena(50, ["swap", "recompute"]) == "exhausted"
