"""Times the host's update of weights and states that are off the device, and prints it as JSON.

    python benchmarks/state.py '{"million_parameters": 32, "optimizer": "adam", "cores": 2}'

Three ways take turns, in an order that is drawn anew for each round: "copy", a memory copy that
reads and writes as many bytes as the update must (gradient, weight and states read once, weight and
states written once: 28 bytes a parameter with Adam, 20 with SGD with momentum), by NumPy on as many
threads as there are cores; "keras", Keras's own update in one tf.function; and "host", the update
of `tfunet.state`, with the gradient's way into its row. First two steps of both prove that they
give the same bits. "host_bytes" are what the host keeps.

With {"what": "step"}, the ways are a step of a network of 2.4 million parameters with all on the
device, and with what leaves it ("optimizer" and "cores" are used, too), after two steps of each
gave the same bits.

With "processes" each process has "cores" cores of its own, and all take the same way at once: the
seconds are those of the slowest.
"""

import contextlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from tfunet.inside.of_optimizers import applying_by
from tfunet.state.home import send_home
from tfunet.state.slots import slots_of
from tfunet.state.update import HostUpdate
from tfunet.swap import LargeModelSupport
from tfunet.swap.storage.rows import Rows

DEFAULTS = {
    "what": "update",
    "million_parameters": 32,
    "optimizer": "adam",
    "cores": 1,
    "processes": 1,
    "rounds": 7,
}
# A process waits so long for the others.
MEET_SECONDS = 300
# The update of a layer is that of several variables.
NUM_VARIABLES = 4
# Channels of the network whose step is timed.
WIDTH = 256
KEPT = contextlib.ExitStack()
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "sgd": lambda: keras.optimizers.SGD(1e-3, momentum=0.9),
}
# Numbers of a parameter that an update must read, and write.
TOUCHED = {"adam": (4, 3), "sgd": (3, 2)}


def drawn_arrays(million_parameters):
    """Return gradients, or weights."""
    draw = np.random.default_rng(0)
    size = million_parameters * 10**6 // NUM_VARIABLES
    return [draw.normal(size=size).astype("float32") / 100 for _ in range(NUM_VARIABLES)]


class Keras:
    """An optimizer's own update."""

    def __init__(self, optimizer, arrays):
        self.variables = [keras.Variable(array, name="weight") for array in arrays]
        self.optimizer = OPTIMIZERS[optimizer]()
        self.optimizer.build(self.variables)

    def traced(self, gradients):
        return tf.function(lambda: self.optimizer.apply(gradients), autograph=False)

    def numbers(self):
        return [variable.numpy() for variable in (*self.variables, *self.optimizer.variables)]


class Host(Keras):
    """The same with weights and states in host memory."""

    def __init__(self, optimizer, arrays):
        super().__init__(optimizer, arrays)
        self.rows = Rows()
        for variable in self.variables:
            send_home(variable, self.rows)
        for slot in (slot for slots in slots_of(self.optimizer) for slot in slots):
            send_home(slot, self.rows)
        self.update = HostUpdate(self.optimizer, self.rows)

    def traced(self, gradients):
        step = super().traced(gradients)
        with applying_by(self.optimizer, self.update.apply):
            step()
        return step


def copying(num_bytes, cores):
    """Return a function that reads and writes so many bytes together, half of them each."""
    source, target = (np.ones(num_bytes // 2, np.uint8) for _ in range(2))
    parts = [
        slice(at * len(source) // cores, (at + 1) * len(source) // cores) for at in range(cores)
    ]
    pool = ThreadPoolExecutor(cores)
    return lambda: list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))


def update_ways(settings):
    """Return what is timed, by name, and more to print; RuntimeError if bits differ."""
    name, millions = settings["optimizer"], settings["million_parameters"]
    gradients = [tf.constant(array) for array in drawn_arrays(millions)]
    own, host = (kind(name, drawn_arrays(millions)) for kind in (Keras, Host))
    steps = {"keras": own.traced(gradients), "host": host.traced(gradients)}
    for _ in range(2):
        steps["keras"]()
    steps["host"]()  # Tracing it took the first step.
    same = zip(own.numbers(), host.numbers(), strict=True)
    if not all(np.array_equal(one, other) for one, other in same):
        raise RuntimeError("The update of the host differs from Keras's own.")
    width = 4 * sum(TOUCHED[name])
    copy = copying(width * millions * 10**6, settings["cores"])
    more = {"bytes_of_a_parameter": width, "host_bytes": host.rows.host_used}
    return {"copy": copy, **steps}, more


def step_ways(settings):
    """Return the step of a network with all on the device, and with what leaves, by name."""
    draw = np.random.default_rng(0)
    images = draw.normal(size=(2, 32, 32, WIDTH)).astype("float32")
    truth = draw.normal(size=(2, 32, 32, 1)).astype("float32")
    largest = 4 * 9 * WIDTH * (WIDTH + 4)
    away = {
        "nothing": {"weights": "none"},
        "a quarter of the states": {"weights": "state", "threshold_bytes": largest},
        "states": {"weights": "state"},
        "weights, too": {"weights": "weights"},
    }
    models, steps = {}, {}
    for name, options in away.items():
        keras.utils.set_random_seed(1)
        # Four layers, one slightly larger than the others.
        wider = keras.layers.Conv2D(WIDTH + 4, 3, padding="same", activation="relu")
        others = [keras.layers.Conv2D(WIDTH, 3, padding="same") for _ in range(3)]
        last = keras.layers.Conv2D(1, 1)
        model = keras.Sequential([keras.Input((32, 32, WIDTH)), *others, wider, last])
        model.compile(OPTIMIZERS[settings["optimizer"]](), "mse")
        # Held until the process ends.
        support = LargeModelSupport("8GiB", verbose=0, **options)
        KEPT.enter_context(support.on(model))
        models[name] = model
        steps[name] = partial(model.train_on_batch, images, truth)
        for _ in range(2):
            steps[name]()
    first, *rest = [model.get_weights() for model in models.values()]
    for other in rest:
        if not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True)):
            raise RuntimeError("The weights of a network with states away differ.")
    return steps, {"parameters": models["nothing"].count_params()}


# By what is measured: a function of the settings that returns the ways, and more to print.
WAYS_OF = {"update": update_ways, "step": step_ways}


def share_start(meet):
    """Have the measurements of a process begin with those of others."""
    measure.meet = meet


def measure(settings, number):
    """Return the seconds of each way, in one of several processes that meet before each."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[number * settings["cores"] :][: settings["cores"]])
    tf.config.threading.set_intra_op_parallelism_threads(settings["cores"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["cores"])
    ways, more = WAYS_OF[settings["what"]](settings)
    drawn, seconds = random.Random(0), {name: [] for name in ways}
    for _ in range(settings["rounds"]):
        for name in drawn.sample(list(ways), len(ways)):
            measure.meet.wait(MEET_SECONDS)
            since = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - since)
    return seconds, more


def main(settings):
    settings = {**DEFAULTS, **settings}
    num_processes = settings["processes"]
    new = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, new, share_start, [new.Barrier(num_processes)]) as pool:
        found = list(pool.map(measure, [settings] * num_processes, range(num_processes)))
    seconds, more = found[0]
    slowest = {
        name: [max(each) for each in zip(*(one[name] for one, _ in found), strict=True)]
        for name in seconds
    }
    medians = {name: statistics.median(each) for name, each in slowest.items()}
    baseline = next(iter(medians.values()))
    result = {
        **settings,
        **more,
        "seconds": slowest,
        "median_seconds": medians,
        "times_the_first": {name: median / baseline for name, median in medians.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {})
