"""Trains a small network under several budgets; prints memory as planned and as asked for.

And how many slabs run between two looks at the clock, where they are timed. Run by itself:
TensorFlow's own allocator, which alone keeps an account on a CPU, is chosen before TensorFlow
begins, and so is oneDNN.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPU_BFC_MEM_LIMIT_IN_MB="4096")

import keras
import tensorflow as tf
from kinds import unet
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfunet.graph import reader
from tfunet.graph.op_times import OpKind, take
from tfunet.swap import LargeModelSupport
from tfunet.swap.arena.device_memory import resident_bytes
from tfunet.swap.measure import slab_times
from tfunet.swap.plan.split import cut, splittable
from tfunet.swap.storage.host import NumpyMemory
from tfunet.timing.xplane import read_allocations

MIB = 2**20


def peak_bytes(run):
    """Return the most bytes that ops had asked for at once while `run` ran."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2)
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder, options):
            run()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        allocations = read_allocations(path)
    held, total, most = {}, 0, 0
    for allocation in allocations:
        total += allocation.num_bytes if allocation.begins else -held.pop(allocation.address, 0)
        held.update({allocation.address: allocation.num_bytes} if allocation.begins else {})
        most = max(most, total)
    return most


def step(budget_bytes, size):
    """Return the plan of a network's step, and the peak of such a step, in bytes."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = unet((size,) * 3 + (1,), filters=8, normalization="instance")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, jit_compile=False)
    image = tf.random.stateless_normal((1, size, size, size, 1), (0, 0))
    mask = tf.cast(image[..., 0] > 0, tf.int32)
    ways = ["swap", "recompute"]
    support = LargeModelSupport(
        budget_bytes, weights="none", margin=0, threshold_bytes=2**14, allowed=ways, verbose=0
    )
    with support.on(model):
        model.train_on_batch(image, mask)
        peak = peak_bytes(lambda: model.train_on_batch(image, mask))
    return support.plans[-1], peak, resident_bytes(model)


def gradient():
    """Return an op that unfolds the gradient of a volume where oneDNN does not compute it."""

    @tf.function
    def convolved(weights, upstream):
        return tf.raw_ops.Conv3DBackpropInputV2(
            input_sizes=(1, 8, 8, 8, 4),
            filter=weights,
            out_backprop=upstream,
            strides=[1] * 5,
            padding="SAME",
        )

    shapes = (3, 3, 3, 4, 2), (1, 8, 8, 8, 2)
    specs = [tf.TensorSpec(shape, tf.bfloat16) for shape in shapes]
    graph = convolved.get_concrete_function(*specs).graph
    return next(op for op in graph.get_operations() if op.type == "Conv3DBackpropInputV2")


def slabs_between_looks():
    """Return how many slabs of a padded convolution are timed in a row, and how many ran from each
    look at the clock to the next, where any did."""

    @tf.function
    def convolved(image, weights):
        return tf.nn.conv3d(image * 2.0, weights, [1] * 5, "SAME")

    specs = [tf.TensorSpec(shape) for shape in ((1, 16, 8, 8, 4), (3, 3, 3, 4, 4))]
    graph = convolved.get_concrete_function(*specs).graph
    ops = reader.in_order(graph.get_operations(), graph.outputs)
    read, _ = reader.read(ops, graph.outputs)
    (doubled,) = (
        tensor for tensor in splittable(read) if ops[read.tensors[tensor].producer].type == "Mul"
    )
    found = cut(read, {doubled})
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            slab_times.seconds_of_slabs(found, ops, NumpyMemory, list(found.chains))
        (path,) = Path(folder).glob("**/*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    began = sorted(
        (line.timestamp_ns * 1000 + event.offset_ps, plane.event_metadata[event.metadata_id].name)
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    )
    names = [name for _, name in began if name.startswith(("look", "slab/Conv3D"))]
    runs = "".join("l" if name.startswith("look") else "s" for name in names).split("l")
    return slab_times.IN_A_ROW, [len(turns) for turns in runs if turns]


def main(size):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    (alone,) = take([OpKind(gradient())])
    with tempfile.TemporaryDirectory() as folder, tf.profiler.experimental.Profile(folder):
        (watched,) = take([OpKind(gradient())])  # where a profile is being taken
    found = {"scratch": alone.scratch_bytes, "watched_scratch": watched.scratch_bytes, "steps": []}
    found["in_a_row"], found["between_looks"] = slabs_between_looks()
    plan, _, resident = step(2**40, size)
    need = plan.peak_bytes
    for share in (1.2, 0.7, 0.5):
        plan, peak, _ = step(resident + int(share * need), size)
        found["steps"].append(
            {"peak": peak, "predicted": plan.peak_bytes, "decisions": len(plan.decisions)}
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
