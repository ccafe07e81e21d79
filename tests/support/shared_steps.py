"""Steps of small models on devices of one process, with the states shared out or not.

python shared_steps.py DEVICES [CASE]    prints how far weights and states differ, case by case
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers

from tf_native.mirrored import MirroredBackend
from tfunet.backend import Launch
from tfunet.learning.averaging import Averaging, Switch
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.mesh import Mesh
from tfunet.state.shared import SharedState, SharedUpdates
from tfunet.state.shared_slot import on_devices, with_slots
from tfunet.state.slots import granularity
from tfunet.training.traced_device import names_of_devices, traced_device

STEPS = 5


class Trained:
    """A model whose step applies optimizers, on devices.

    Args:
        make: Returns a model and the pairs of an optimizer and the variables that it trains.
    """

    def __init__(self, backend, make, zero, accumulation=1):
        self.backend, self.states = backend, []
        with backend.scope():
            keras.utils.set_random_seed(1)
            self.model, self.pairs = make()
            for optimizer, variables in self.pairs:
                if zero:
                    self.states.append(SharedState(optimizer, variables, backend.sum))
                    self.states[-1].build()
                else:
                    optimizer.build(variables)
        average = Switch(backend.average)
        for state in self.states:
            by_element = granularity(state.inner) == "element"
            names = names_of_devices(backend)
            state.place(range(backend._launch.num_replicas), names, by_element=by_element)
        mesh = Mesh(groups=backend._launch.num_replicas)
        updates = SharedUpdates(
            self.states,
            gradients=zero == 2,
            average=average,
            device=traced_device,
            swap=SampleGroup(mesh=mesh, device=0, exchange=backend.exchange).swap,
        )
        self.averaging = Averaging(
            average=average, accumulation=accumulation, shared=updates if zero else None
        )
        self.step = tf.function(self._step, autograph=False)

    def _step(self, images, truth):
        def replica(images, truth):
            for _ in range(self.averaging.accumulation):
                self.model.train_step((images, truth))
            return tf.zeros(())

        with self.averaging.traced():
            return self.backend.run(replica, images, truth)

    def steps(self, images, truth, count=STEPS):
        """Return the weights on each device, and the states, after some steps."""
        shares = [
            np.array_split(each, self.backend._launch.num_replicas, axis=1)
            for each in (images, truth)
        ]
        for number in range(count):
            self.step(*(tf.stack([share[number] for share in of_devices]) for of_devices in shares))
        weights = [
            [np.array(each) for each in self.backend._strategy.experimental_local_results(v.value)]
            for v in self.model.variables
        ]
        states = with_slots([each for optimizer, _ in self.pairs for each in optimizer.variables])
        return weights, [
            each.whole() if hasattr(each, "whole") else np.array(each.value) for each in states
        ]

    def state_bytes(self):
        """Return the bytes of the states on each device."""
        names = [f"CPU:{index}" for index in range(self.backend._launch.num_replicas)]
        held = dict.fromkeys(names, 0)
        for each in on_devices([v for optimizer, _ in self.pairs for v in optimizer.variables]):
            value = getattr(each, "value", each)
            value = value() if callable(value) else value
            for one in self.backend._strategy.experimental_local_results(value):
                held[":".join(one.device.split(":")[-2:])] += (
                    one.dtype.size * one.shape.num_elements()
                )
        return list(held.values())


def compiled(model, optimizer):
    model.compile(optimizer, "mse")
    return model, [(model.optimizer, model.trainable_variables)]


def dense(make_optimizer, **options):
    def make():
        layers = [keras.layers.Dense(37, "tanh", **options), keras.layers.Dense(11, "tanh")]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(4)])
        return compiled(model, make_optimizer())

    return make


OPTIMIZERS = {
    "SGD": lambda **o: optimizers.SGD(0.1, **o),
    "momentum": lambda **o: optimizers.SGD(0.1, momentum=0.9, nesterov=True, **o),
    "RMSprop": lambda **o: optimizers.RMSprop(0.01, momentum=0.5, **o),
    "centered": lambda **o: optimizers.RMSprop(0.01, centered=True, **o),
    "Adam": lambda **o: optimizers.Adam(0.01, **o),
    "amsgrad": lambda **o: optimizers.Adam(0.01, amsgrad=True, **o),
    "AdamW": lambda **o: optimizers.AdamW(0.01, **o),
    "Adadelta": lambda **o: optimizers.Adadelta(1.0, **o),
    "Adagrad": lambda **o: optimizers.Adagrad(0.05, **o),
    "Adamax": lambda **o: optimizers.Adamax(0.01, **o),
    "Nadam": lambda **o: optimizers.Nadam(0.01, **o),
    "Ftrl": lambda **o: optimizers.Ftrl(0.05, **o),
    "Lion": lambda **o: optimizers.Lion(0.005, **o),
    "Lamb": lambda **o: optimizers.Lamb(0.01, **o),
    "Muon": lambda **o: optimizers.Muon(0.01, **o),
    "Adafactor": lambda **o: optimizers.Adafactor(0.01, **o),
    "ScheduleFree": lambda **o: optimizers.ScheduleFreeAdamW(0.01, **o),
}
OPTIONS = {
    "": {},
    "decay, ema": {"weight_decay": 0.01, "use_ema": True, "ema_momentum": 0.9},
    "clipvalue": {"clipvalue": 0.01},
    "clipnorm": {"clipnorm": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.05},
}


# Each way of clipping, with optimizers of each sort.
CLIPPED = ("momentum", "Adam", "Lamb")


class Own(keras.Model):
    """A train_step of its own, which keeps the outputs small."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            output = self(x, training=True)
            loss = self.compute_loss(x, y, output) + 1e-3 * tf.reduce_mean(output**2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Adversarial(keras.Model):
    """A network and its adversary, with an optimizer each."""

    def __init__(self, second):
        super().__init__()
        self.network = keras.Sequential([keras.Input((6,)), keras.layers.Dense(40), dense_out(4)])
        self.adversary = keras.Sequential([keras.Input((4,)), keras.layers.Dense(30), dense_out(1)])
        self.second = second

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            made = self.network(x)
            judged = self.adversary(made)
            loss = tf.reduce_mean((made - y) ** 2) + 0.1 * tf.reduce_mean(judged**2)
            other = tf.reduce_mean((judged - 1) ** 2) + tf.reduce_mean(self.adversary(y) ** 2)
        for optimizer, value, network in (
            (self.optimizer, loss, self.network),
            (self.second, other, self.adversary),
        ):
            weights = network.trainable_variables
            optimizer.apply(tape.gradient(value, weights), weights)
        return {"loss": loss}


def dense_out(units):
    return keras.layers.Dense(units)


def own():
    image = keras.Input((6,))
    x = keras.layers.Dense(29, "tanh")(image)
    return compiled(Own(image, keras.layers.Dense(4)(x)), optimizers.Adam(0.01))


def adversarial():
    model = Adversarial(optimizers.SGD(0.05, momentum=0.5))
    model.compile(optimizers.Adam(0.01), "mse")
    return model, [
        (model.optimizer, model.network.trainable_variables),
        (model.second, model.adversary.trainable_variables),
    ]


def shared_layers():
    image = keras.Input((6,))
    layer = keras.layers.Dense(6, "tanh")
    return compiled(
        keras.Model(image, keras.layers.Dense(4)(layer(layer(layer(image))))), optimizers.Adam(0.01)
    )


def volumes():
    image = keras.Input((6, 6, 6, 1))
    x = keras.layers.Conv3D(5, 3, padding="same", activation="relu")(image)
    x = keras.layers.BatchNormalization(synchronized=True)(x)
    return compiled(keras.Model(image, keras.layers.Conv3D(2, 1)(x)), optimizers.Adam(0.01))


def frozen():
    model, _ = dense(lambda: optimizers.AdamW(0.01, use_ema=True))()
    pairs = [(model.optimizer, model.trainable_variables)]
    model.layers[0].trainable = False  # After the optimizer's variables were chosen.
    return model, pairs


def mixed(policy):
    def make():
        keras.config.set_dtype_policy(policy)
        try:
            # The first steps overflow on one device, and are left out.
            return compiled(
                dense(lambda: optimizers.Adam(0.01))()[0],
                optimizers.LossScaleOptimizer(
                    optimizers.Adam(0.01, clipnorm=0.05), initial_scale=2.0**20
                )
                if policy == "mixed_float16"
                else optimizers.Adam(0.01),
            )
        finally:
            keras.config.set_dtype_policy("float32")

    return make


KINDS = {
    "own train_step": own,
    "two optimizers": adversarial,
    "shared layers": shared_layers,
    "3D": volumes,
    "frozen": frozen,
    "mixed_float16": mixed("mixed_float16"),
    "mixed_bfloat16": mixed("mixed_bfloat16"),
    "regularizer": dense(lambda: optimizers.SGD(0.1, momentum=0.9), kernel_regularizer="l2"),
    "constraint": dense(
        lambda: optimizers.Adam(0.01), kernel_constraint=keras.constraints.MaxNorm(0.5)
    ),
    "loss scale": dense(lambda: optimizers.Adam(0.01, loss_scale_factor=8.0, clipvalue=0.1)),
    "accumulated": dense(lambda: optimizers.Adam(0.01)),
}
SHAPES = {"3D": ((6, 6, 6, 1), (6, 6, 6, 2))}


def data(shape, truth, batch=6, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(STEPS, batch, *shape)).astype("float32"),
        rng.normal(size=(STEPS, batch, *truth)).astype("float32"),
    )


