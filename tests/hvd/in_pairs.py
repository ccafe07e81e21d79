"""One process of Horovod that exchanges with some others, in an order known to all of them.

It prints how many values that came were wrong, how many processes there are, and what all of them
reduce. The last process then waits until its standard input is closed, and ends without a word. The
others go on.
"""

import os
import random
import sys

import numpy as np

from tfunet.backend import Launch
from tfunet.parallel.mesh import Mesh
from tfunet.process.start_up import short_start

with short_start():
    import tensorflow as tf

    from hvd.backend import HorovodBackend

MESH = Mesh(split=(2, 1), stages=2)
STEPS = 10
me, *addresses = sys.argv[1:]
device = int(me)
backend = HorovodBackend(
    Launch(
        process_index=device,
        process_count=len(addresses),
        num_replicas=len(addresses),
        addresses=tuple(addresses),
        pairs=tuple(MESH.pairs),
    )
)
chance = random.Random(0)
# Who meets, and who of them sends: both, one of them, or both what TensorFlow knows beforehand.
MEETINGS = [
    (chance.choice(MESH.pairs), chance.choice(("both", "low", "high", "zeros"))) for _ in range(30)
]


def values(sender: int, number: int, step: tf.Tensor, who: str) -> tf.Tensor:
    if who == "zeros":
        return tf.zeros([5 + number])
    return tf.range(5 + number, dtype=tf.float32) + 1000.0 * sender + tf.cast(step, tf.float32)


@tf.function
def met(step: tf.Tensor) -> tf.Tensor:
    """Return how many values that came in a step are wrong."""
    wrong = tf.constant(0)
    after: list[tf.Operation] = []
    graph = tf.compat.v1.get_default_graph()
    for number, ((low, high), who) in enumerate(MEETINGS):
        if device not in (low, high):
            continue
        other = low + high - device
        own, theirs = ("low", "high") if device == low else ("high", "low")
        sent = {other: values(device, number, step, who)} if who != theirs else {}
        received = {other: [5 + number]} if who != own else {}
        before = len(graph.get_operations())
        with tf.control_dependencies(after):
            came = backend.exchange(sent, received, tf.float32)
        after = graph.get_operations()[before:]
        for value in came.values():
            differs = tf.not_equal(value, values(other, number, step, who))
            wrong += tf.reduce_sum(tf.cast(differs, tf.int32))
    with tf.control_dependencies(after):
        return tf.identity(wrong)


@tf.function
def averages() -> list[tf.Tensor]:
    """Return a mean over all processes, a sum, and its gradient, of tensors with other names."""
    value = tf.identity(tf.constant(float(device)), name=f"of_{device}")
    (mean,) = backend.average([value])
    with tf.GradientTape() as tape:
        tape.watch(value)
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, value)
        result = tf.identity(total * value, name=f"result_{device}")
    return [mean, total, tape.gradient(result, value)]


backend.start()
print(sum(int(met(tf.constant(step))) for step in range(STEPS)))
print(int(backend.sum(np.ones(1))[0]))
print(*(float(value[0]) for value in backend.run(averages)), flush=True)
if device == len(addresses) - 1:
    sys.stdin.read()
    os._exit(1)
while True:
    met(tf.constant(0))
