"""A run of round numbers to plan: four layers of 1 ms a sample and pass, 1 MiB of weights each."""

import keras

from tfunet.config.amount import GIB, MIB
from tfunet.performance.devices import Device
from tfunet.pipeline.chain import Chain, ChainLayer, Variable
from tfunet.pipeline.network import read_network
from tfunet.plan.facts import Border, RunFacts, Update
from tfunet.plan.machine import Interconnect, Machine

LAYERS = 4
# A link of 1 GB/s within a host, 0.5 GB/s between hosts, of which messages get 80 %.
DEVICE = Device(GIB, 1e12, 1e12, 1e11, 1e9, "a test")
NETWORK = Interconnect(0.5e9, 0.0, "a test")


def chain_of(samples, *, seconds=1e-3, kept_bytes=10 * MIB, layers=LAYERS):
    """Return the costs of so many samples: a third of the time is the forward pass."""
    return Chain(
        layers=tuple(
            ChainLayer(
                name=f"layer{at}",
                forward_seconds=samples * seconds / 3,
                backward_seconds=samples * seconds * 2 / 3,
                reads=(at,),
                makes=(at + 1,),
                keeps=frozenset([at]),
                kept_bytes=samples * kept_bytes,
                variables={at: Variable(MIB // 4, MIB)},
            )
            for at in range(layers)
        ),
        tensor_bytes=[samples * MIB] * (layers + 1),
        inputs=frozenset([0]),
    )


def graph():
    """Return the layers of a network with as many."""
    inputs = keras.Input((64, 64, 1))
    tensor = inputs
    for _ in range(LAYERS):
        tensor = keras.layers.Conv2D(1, 3, padding="same")(tensor)
    return read_network(keras.Model(inputs, tensor))


def facts(**changes):
    """Return what is known of a run of 8 samples a step and 80 an epoch."""
    border = Border(num_bytes=MIB, rows=(2, 2), extents=(64, 64))
    return RunFacts(
        **{
            "model": "four",
            "patch": (64, 64),
            "tiled_patch": (64, 64),
            "sample_bytes": 1000,
            "num_samples": 80,
            "global_samples": 8,
            "costs": {0: [(1, chain_of(1)), (8, chain_of(8))]},
            "update": Update(slots=2, seconds=1e-3),
            "borders": tuple(Border(**{**vars(border), "layer": layer}) for layer in range(LAYERS)),
            "halo": (4, 4),
            "alignment": (4, 4),
            **changes,
        }
    )


def machine(**changes):
    """Return a host with four devices of 1 GiB."""
    return Machine(
        **{
            "name": "a test",
            "device": DEVICE,
            "devices": 4,
            "memory_bytes": GIB,
            "across": NETWORK,
            **changes,
        }
    )
