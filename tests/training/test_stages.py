"""What a process keeps of a model in stages, and which models are refused."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfunet.backend import Launch, Topology
from tfunet.config.run import RunConfig
from tfunet.exit_codes import CheckFailedError
from tfunet.parallel.mesh import Mesh
from tfunet.pipeline.chain import Chain, ChainLayer
from tfunet.pipeline.network import read_network
from tfunet.pipeline.own_stage import OwnStage
from tfunet.record import MODEL, RunFolder
from tfunet.single_device import SingleDevice
from tfunet.training import saving
from tfunet.training.checks import make_fingerprint
from tfunet.training.held import EveryVariable
from tfunet.training.own_variables import build_optimizer, keep_own, num_slots, own_variables
from tfunet.training.stage_cut import (
    best_balance,
    check_graph,
    check_own_methods,
    check_swap,
    fitting_balance,
    named_cuts,
)
from tfunet.training.stage_log import batch_norm_of
from tfunet.training.stage_variables import StageVariable, StageVariables
from tfunet.training.staged_network import clips

# Far more than a loaded machine takes. Two that wait for each other for ever are found later.
SECONDS = 400


def small():
    image = keras.Input((8, 8, 1))
    x = layers.Conv2D(2, 3, name="first")(image)
    x = layers.BatchNormalization(name="norm")(x)
    return keras.Model(image, layers.Conv2D(2, 1, name="last")(x))


def owned(model, stage, begins="last"):
    """Keep a stage of a model that is cut before its last layer."""
    owners = {id(variable): int(begins in variable.path) for variable in model.variables}
    keep_own(model.variables, owners, stage)
    return owners


# With slots that come variable by variable, kind by kind, and one that belongs to none.
@pytest.mark.parametrize("name", ["SGD", "Adam", "Nadam", "RMSprop", "Lion", "Lamb", "Ftrl"])
def test_states_of_an_optimizer_are_shared_out_in_the_order_of_one_device(name):
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    whole = small()
    expected = getattr(keras.optimizers, name)(0.1, **options)
    expected.build(whole.trainable_variables)
    shapes = [tuple(variable.shape) for variable in expected.variables]
    for stage in (0, 1):
        model = small()
        owners = owned(model, stage)
        optimizer = getattr(keras.optimizers, name)(0.1, **options)
        entries, _ = build_optimizer(optimizer, model.trainable_variables, owners, stage)
        assert [entry.shape for entry in entries] == shapes
        assert {entry.stage for entry in entries} == {None, 0, 1}
        for entry in entries:
            is_own = entry.stage in (None, stage)
            assert tuple(entry.variable.shape) == (entry.shape if is_own else ())


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (keras.optimizers.SGD(0.1), 0),
        (keras.optimizers.SGD(0.1, momentum=0.9), 1),
        (keras.optimizers.Adam(0.1), 2),
        (keras.optimizers.Nadam(0.1), 2),
        (keras.optimizers.Lion(0.1), 1),
    ],
)
def test_states_of_a_variable_are_counted(optimizer, slots):
    assert num_slots(optimizer) == slots


def test_an_optimizer_that_does_not_say_whose_state_it_keeps_is_refused():
    model = small()
    owners = owned(model, 0)
    with pytest.raises(ValueError, match="Adafactor keeps the state"):
        build_optimizer(keras.optimizers.Adafactor(0.1), model.trainable_variables, owners, 0)
    with pytest.raises(ValueError, match="SGD has use_ema=True, and with stages"):
        build_optimizer(keras.optimizers.SGD(use_ema=True), model.trainable_variables, owners, 0)


def test_what_another_process_holds_is_not_here():
    model = small()
    before = [weight.numpy() for weight in model.variables]
    owners = owned(model, 1)
    for variable, value in zip(model.variables, before, strict=True):
        if owners[id(variable)] == 1:
            np.testing.assert_array_equal(variable.numpy(), value)
        else:
            assert variable._value is None
    with pytest.raises(ValueError, match="'first/kernel' is held by the process of stage 1"):
        model.get_weights()


class Together:
    """The sums of processes that are threads of this one."""

    def __init__(self, count):
        self._barrier, self._given = threading.Barrier(count), [None] * count

    def run(self, function):
        """Return `function(device, backend)` of each device, in order."""
        with ThreadPoolExecutor(len(self._given)) as pool:
            running = [
                pool.submit(function, device, SimpleNamespace(sum=partial(self._sum, device)))
                for device in range(len(self._given))
            ]
            return [future.result(SECONDS) for future in running]

    def _sum(self, device, values):
        self._given[device] = values
        self._barrier.wait(SECONDS)
        total = sum(self._given)
        self._barrier.wait(SECONDS)
        return total


def held_by(device, backend, model, mesh, begins="last"):
    owners = owned(model, mesh.stage_of(device), begins)
    weights = [
        StageVariable(
            variable=variable,
            stage=owners[id(variable)],
            shape=tuple(variable.shape),
            dtype=str(variable.dtype),
            is_statistic="moving" in variable.path,
        )
        for variable in model.variables
    ]
    states, _ = build_optimizer(
        model.optimizer, model.trainable_variables, owners, mesh.stage_of(device)
    )
    return StageVariables(
        backend=backend,
        topology=Topology(
            process_index=device,
            process_count=mesh.num_devices,
            num_replicas=mesh.num_devices,
            local_replicas=range(device, device + 1),
        ),
        mesh=mesh,
        device=device,
        entries=[*weights, *states],
        num_weights=len(weights),
    )


def compiled(name="Adam"):
    keras.utils.set_random_seed(3)
    model = small()
    model.compile(optimizer=name)
    return model


def own_weights(held):
    own = held.mesh.stage_of(held.device)
    return [entry.variable for entry in held.entries[: held.num_weights] if entry.stage == own]


def fingerprints(held):
    alone = SingleDevice(Launch())
    alone.start()
    return make_fingerprint(alone, own_weights(held))().numpy()


@pytest.mark.parametrize("begins", ["last", "a layer without weights"])
def test_a_checkpoint_has_all_variables_and_their_hash_is_that_of_one_device(tmp_path, begins):
    whole = compiled()
    whole.optimizer.build(whole.trainable_variables)
    expected = [variable.numpy() for variable in (*whole.variables, *whole.optimizer.variables)]
    models = [compiled() for _ in range(2)]
    mesh = Mesh(stages=2)

    def device(number, backend):
        held = held_by(number, backend, models[number], mesh, begins)
        held.check_same()
        values = list(held.values())
        first = held.weights_hash(fingerprints(held))
        held.restore([value + 1 for value in values] if number == 0 else [])
        held.average_statistics()  # There is one pipeline.
        again = list(held.values())
        held.complete()
        return values, again, first

    (values, again, first), (no_values, _, second) = Together(2).run(device)
    assert no_values == []
    for value, weight in zip(values, expected, strict=True):
        assert value.dtype == weight.dtype
        np.testing.assert_array_equal(value, weight)
    for value, weight in zip(again, expected, strict=True):
        np.testing.assert_array_equal(value, (weight + 1).astype(weight.dtype))
    alone = SingleDevice(Launch())
    topology = alone.start()
    everything = EveryVariable(alone, topology, whole, whole.variables)
    rows = [tf.fingerprint(tf.reshape(variable.value, [1, -1]))[0] for variable in whole.variables]
    assert first == second == everything.weights_hash(tf.stack(rows).numpy()[None])
    # The chief's model is whole in the end.
    # So is its file, without the optimizer, of which it has a stage's part.
    saving.save(models[0], RunFolder(tmp_path), MODEL)
    loaded = keras.saving.load_model(tmp_path / MODEL)
    assert models[0].optimizer is not None
    for model in (models[0], loaded):
        for value, weight in zip(model.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_array_equal(value, (weight + 1).astype(weight.dtype))


# Two pipelines, or one whose samples are in two parts. Device 3 has the last stage.
@pytest.mark.parametrize(
    ("mesh", "first", "mean"),
    [(Mesh(groups=2, stages=2), 1, 1.0), (Mesh(split=(2, 1), stages=2), 2, 0.5)],
)
def test_holders_of_a_stage_share_statistics_and_are_found_where_their_weights_differ(
    mesh, first, mean
):
    models = [compiled() for _ in range(4)]

    def device(number, backend):
        held = held_by(number, backend, models[number], mesh)
        for entry in held.entries:
            if entry.is_statistic and entry.stage == mesh.stage_of(number):
                entry.variable.assign(np.full(entry.shape, number))
        held.average_statistics()
        means = [
            statistic.variable.numpy()
            for statistic in held.entries
            if statistic.is_statistic and number == 0
        ]
        same = held.weights_hash(fingerprints(held))
        if number == 3:
            own_weights(held)[-1].assign_add(np.ones(2))
        with pytest.raises(
            CheckFailedError, match=rf"'last/bias' of devices \[3\] differ from .* {first}:"
        ):
            held.weights_hash(fingerprints(held))
        held.share()
        return means, same == held.weights_hash(fingerprints(held))

    results = Together(4).run(device)
    assert all(is_same for _, is_same in results)
    for found in results[0][0]:
        np.testing.assert_array_equal(found, [mean, mean])  # The mean of the devices with stage 1.


def test_processes_with_different_variables_are_refused():
    models = [compiled("Adam"), compiled("SGD")]

    def device(number, backend):
        held = held_by(number, backend, models[number], Mesh(stages=2))
        with pytest.raises(ValueError, match="models or optimizers with different variables"):
            held.check_same()

    Together(2).run(device)


# Nadam has a state that belongs to no variable, and that a step changes.
@pytest.mark.parametrize("name", ["SGD", "Nadam"])
def test_optimizers_of_stages_in_one_process_step_like_one(name):
    whole, model = compiled(name), compiled(name)
    whole.optimizer.build(whole.trainable_variables)
    owners = {id(variable): int("last" in variable.path) for variable in model.variables}
    owned = own_variables(
        model,
        owners,
        backend=None,
        topology=Topology(
            process_index=0, process_count=1, num_replicas=2, local_replicas=range(2)
        ),
        mesh=Mesh(stages=2),
        more=lambda: getattr(keras.optimizers, name)(),
        devices={0: "CPU:0", 1: "CPU:0"},
    )
    trained = model.trainable_variables
    rng = np.random.RandomState(0)
    for step in range(3):
        if step == 1:  # As a callback would.
            for network in (whole, model):
                network.optimizer.learning_rate = 0.5
        gradients = [
            tf.constant(rng.normal(size=variable.shape), tf.float32) for variable in trained
        ]
        whole.optimizer.apply(gradients, whole.trainable_variables)
        common = [owned.common_state(stage) for stage in (0, 1)]
        for stage in (0, 1):
            for state, value in common[stage]:
                state.assign(value)
            at = [
                number for number, variable in enumerate(trained) if owners[id(variable)] == stage
            ]
            own = [trained[number] for number in at]
            owned.optimizers[stage].apply([gradients[number] for number in at], own)
    expected = [*whole.variables, *whole.optimizer.variables]
    for value, network in zip(owned.held.values(), expected, strict=True):
        np.testing.assert_array_equal(value, network)
    assert len(owned.variables) == len(expected)
    assert len(owned.weights) == len(whole.variables)
    counted = owned.num_bytes(0) + owned.num_bytes(1)
    shared = sum(entry.variable.numpy().nbytes for entry in owned.entries if entry.stage is None)
    assert counted == shared + sum(variable.numpy().nbytes for variable in expected)


def layer(at, *, seconds=1.0, kept_bytes=0):
    return ChainLayer(
        name=f"layer{at}",
        forward_seconds=seconds / 3,
        backward_seconds=2 * seconds / 3,
        reads=(at,),
        makes=(at + 1,),
        kept_bytes=kept_bytes,
    )


def chosen(seconds, memory_bytes=None, kept=(), **settings):
    kept = kept or [0] * len(seconds)
    costs = zip(seconds, kept, strict=True)
    layers_ = tuple(
        layer(at, seconds=duration, kept_bytes=size) for at, (duration, size) in enumerate(costs)
    )
    chain = Chain(
        layers=layers_, tensor_bytes=[1] * (len(seconds) + 1), inputs=frozenset([0]), copies=2
    )
    config = RunConfig(backend="horovod", stages=2, micro_batches=4, replica_batch=4, **settings)
    return best_balance(chain, config, memory_bytes)


def test_the_cut_is_the_best_within_the_memory_of_a_device():
    assert chosen([1, 1, 1, 1]).cuts == (0, 2, 4)
    # With 1f1b the first stage keeps two micro-batches, the last one.
    assert chosen([1, 1, 1, 1], 50, [20, 20, 10, 10]).cuts == (0, 1, 4)
    with pytest.raises(ValueError, match="No cut into 2 stages leaves each within 0 MiB"):
        chosen([1, 1, 1, 1], 30, [20, 20, 10, 10])
    # Only what is computed once more counts: the last stage does nothing twice.
    recomputed = chosen([1, 1, 1, 1, 1, 1, 1], recompute=True)
    assert recomputed.cuts == (0, 3, 7)
    assert recomputed.seconds == pytest.approx((4, 4))
    assert chosen([1, 1, 1, 1], 50, [20, 20, 10, 10], recompute=True).cuts == (0, 2, 4)


def test_buffers_of_exchanges_fit_too_or_the_least_is_taken():
    kept = [20, 10, 5, 5]
    layers_ = tuple(layer(at, kept_bytes=size) for at, size in enumerate(kept))
    chain = Chain(layers=layers_, tensor_bytes=[1] * 5, inputs=frozenset([0]))
    config = RunConfig(backend="horovod", stages=2)
    more = {(0, 2, 4): 90, (0, 1, 4): 55}

    def fitting(memory_bytes, config=config):
        return fitting_balance(chain, config, lambda one: [more[one.cuts]], memory_bytes).cuts

    assert fitting(None) == (0, 2, 4)
    assert fitting(120) == (0, 2, 4)
    assert fitting(70) == (0, 1, 4)
    assert fitting(50) == (0, 1, 4)  # Which is said, and tried.
    with pytest.raises(ValueError, match="No cut into 2 stages"):
        fitting(15)
    # Large-model support makes room in the fastest.
    swaps = RunConfig(backend="horovod", stages=2, swap="1GiB")
    assert [fitting(size, swaps) for size in (70, 50, 15)] == [(0, 1, 4), (0, 2, 4), (0, 2, 4)]


def test_the_fastest_cut_is_taken_where_it_fits_though_its_bound_does_not():
    # By the bound, the first stage keeps more micro-batches than it does when played through.
    chain = Chain(
        layers=tuple(layer(at, kept_bytes=40) for at in range(4)),
        tensor_bytes=[1] * 5,
        inputs=frozenset([0]),
    )
    config = RunConfig(backend="horovod", stages=2, schedule="v", micro_batches=4)
    assert fitting_balance(chain, config, lambda _: [80], 100).cuts == (0, 1, 2, 3, 4)
    with pytest.raises(ValueError, match="No cut into 2 stages"):
        fitting_balance(chain, config, lambda _: [110], 100)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"backend": "mirrored"}, "'mirrored' has all stages in one process"),
        ({"backend": "horovod", "split": (2, 1)}, "no plans of stages whose samples are split"),
        ({"backend": "horovod"}, None),
    ],
)
def test_stages_of_which_large_model_support_makes_no_plans(settings, said):
    with pytest.raises(ValueError, match=said) if said else contextlib.nullcontext():
        check_swap(RunConfig(stages=2, **settings))


def test_two_chunks_a_device_are_cut_for_the_fastest_step():
    found = chosen([1, 1, 2, 2, 1, 1], schedule="v")
    assert found.devices == (0, 1, 1, 0)
    assert found.cuts == (0, 2, 3, 4, 6)
    assert found.seconds == pytest.approx((4, 4))


def test_a_run_says_of_what_batch_normalization_takes_its_statistics():
    def said(kinds, **settings):
        return batch_norm_of(RunConfig(backend="horovod", stages=2, **settings), kinds)

    inside = [layers.Conv2D(1, 1), keras.Sequential([layers.BatchNormalization()])]
    assert said([layers.Conv2D(1, 1)], micro_batches=2) is None
    assert said(inside, micro_batches=2) == "each micro-batch"
    assert said(inside, micro_batches=2, batch_norm="deferred") == "deferred"
    assert said(inside) == said(inside, batch_norm="deferred") == "whole batch"
    assert said(inside, tiling=(2, 1)) == "each micro-batch"


def test_a_norm_is_clipped_if_keras_would():
    """A study writes `global_clipnorm = false`, since TOML has no None."""
    assert [clips(limit) for limit in (None, False, 0, 0.0)] == [False] * 4
    assert clips(1e-3)


def test_layers_at_which_to_cut_are_found_by_name():
    graph = read_network(small())
    assert named_cuts(graph, ["norm"]) == [0, 1, 3]
    assert named_cuts(graph, ["norm", "last"]) == [0, 1, 2, 3]
    with pytest.raises(
        ValueError, match=r"'nrom', which .* Did you mean 'norm'.* first, norm, last"
    ):
        named_cuts(graph, ["nrom"])
    for wrong in (["last", "norm"], ["first"]):
        with pytest.raises(ValueError, match="in the order in which they run"):
            named_cuts(graph, wrong)


def test_networks_that_cannot_be_cut_so_are_refused():
    graph = read_network(small())
    with pytest.raises(ValueError, match=r"stages=4 needs as many layers, and .* has 3"):
        check_graph(graph, RunConfig(backend="horovod", stages=4))
    with pytest.raises(ValueError, match=r"stages=2 with two chunks each needs as many"):
        check_graph(graph, RunConfig(backend="horovod", stages=2, schedule="v"))
    image = keras.Input((8, 8, 1))
    x = layers.BatchNormalization(synchronized=True, name="together")(layers.Conv2D(2, 1)(image))
    graph = read_network(keras.Model(image, x))
    check_graph(graph, RunConfig(backend="horovod", stages=2))
    with pytest.raises(ValueError, match="'together' synchronizes its statistics over replicas"):
        check_graph(graph, RunConfig(backend="horovod", stages=2, num_replicas=2))
    both = keras.Model(image, [x, x])
    with pytest.raises(ValueError, match=r"one input and one output, and .* has 1 and 2"):
        check_graph(read_network(both), RunConfig(backend="horovod", stages=2))


def stage_of(model, cut):
    return OwnStage(
        read_network(model),
        [0, cut, len(read_network(model).nodes)],
        mesh=Mesh(stages=2),
        device=0,
        exchange=lambda *_: {},
        schedule="1f1b",
        micro_batches=1,
    )


def test_tensors_that_cannot_cross_are_refused():
    image = keras.Input((None, 8, 1))
    model = keras.Model(image, layers.Conv2D(2, 1)(layers.Conv2D(2, 1)(image)))
    with pytest.raises(
        ValueError, match=r"would cross from stage 1 .* shape .None, None, 8, 2. is"
    ):
        stage_of(model, 1)
    image = keras.Input((8, 8, 1))
    is_dark = keras.ops.less(image, 0.5)
    model = keras.Model(image, layers.Conv2D(2, 1)(keras.ops.where(is_dark, image, 0.0)))
    with pytest.raises(ValueError, match="type bool"):
        stage_of(model, 1)


@pytest.mark.parametrize("name", ["call", "train_step", "compute_loss", "compute_metrics"])
def test_methods_that_need_the_whole_network_are_refused(name):
    own = type("Own", (keras.Model,), {name: lambda self, *_, **__: None})
    image = keras.Input((8, 8, 1))
    with pytest.raises(ValueError, match=f"has a {name} of its own"):
        check_own_methods(own(image, layers.Conv2D(2, 1)(image)))
    check_own_methods(keras.Sequential([image, layers.Conv2D(2, 1)]))
    model = keras.Model(image, layers.Conv2D(2, 1)(image))
    check_own_methods(model)
    model.train_step = lambda data: {}
    with pytest.raises(ValueError, match="has a train_step of its own"):
        check_own_methods(model)
