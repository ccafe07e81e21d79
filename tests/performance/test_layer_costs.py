"""What layers cost alone, against what the project knows of whole steps."""

import math
from dataclasses import replace

import keras
import pytest
import tensorflow as tf

from tfunet.graph import reader
from tfunet.models.activation_memory import activation_bytes
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.performance.devices import DEVICES, described
from tfunet.performance.layer_costs import layer_costs, symbolic_model
from tfunet.pipeline.network import read_network
from tfunet.pipeline.part_network import part_network
from tfunet.swap.plan.schedule import memory, schedule

DEVICE = DEVICES["v100-nvlink2"]


@pytest.fixture(scope="module", params=["unet", "isensee"])
def known(request):
    """A network of our own: model, costs for two samples, and the trace of a whole step."""
    options = {"levels": 3} if request.param == "unet" else {"depth": 4}
    options["filters"] = 8
    model = symbolic_model(request.param, image_shape=(64, 64, 3), num_classes=2, options=options)
    chain = layer_costs(read_network(model), 2, DEVICE)
    with tf.Graph().as_default() as graph:
        holders = [
            (variable, tf.compat.v1.placeholder(variable.dtype, variable.shape))
            for variable in model.variables
        ]
        image = tf.compat.v1.placeholder(tf.float32, (2, 64, 64, 3))
        with keras.StatelessScope(holders, initialize_variables=False), tf.GradientTape() as tape:
            trained = [
                holder
                for variable, holder in holders
                if any(variable is v for v in model.trainable_variables)
            ]
            tape.watch(trained)
            logits = model(image, training=True)
        given = tf.compat.v1.placeholder(logits.dtype, logits.shape)
        gradients = tape.gradient(logits, trained, output_gradients=given)
        results = [logits, *gradients]
        trace, _ = reader.read(reader.in_order(graph.get_operations(), results), results)
    return model, chain, trace


def test_layers_keep_what_the_model_keeps(known):
    model, chain, _ = known
    whole = chain.stage(0, len(chain.layers))
    # The last layer's logits are for the loss, which is no layer.
    logits = 2 * math.prod(model.output.shape[1:]) * 4
    kept = whole.kept_bytes + logits
    assert kept == pytest.approx(activation_bytes(model, batch=2), rel=0.03)


def test_memory_of_the_whole_network_is_that_of_a_step(known):
    _, chain, trace = known
    whole = chain.stage(0, len(chain.layers))
    step_bytes = int(memory(trace, schedule(trace, {})).max())
    assert whole.kept_bytes + whole.working_bytes == pytest.approx(step_bytes, rel=0.06)


def test_times_of_layers_add_up_to_that_of_a_step(known):
    _, chain, trace = known
    assert chain.seconds == pytest.approx(sum(described(trace, DEVICE).op_seconds), rel=0.05)


