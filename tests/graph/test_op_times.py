"""Ops that are run alone: what runs, and the memory that it needs."""

import collections
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from kinds import KINDS, batches
from paths import SUPPORT
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfunet.graph import clock, op_times, reader
from tfunet.graph.op_times import OpKind, take
from tfunet.swap import LargeModelSupport
from tfunet.swap.measure import profile
from tfunet.swap.storage.host import NumpyMemory

STEP = SUPPORT / "step_memory.py"


def traced(function, *shapes):
    """Return the ops of a function of float32 tensors."""
    specs = [tf.TensorSpec(shape) for shape in shapes]
    graph = tf.function(function).get_concrete_function(*specs).graph
    return {op.type: op for op in graph.get_operations()}


def executed(run, folder):
    """Return how often each op ran, by its name in the graph."""
    with tf.profiler.experimental.Profile(str(folder)):
        run()
    (path,) = folder.glob("**/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    names = [
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    ]
    return collections.Counter(name.rsplit(":", 1)[0] for name in names if ":" in name)


def test_each_op_runs_once_between_two_looks_at_the_clock(tmp_path):
    def several(image, other, weights):
        pooled = tf.nn.max_pool2d(image, 2, 2, "SAME")
        gradient = tf.raw_ops.MaxPoolGrad(
            orig_input=image,
            orig_output=pooled,
            grad=pooled,
            ksize=[1, 2, 2, 1],
            strides=[1, 2, 2, 1],
            padding="SAME",
        )
        return image + other, tf.nn.conv2d(image, weights, 1, "SAME"), gradient

    shape = (2, 16, 16, 4)
    ops = traced(several, shape, shape, (3, 3, 4, 4))
    # Equal ops on equal numbers, of which TensorFlow would make one, and of a sum a product.
    kinds = ["AddV2", "AddV2", "Conv2D", "Conv2D", "MaxPoolGrad"]
    taken = []
    times = executed(
        lambda: taken.extend(take([OpKind(ops[kind], is_held=True) for kind in kinds])), tmp_path
    )
    # One more where scratch memory is measured, which needs an allocator that keeps an account.
    runs = times["alone_0"]
    assert runs in (clock.REPEATS + 1, clock.REPEATS + 2)
    assert [times[f"alone_{index}"] for index in range(len(kinds))] == [runs] * len(kinds)
    assert all(op.seconds >= 0 for op in taken)
    # Two inputs of each: the third of the last is what the forward op made.
    made_up = sum(count for name, count in times.items() if name.split("/")[-1].startswith("Tile"))
    assert made_up == runs * 2 * 5


def test_tiny_ops_are_all_there(tmp_path):
    times = executed(op_times.tiny_seconds, tmp_path)
    runs = clock.REPEATS + 1
    for name in ("Sqrt", "mul"):
        count = sum(count for op, count in times.items() if op.split("_")[0] == name)
        assert count == runs * op_times.TINY_OPS, name


def test_an_op_that_made_up_numbers_do_not_suit_does_not_spoil_the_others():
    def several(image, where):
        return tf.gather(image, tf.cast(where, tf.int32)), image * 2.0

    # No number can be gathered from nothing.
    ops = traced(several, (0, 8), (4,))
    multiply = traced(several, (4, 8), (4,))["Mul"]
    taken = take([OpKind(ops["GatherV2"]), OpKind(multiply)])
    assert taken[0] is None
    assert taken[1] is not None


def test_refusals_of_memory_are_few_in_all(monkeypatch):
    """TensorFlow waits ten seconds before each, and may name no op."""
    refused = []

    def together(kinds):
        refused.append(len(kinds))
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(op_times, "_take_together", together)
    ops = traced(lambda image: image * 2.0, (4,))
    assert take([OpKind(ops["Mul"])] * 64) == [None] * 64
    assert refused == [64, 32, 16]


def test_an_op_whose_output_depends_on_numbers_is_not_run():
    ops = traced(lambda image, sizes: tf.fill(tf.cast(sizes, tf.int32), image[0]), (4,), (2,))
    assert take([OpKind(ops["Fill"])]) == [None]


def test_ops_that_make_more_and_less_of_the_same_input_are_timed_apart():
    def several(sums):
        return tf.tile(sums, [1, 256, 256, 1]), tf.tile(sums, [1, 128, 128, 1])

    graph = tf.function(several).get_concrete_function(tf.TensorSpec((1, 1, 1, 16))).graph
    ops = reader.in_order(graph.get_operations(), graph.outputs)
    step, _ = reader.read(ops, graph.outputs)
    known = {}
    profile.measure(step, ops, NumpyMemory(None), known)
    assert [signature[0] for signature in known] == ["Tile", "Tile"]


@pytest.mark.parametrize(
    ("kind", "deterministic"),
    [("unet 3D", False), ("separable", True)],
)
def test_every_kind_of_op_of_a_network_is_timed_and_no_bit_changes(
    kind, deterministic, monkeypatch
):
    if deterministic:  # TensorFlow takes other ops then.
        tf.config.experimental.enable_op_determinism()
    timed = []

    def spied(kinds):
        timed.extend(zip(kinds, take(kinds), strict=True))
        return [taken for _, taken in timed]

    monkeypatch.setattr(profile.op_times, "take", spied)
    monkeypatch.setattr(profile, "SMALL_BYTES", 2**8)

    def trained(callbacks):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        model = KINDS[kind]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, optimizer="adam", jit_compile=False)
        image, mask = batches(model, kind, num=2)
        model.fit(image, mask, batch_size=2, shuffle=False, verbose=0, callbacks=callbacks)
        return model.get_weights()

    ways = ["swap", "recompute"]  # Slabs would change the last bits.
    planned = trained([LargeModelSupport(0, threshold_bytes=256, allowed=ways, verbose=0)])
    for one, other in zip(planned, trained([]), strict=True):
        np.testing.assert_array_equal(one, other)
    # What has a state may not be run for its time.
    stateless = [(op.op, taken) for op, taken in timed if not op.op.op_def.is_stateful]
    assert len(stateless) > 20
    assert [op.type for op, taken in stateless if taken is None] == []


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_peak_is_as_planned_with_scratch_and_without(onednn):
    environment = {
        **os.environ,
        "TF_ENABLE_ONEDNN_OPTS": onednn,
        "PYTHONPATH": os.pathsep.join([str(STEP.parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, str(STEP), "24"],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    printed = json.loads(done.stdout.splitlines()[-1])
    if onednn == "0":
        # Each of 8^3 gradients is unfolded to what 3^3 weights of 4 channels make of it.
        assert printed["scratch"] == 8**3 * 3**3 * 4 * 2
    # A profile is not taken inside another, and the op is timed all the same.
    assert printed["watched_scratch"] == 0
    # All slabs of a row, also where oneDNN makes one op of a convolution and its padding.
    assert printed["in_a_row"] > 1
    assert set(printed["between_looks"]) == {printed["in_a_row"]}, printed
    for step in printed["steps"]:
        assert step["predicted"] == pytest.approx(step["peak"], rel=0.01)
    assert printed["steps"][-1]["decisions"] > 0
