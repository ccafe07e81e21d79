"""The predicted memory of each device, for a chain whose numbers can be added up by hand."""

import pytest

from tfunet.pipeline.chain import Chain, ChainLayer, Variable
from tfunet.pipeline.rounds import ChunkTraffic, rounds
from tfunet.pipeline.schedules import homes, waiting
from tfunet.pipeline.simulation import training_orders
from tfunet.pipeline.stage_memory import stage_memory

# Four layers; each keeps 100 bytes, needs 10 more in its backward pass, and makes a tensor of 7.
LAYERS = tuple(
    ChainLayer(
        name=f"layer{at}",
        reads=(at,),
        makes=(at + 1,),
        kept_bytes=100,
        working_bytes=10 if at == 3 else 0,
        variables={at: Variable(1, 1000 * (at + 1))},
    )
    for at in range(4)
)
CHAIN = Chain(layers=LAYERS, tensor_bytes=[50, 7, 7, 7, 7], inputs=frozenset([0]), copies=2)


def predicted(schedule, num_devices, micro_batches, *, recompute=False):
    devices = homes(schedule, num_devices)
    cuts = [at * 4 // len(devices) for at in range(len(devices) + 1)]
    borders = [(at, cuts[at + 1]) for at in range(len(devices) - 1)]
    traffic = ChunkTraffic(
        makers={tensor: chunk for chunk, tensor in borders},
        readers={tensor: [chunk + 1] for chunk, tensor in borders},
        trained={tensor for _, tensor in borders},
    )
    orders = training_orders(schedule, num_devices, micro_batches, traffic.crossing)
    return stage_memory(
        CHAIN,
        cuts,
        rounds(orders, traffic, devices),
        traffic=traffic,
        homes=devices,
        recomputed=waiting(orders) if recompute else {},
        batch_bytes=5,
    )


# Weights twice and the batch: 2 * 3000 + 5 and 2 * 7000 + 5. An exchange takes 3 * 7.
@pytest.mark.parametrize(
    ("schedule", "micro_batches", "recompute", "steps"),
    [
        # All micro-batches are kept. The first stage takes most when it sends the last of them, the
        # last stage in its first backward pass.
        ("gpipe", 3, False, [3 * 200 + 21, 3 * 200 + 10]),
        # Two are kept by the first stage when it sends the second, one by the last.
        ("1f1b", 3, False, [2 * 200 + 21, 200 + 21]),
        # The input of the network is a view of the batch. A stage at work has one micro-batch: the
        # first has its gradient too, the last what it is given of two others.
        ("gpipe", 3, True, [200 + 7, 200 + 10 + 2 * 7]),
        ("1f1b", 3, True, [200 + 7, 200 + 21]),
    ],
)
def test_peaks_of_two_stages(schedule, micro_batches, recompute, steps):
    found = predicted(schedule, 2, micro_batches, recompute=recompute)
    assert found == [2 * 3000 + 5 + steps[0], 2 * 7000 + 5 + steps[1]]


def test_a_device_with_two_chunks_has_the_weights_and_micro_batches_of_both():
    outer, inner = predicted("v", 2, 1)
    assert outer == 2 * (1000 + 4000) + 5 + 2 * 100 + 10
    assert inner == 2 * (2000 + 3000) + 5 + 2 * 100 + 21
