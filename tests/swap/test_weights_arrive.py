"""When weights that are off the device come to it: no earlier than the one before is done with."""

import keras
import numpy as np
import pytest

from tfunet.graph.step import WEIGHT_ARRIVES
from tfunet.swap import LargeModelSupport, planning

LAYERS = 4


@pytest.fixture
def graphs(monkeypatch):
    """The graph of each step that was made to follow a plan."""
    followed = []
    follow = planning.follow

    def noted(plan, trace, ops, *args):
        follow(plan, trace, ops, *args)
        followed.append(ops[0].graph)

    monkeypatch.setattr(planning, "follow", noted)
    return followed


def network(activation):
    """Return a model whose filters are large, and whose activations are not."""
    keras.utils.set_random_seed(1)
    image = value = keras.Input((4, 4, 16))
    for _ in range(LAYERS):
        value = keras.layers.Conv2D(16, 3, padding="same", activation=activation)(value)
    model = keras.Model(image, value)
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    return model


def before(op):
    """Return the ops that have run when an op begins."""
    found, left = set(), [op]
    while left:
        at = left.pop()
        for earlier in (*at.control_inputs, *(tensor.op for tensor in at.inputs)):
            if earlier not in found:
                found.add(earlier)
                left.append(earlier)
    return found


def assert_one_after_another(graph):
    ops = graph.get_operations()
    convolutions = [op for op in ops if op.type == "Conv2D"]
    arrivals = [op.inputs[1].op for op in convolutions]
    assert len(arrivals) == LAYERS
    assert all(WEIGHT_ARRIVES in op.name for op in arrivals)
    for convolution, arrival in zip(convolutions, arrivals[1:], strict=False):
        assert convolution in before(arrival)


@pytest.mark.parametrize("activation", ["relu", None])
def test_weight_comes_when_the_layer_before_is_done(graphs, activation):
    model = network(activation)
    image = np.zeros((2, 4, 4, 16), np.float32)
    support = LargeModelSupport("8GiB", weights="weights", threshold_bytes=8192, verbose=0)
    model.fit(image, image, verbose=0, validation_data=(image, image), callbacks=[support])
    model.evaluate(image, image, verbose=0, callbacks=[support])  # After training.
    model.predict(image, verbose=0, callbacks=[support])
    training, *forward = graphs
    assert len(forward) == 3
    for graph in (training, *forward):
        assert_one_after_another(graph)
