"""Measures what the ops of a step and the copies between device and host take."""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfunet.swap.costs import COPY_START_SECONDS, Costs
from tfunet.swap.host import Tier
from tfunet.swap.steps import ALIASES, Trace
from tfunet.swap.trace import FUSED_WITH_BIAS, num_bytes

REPEATS = 3
# Below it, what an op takes is what it takes to start any.
SMALL_BYTES = 2**18
SMALL_SECONDS = 2e-5
# A copy this large shows the speed of the link and not what it takes to start.
LINK_BYTES = 2**25


def measure(trace: Trace, ops: Sequence[tf.Operation], tier: Tier) -> Costs:
    """Return the costs of a step, each kind of large op and each direction of copying timed here.

    Ops of equal type, attributes and shapes are timed once, alone, on made-up numbers; a bias
    that is added to a convolution costs nothing, as TensorFlow does both in one go. Call it where
    ops run at once (`tf.init_scope`).
    """
    timed: dict[Any, float] = {}
    rate = _bytes_per_second()
    seconds = []
    for op, described in zip(ops, trace.ops, strict=True):
        moved = sum(num_bytes(one) for one in (*op.inputs, *op.outputs))
        fused = op.type == "BiasAdd" and op.inputs[0].op.type in FUSED_WITH_BIAS
        if described.kind in ALIASES or fused:
            seconds.append(0.0)
        elif moved < SMALL_BYTES:
            seconds.append(SMALL_SECONDS)
        else:
            key = _signature(op)
            if key not in timed:
                found = _op_seconds(op)
                timed[key] = moved / rate if found is None else found
            seconds.append(timed[key])
    out, back = _link(type(tier))
    return Costs(
        op_seconds=seconds,
        out_bytes_per_second=out,
        in_bytes_per_second=back,
        copy_seconds=COPY_START_SECONDS,
        copies_overlap=tier.copies_overlap,
    )


def _signature(op: tf.Operation) -> Any:
    attributes = {
        name: value.SerializeToString()
        for name, value in op.node_def.attr.items()
        if not name.startswith("_")
    }
    inputs = [(one.dtype, tuple(one.shape)) for one in op.inputs]
    return op.type, tuple(sorted(attributes.items())), tuple(inputs)


def _op_seconds(op: tf.Operation) -> float | None:
    """Return the time of one op; None for one that cannot be run alone."""
    special = (tf.resource, tf.variant, tf.string)
    known = all(one.shape.is_fully_defined() for one in op.inputs)
    if not known or op.op_def.is_stateful or any(one.dtype in special for one in op.inputs):
        return None
    constants = {at: _known(one) for at, one in enumerate(op.inputs)}
    free = [at for at, value in constants.items() if value is None]

    @tf.function(jit_compile=False, autograph=False)
    def alone(*given: tf.Tensor) -> list[tf.Tensor]:
        values = dict(zip(free, given, strict=True))
        inputs = [
            values[at] if at in values else tf.constant(constants[at], dtype=one.dtype)
            for at, one in enumerate(op.inputs)
        ]
        graph = tf.compat.v1.get_default_graph()
        made = graph.create_op(
            op.type,
            inputs,
            [one.dtype for one in op.outputs],
            attrs={k: v for k, v in op.node_def.attr.items() if not k.startswith("_")},
            op_def=op.op_def,
        )
        return list(made.outputs)

    with tf.device(op.device or None):
        given = [_made_up(op.inputs[at]) for at in free]
        try:
            return _median_seconds(lambda: alone(*given))
        except (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError):
            # Made-up numbers will not do for it, or there is no room for them beside the weights.
            return None


def _known(tensor: tf.Tensor) -> Any:
    """Return the value of a tensor that does not depend on data; None of any other."""
    if tensor.op.type == "ShapeN":
        return list(tensor.op.inputs[tensor.value_index].shape)
    return tf.get_static_value(tensor)


def _made_up(like: tf.Tensor) -> tf.Tensor:
    if like.dtype.is_floating:
        return tf.cast(tf.fill(like.shape, 0.5), like.dtype)
    return tf.zeros(like.shape, like.dtype)


@functools.cache
def _bytes_per_second() -> float:
    """Return how fast an op that only moves numbers reads and writes them."""
    numbers = tf.fill([LINK_BYTES // 4], 0.5)
    add = tf.function(lambda one: one + 1.0, jit_compile=False)
    return 2 * LINK_BYTES / _median_seconds(lambda: [add(numbers)])


@functools.cache
def _link(kind: type[Tier]) -> tuple[float, float]:
    """Return the bytes per second to the host and back; measured once in a process."""
    tier = kind()
    numbers = tf.fill([LINK_BYTES // 4], 0.5)

    @tf.function(jit_compile=False, autograph=False)
    def out(one: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tier.out(one)]):
            return tf.zeros(())

    @tf.function(jit_compile=False, autograph=False)
    def both(one: tf.Tensor) -> tf.Tensor:
        copied = tier.out(one)
        with tf.control_dependencies([copied]):
            return tier.back(one)

    out_seconds = _median_seconds(lambda: [out(numbers)])
    both_seconds = _median_seconds(lambda: [both(numbers)])
    back_seconds = max(both_seconds - out_seconds, out_seconds / 10)
    return LINK_BYTES / out_seconds, LINK_BYTES / back_seconds


def _median_seconds(run: Callable[[], Sequence[tf.Tensor]]) -> float:
    """Return the median time of a few runs after a first one, which traces."""
    seconds = []
    for _ in range(REPEATS + 1):
        since = time.perf_counter()
        results = run()
        # The device is done when a number of it is here.
        tf.reshape(results[0], [-1])[:1].numpy()
        seconds.append(time.perf_counter() - since)
        del results  # or the next run's would lie beside them
    return statistics.median(seconds[1:])
