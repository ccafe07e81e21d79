"""A script for `tfunet run`, which times what a plan has to know of this machine.

    timing_script.py links OUT.json                  averages, exchanges, and what a core computes
    timing_script.py layers RUN.toml OUT.json N ...  the layers of a run's network, for N samples,
                                                     and the preparation of a sample

All processes compute at once, so that what cores cost each other is part of the times.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tfunet.files.atomic import write_atomic

AVERAGE_BYTES = (2**12, 2**20, 2**24)
EXCHANGE_BYTES = (2**10, 2**16, 2**20)
# Gradients are many tensors.
TENSORS = 32
# So many averages, or exchanges, follow each other in a call, and the median of so many calls
# counts.
ROUNDS, CALLS = 4, 5
# A convolution, and a sum of a tensor and a number, of these sizes.
IMAGE, CHANNELS, KERNEL = (4, 64, 64), 32, 3
SUM_NUMBERS = 2**22


def main() -> None:
    """Measure, and have the first process write what it found."""
    from tfunet.fit.joined import join

    joined = join()
    backend = joined.backend
    topology = backend.start()
    what, *words = sys.argv[1:]
    found: Any
    if what == "links":
        found = links(backend, topology)
        (out,) = words
    else:
        run, out, *samples = words
        found = layers(run, [int(one) for one in samples])
    if topology.is_chief:
        write_atomic(Path(out), json.dumps(found) + "\n")
    backend.sum(_nothing())
    backend.stop()


def _nothing() -> Any:
    import numpy as np

    return np.zeros(1)


def links(backend: Any, topology: Any) -> dict[str, Any]:
    """Return seconds of averages and exchanges by bytes, and the rates of a core."""
    flops, convolve = _convolution()
    call = _call(convolve, backend.run)
    seconds = _median(call, backend) / ROUNDS
    # What the numbers are made by takes longer than their sums.
    few, many = (
        _median(_call(partial(_sums, count), backend.run), backend)
        for count in (ROUNDS, 3 * ROUNDS)
    )
    added = max(many - few, 1e-6) / (2 * ROUNDS)
    found: dict[str, Any] = {
        "flops_per_second": flops / seconds,
        "bytes_per_second": 2 * 4 * SUM_NUMBERS / added,
    }
    if topology.num_replicas > 1:
        from tfunet.parallel.host_exchange import exchange_of

        found["averages"] = [
            [size, _between(backend, _average(backend, size))] for size in AVERAGE_BYTES
        ]
        exchange = exchange_of(backend, topology, what="exchanges", may_share=True)
        found["exchanges"] = [
            [size, _between(backend, _exchange(exchange, topology, size))]
            for size in EXCHANGE_BYTES
        ]
    return found


def _unknown() -> Any:
    """Return about 1: TensorFlow would compute with a constant beforehand."""
    import tensorflow as tf

    return tf.random.uniform((), 0.9, 1.1)


def _convolution() -> tuple[float, Callable[[], Any]]:
    import tensorflow as tf

    flops = 2.0 * math.prod(IMAGE) * CHANNELS**2 * KERNEL**2

    def convolve() -> Any:
        image = tf.random.stateless_normal([*IMAGE, CHANNELS], seed=[0, 1]) * _unknown()
        kernel = tf.random.stateless_normal([KERNEL, KERNEL, CHANNELS, CHANNELS], seed=[0, 2])
        for _ in range(ROUNDS):
            image = tf.nn.conv2d(image, kernel * 0.06, strides=1, padding="SAME")
        return image

    return flops, convolve


def _sums(count: int) -> Any:
    """Return a number of each of so many sums, which read and write a tensor each."""
    import tensorflow as tf

    given = tf.fill([SUM_NUMBERS], _unknown())
    return tf.stack([(given + float(at))[0] for at in range(count)])


def _average(backend: Any, num_bytes: int) -> Callable[[Any], Any]:
    import tensorflow as tf

    def average(given: Any) -> Any:
        numbers = max(1, num_bytes // 4 // TENSORS)
        tensors = [tf.fill([numbers], given + at) for at in range(TENSORS)]
        return tf.add_n([one[0] for one in backend.average(tensors)]) * 1e-9

    return average


def _exchange(between: Any, topology: Any, num_bytes: int) -> Callable[[Any], Any]:
    import tensorflow as tf

    from tfunet.training.traced_device import traced_device

    def exchange(given: Any) -> Any:
        local = topology.local_replicas
        me = local.start if len(local) == 1 else traced_device()
        other = me ^ 1
        # With an odd number, the last device has no other.
        pair = {other: tf.fill([num_bytes // 4], given)} if other < topology.num_replicas else {}
        shapes = {other: [num_bytes // 4] for other in pair}
        came = between(pair, shapes, tf.float32)
        return tf.add_n([one[0] for one in came.values()] or [given]) * 1e-9

    return exchange


def _between(backend: Any, message: Callable[[Any], Any]) -> float:
    """Return the seconds of a message: alone, or between computations, beyond those of these alone,
    whichever is more: computing processes do not come to a message at the same time."""
    import tensorflow as tf

    def steps(*, computes: bool, sends: bool) -> Callable[[], Any]:
        def run() -> Any:
            given = _unknown() * 1e-9
            kernel = tf.random.stateless_normal([KERNEL, KERNEL, CHANNELS, CHANNELS], seed=[0, 2])
            for at in range(ROUNDS):
                if computes:
                    image = tf.random.stateless_normal([*IMAGE, CHANNELS], seed=[0, at]) + given
                    image = tf.nn.conv2d(image, kernel * 0.06, strides=1, padding="SAME")
                    given = image[0, 0, 0, 0] * 1e-9
                if sends:
                    given = message(given)
            return given

        return run

    both, computing, alone = (
        _median(_call(steps(computes=computes, sends=sends), backend.run), backend)
        for computes, sends in ((True, True), (True, False), (False, True))
    )
    return max(alone, both - computing) / ROUNDS


def _call(step: Callable[[], Any], run: Callable[..., Any]) -> Callable[[], Any]:
    import tensorflow as tf

    return tf.function(lambda: run(step), autograph=False)


def _median(call: Callable[[], Any], backend: Any) -> float:
    import tensorflow as tf

    taken = []
    for _ in range(CALLS + 1):
        backend.sum(_nothing())
        since = time.perf_counter()
        tf.nest.map_structure(lambda one: one.numpy().ravel()[:1], call())
        taken.append(time.perf_counter() - since)
    return statistics.median(taken[1:])


def layers(run: str, samples: list[int]) -> dict[str, Any]:
    """Return what the layers of a run's network take, for each number of samples, and a core that
    prepares a sample."""
    from tfunet.arguments import parse
    from tfunet.plan.gather import measured_layers, measured_sample_seconds

    config = parse(["--config", run])
    return {
        "tables": measured_layers(config, samples),
        "sample_seconds": measured_sample_seconds(config),
    }


if __name__ == "__main__":
    main()