def distance(one, other):
    return max(
        [
            float(np.max(np.abs(a.astype("f8") - b), initial=0))
            for a, b in zip(one, other, strict=True)
        ]
        or [0.0]
    )


def compared(backend, make, images, truth, zeros=(1, 2), **options):
    """Return for each `zero` the largest differences of weights, of devices and of states."""
    weights, states = Trained(backend, make, 0, **options).steps(images, truth)
    found = {}
    for zero in zeros:
        trained = Trained(backend, make, zero, **options)
        own_weights, own_states = trained.steps(images, truth)
        found[zero] = {
            "weights": distance([each[0] for each in weights], [each[0] for each in own_weights]),
            "devices": max(distance([each[0]] * len(each), each) for each in own_weights),
            "states": distance(states, own_states),
            "bytes": trained.state_bytes(),
        }
    return found


def cases(chosen):
    """Yield a name, an option, what makes the model, options of training, and values of `zero`."""
    for name, optimizer in OPTIMIZERS.items():
        is_clipped = name in CLIPPED
        for option, options in OPTIONS.items():
            if chosen in f"{name}, {option}" and (is_clipped or option == "decay, ema"):
                make = dense(lambda o=optimizer, p=options: o(**p))
                yield name, option, make, {"zeros": (1, 2) if is_clipped else (1,)}
    for kind, make in KINDS.items():
        if chosen in kind:
            yield kind, "kind", make, {"accumulation": 2} if kind == "accumulated" else {}


def main(num_devices, chosen=""):
    backend = MirroredBackend(Launch(num_replicas=int(num_devices)))
    backend.start()
    for name, option, make, options in cases(chosen):
        given = data(*SHAPES.get(name, ((6,), (4,))))
        found = compared(backend, make, *given, **options)
        print(json.dumps([name, option, found]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