def test_parameters_are_those_of_the_model(known):
    model, chain, _ = known
    counted = chain.stage(0, len(chain.layers)).num_parameters
    assert counted == sum(math.prod(weight.shape) for weight in model.weights)
    halves = chain.stages([0, len(chain.layers) // 2, len(chain.layers)])
    assert sum(half.num_parameters for half in halves) == counted


def test_layers_alike_cost_the_same_and_are_their_own():
    image = keras.Input((16, 16, 4))
    x, convolutions = image, []
    for _ in range(3):
        convolutions.append(keras.layers.Conv2D(4, 3, padding="same"))
        x = convolutions[-1](x)
    network = read_network(keras.Model(image, keras.layers.Conv2D(4, 3)(x)))
    first, second, third, last = layer_costs(network, 2, DEVICE).layers
    # Nobody asks for the gradient of the image.
    assert first.seconds < second.seconds == third.seconds
    assert last.seconds != third.seconds
    assert [one.name for one in (second, third)] == [one.name for one in convolutions[1:]]
    assert (second.reads, third.reads) == (first.makes, second.makes)
    assert third.keeps == frozenset(second.makes)
    assert third.variables.keys() == {id(variable) for variable in convolutions[2].variables}


@pytest.mark.parametrize("convolution", [keras.layers.Conv2D, keras.layers.Conv3D])
def test_a_convolution_with_a_bias_takes_both_passes(convolution):
    rank = 2 if convolution is keras.layers.Conv2D else 3
    image = keras.Input((*(32,) * rank, 64))
    x = image
    for bias in (True, True, False):
        x = convolution(64, 3, padding="same", use_bias=bias)(x)
    network = read_network(keras.Model(image, x))
    _, biased, plain = layer_costs(network, 4, DEVICE).layers
    assert plain.forward_seconds < biased.forward_seconds < 1.3 * plain.forward_seconds


@pytest.mark.parametrize(
    ("options", "precision", "is_shorter"),
    [
        ({}, "float32", True),
        ({"strides": 2}, "float32", False),
        ({"kernel_size": 5}, "float32", False),
        # Tensor cores multiply halves.
        ({}, "mixed_float16", False),
    ],
)
def test_convolutions_of_3_x_3_take_fewer_products_where_cudnn_knows_how(
    options, precision, is_shorter
):
    settings = {"filters": 512, "kernel_size": 3, "padding": "same", "dtype": precision, **options}
    image = keras.Input((64, 64, 512))
    middle = keras.layers.Conv2D(512, 1, name="middle", dtype=precision)(image)
    network = read_network(keras.Model(image, keras.layers.Conv2D(**settings)(middle)))
    with_it, without = (
        layer_costs(network, 8, replace(DEVICE, has_short_way=has_it)).layers
        for has_it in (True, False)
    )
    assert with_it[0].seconds == without[0].seconds
    saved = without[1].seconds / with_it[1].seconds
    # The rest moves bytes.
    assert saved == pytest.approx(2.2, abs=0.1) if is_shorter else saved == 1


def test_what_layers_cost_here_is_measured():
    keras.utils.set_random_seed(0)
    image = keras.Input((64, 64, 4))
    wide = keras.layers.Conv2D(64, 5, padding="same", name="wide")(image)
    narrow = keras.layers.Conv2D(1, 1, name="narrow")(wide)
    network = read_network(keras.Model(image, narrow))
    chain = layer_costs(network, 2, None)
    by_name = {layer.name: layer for layer in chain.layers}
    assert by_name["wide"].seconds > by_name["narrow"].seconds > 0
    assert by_name["wide"].backward_seconds > 0
    # Nobody needs the gradient of the image, so the first layer's is that of its weights alone.
    assert chain.layers[0].keeps == frozenset(network.inputs)


def test_the_loss_is_a_part_of_the_last_layer():
    image = keras.Input((16, 16, 1))
    network = read_network(keras.Model(image, keras.layers.Conv2D(3, 1)(image)))

    def loss(output):
        return tf.reduce_mean(tf.nn.softmax(output) ** 2)

    (alone,) = layer_costs(network, 2, DEVICE).layers
    (both,) = layer_costs(network, 2, DEVICE, loss).layers
    assert both.seconds > alone.seconds
    # The gradient of the loss reads the probabilities.
    assert both.kept_bytes - alone.kept_bytes == 2 * 16 * 16 * 3 * 4


def test_layers_of_a_part_cost_what_the_part_takes():
    image = keras.Input((32, 16, 3))
    x = keras.layers.GroupNormalization(2)(keras.layers.Conv2D(4, 3, padding="same")(image))
    model = keras.Model(image, keras.layers.Conv2D(2, 3, padding="same")(x))
    network = read_network(model)
    switch = ExchangeSwitch(lambda *_: {})
    group = SampleGroup(mesh=Mesh(split=(2, 1), stages=2), device=0, exchange=switch)
    bounds = part_bounds((32, 16), group.mesh.split)
    split = SplitNetwork(model=model, mesh=group.mesh, bounds=bounds, group=lambda: group)
    whole = layer_costs(network, 2, DEVICE)
    of_part = part_network(network, split, switch, (16, 16, 3))
    with switch.off():
        part = layer_costs(of_part, 2, DEVICE)
    assert list(part.tensor_bytes) == [size / 2 for size in whole.tensor_bytes]
    for own, all_ in zip(part.layers, whole.layers, strict=True):
        assert own.forward_seconds > 0 < own.backward_seconds
        assert own.variables == all_.variables
        assert own.makes == all_.makes


def test_sizes_must_be_known():
    image = keras.Input((None, None, 1))
    model = keras.Model(image, keras.layers.Conv2D(1, 3, padding="same")(image))
    with pytest.raises(ValueError, match="Give the model the size of the image"):
        layer_costs(read_network(model), 1, DEVICE)
