"""Each private name of Keras and TensorFlow still does what this package uses it for."""

import contextlib
import inspect
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.callbacks.callback_list import CallbackList
from keras.src.saving import saving_lib
from paths import ROOT
from tensorflow.python.distribute import values

from tfunet.inside import of_fit, of_keras, of_optimizers, of_tensorflow
from tfunet.inside.replacing import replacing
from tfunet.models.symbolic import build_symbolic

TESTED = set()


def of(*functions):
    """Note that a test tries these functions."""
    TESTED.update(function.__name__ for function in functions)
    return lambda test: test


@pytest.fixture(scope="module")
def model():
    inner = keras.Sequential([keras.Input((4, 4, 1)), layers.Conv2D(2, 1, name="inside")])
    image = keras.Input((4, 4, 1), name="image")
    x = layers.Dropout(0.5, name="drop")(inner(image))
    made = keras.Model(image, layers.BatchNormalization(name="norm")(x))
    made.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    made.optimizer.build(made.trainable_variables)
    return made


@of(of_keras.all_layers, of_keras.inner_layers, of_keras.graph_of, of_keras.has_graph)
def test_layers_within_layers_are_found(model):
    names = [layer.name for layer in of_keras.all_layers(model)]
    assert names[0] == model.name
    assert {"inside", "drop", "norm"} < set(names)
    assert of_keras.all_layers(model, include_self=False)[0] is not model
    sequential = model.layers[1]
    assert sequential in of_keras.inner_layers(model)
    assert of_keras.has_graph(of_keras.graph_of(sequential))
    assert of_keras.graph_of(model) is model
    assert not of_keras.has_graph(layers.Dense(1))


@of(of_keras.calls_of, of_keras.readers_of, of_keras.run_graph, of_keras.takes_training)
@of(of_keras.is_told_of_training, of_keras.mask_of)
def test_graph_is_read_and_run_in_its_order(model):
    order = [call.operation.name for call in of_keras.calls_of(model)]
    assert order[0] == "image"
    assert order[-2:] == ["drop", "norm"]
    assert [reader.name for reader in of_keras.readers_of(model.get_layer("drop"))] == ["norm"]
    called = []

    def operation(layer):
        called.append(layer.name)
        return layer

    images = tf.ones((1, 4, 4, 1))
    np.testing.assert_array_equal(of_keras.run_graph(model, [images], operation), model(images))
    assert called == order[1:]
    assert of_keras.takes_training(model.get_layer("drop"))
    assert of_keras.is_told_of_training(model.get_layer("drop"))
    words = layers.Embedding(3, 2, mask_zero=True)(keras.Input((4,)))
    assert of_keras.mask_of(words) is not None
    assert of_keras.mask_of(model.output) is None


@of(of_keras.seed_generators, of_keras.own_losses, of_keras.keep_losses_in, of_keras.moments_from)
def test_what_layers_keep_to_themselves(model):
    assert len(of_keras.seed_generators(model.get_layer("drop"))) == 1
    penalized = layers.Dense(1, activity_regularizer="l2")
    of_keras.keep_losses_in(penalized, kept := [])
    penalized(tf.ones((1, 1)))
    assert len(kept) == len(of_keras.own_losses(penalized)) == 1
    norm = layers.BatchNormalization()
    norm.build((None, 2))
    with of_keras.moments_from(norm, lambda *_: (tf.ones(2), tf.ones(2))):
        np.testing.assert_allclose(norm(tf.ones((3, 2)), training=True), np.zeros((3, 2)))


@of(of_keras.compiled_metrics, of_keras.compile_config)
@of(of_keras.loss_tracker, of_keras.build_metrics)
def test_what_a_model_was_compiled_with(model):
    of_keras.build_metrics(model, tf.ones((1, 4, 4, 1)), tf.ones((1, 4, 4, 2)))
    assert [metric.name for metric in of_keras.compiled_metrics(model).metrics] == ["mae"]
    assert of_keras.loss_tracker(model).name == "loss"
    fresh = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    fresh.compile("sgd", "mse", metrics=["mae"])
    of_keras.build_metrics(fresh, tf.ones((1, 2)), tf.ones((1, 1)))
    assert of_keras.compiled_metrics(fresh).built
    assert not fresh.optimizer.built
    assert of_keras.compiled_metrics(keras.Sequential()) is None
    assert of_keras.compile_config(model).config["loss"] == "mse"
    assert of_keras.compile_config(keras.Sequential()) is None


@of(of_keras.mode_of_metric)
def test_which_way_of_a_metric_is_better():
    class Own(keras.metrics.Mean):
        direction = "down"

    metrics = [keras.metrics.AUC(), keras.metrics.MeanAbsoluteError(), Own(), keras.metrics.Mean()]
    assert [of_keras.mode_of_metric(one) for one in metrics] == ["max", "min", "min", None]


@of(of_keras.variable_key, of_keras.trained_by, of_keras.clipping_of, of_keras.clipping_by)
def test_what_an_optimizer_trains_and_clips(model):
    optimizer = keras.optimizers.SGD(1.0, clipvalue=0.5)
    one, other = (keras.Variable(np.zeros(1)) for _ in range(2))
    optimizer.build([one, other])
    assert [id(variable) for variable in of_keras.trained_by(optimizer)] == [id(one), id(other)]
    assert of_keras.variable_key(optimizer, one) == of_keras.variable_key(optimizer, one.value)
    assert of_keras.variable_key(optimizer, one) != of_keras.variable_key(optimizer, other)
    assert of_keras.clipping_of(optimizer)([tf.constant([2.0])])[0] == 0.5
    with of_keras.clipping_by(optimizer, lambda gradients: [3 * each for each in gradients]):
        optimizer.apply([tf.ones(1), tf.ones(1)])
    assert one.numpy() == -3


@of(of_keras.has_value, of_keras.make_value, of_keras.give_value, of_keras.free_value)
def test_values_of_variables_come_late_and_go():
    image, biased = keras.Input((1,)), layers.Dense(2, bias_initializer="ones")
    model = build_symbolic(lambda: keras.Sequential([image, biased]), precision="float32")
    variable = model.layers[0].bias
    assert not of_keras.has_value(variable)
    of_keras.make_value(variable)
    np.testing.assert_array_equal(variable, [1, 1])
    of_keras.give_value(variable, tf.constant([2.0, 2.0]))
    np.testing.assert_array_equal(variable, [2, 2])
    of_keras.free_value(variable, lambda shape, dtype=None: tf.zeros(shape, dtype))
    assert not of_keras.has_value(variable)
    np.testing.assert_array_equal(variable.value, [0, 0])


@of(of_keras.making_values)
def test_values_of_variables_are_made_in_another_way():
    def make(before, variable, value):
        before(variable, 2 * np.asarray(value() if callable(value) else value))

    with of_keras.making_values(make):
        doubled = keras.Variable(np.ones(2))
        layer = layers.Dense(1, bias_initializer="ones")
        layer.build((None, 1))
    assert np.asarray(doubled).tolist() == [2, 2]
    assert np.asarray(layer.bias).tolist() == [2]
    assert np.asarray(keras.Variable(np.ones(2))).tolist() == [1, 1]


@of(of_keras.name_value)
def test_optimizers_know_another_value_by_the_name_of_the_first():
    variable = keras.Variable(np.ones(2))
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([variable])
    before = variable.value
    of_keras.give_value(variable, np.zeros(2, "float32"))
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([tf.ones(2)], [variable])
    of_keras.name_value(variable, before)
    optimizer.apply([tf.ones(2)], [variable])
    assert np.asarray(variable).tolist() == [-1, -1]


@of(of_keras.pooling_by, of_keras.unseeded_generator, of_keras.set_unseeded_generator)
def test_what_all_layers_share():
    pooled = []

    def pool(keras_max_pool, *args, **kwargs):
        pooled.append(keras_max_pool(*args, **kwargs))
        return pooled[0] + 1

    with of_keras.pooling_by(pool):
        output = layers.MaxPooling2D()(tf.ones((1, 2, 2, 1)))
    assert float(output[0, 0, 0, 0]) == 2 == float(pooled[0][0, 0, 0, 0]) + 1
    keras.random.normal(())
    generator = of_keras.unseeded_generator()
    assert generator.state.shape == (2,)
    of_keras.set_unseeded_generator(generator)
    assert of_keras.unseeded_generator() is generator


@of(of_tensorflow.set_input, of_tensorflow.set_attribute, of_tensorflow.control_outputs)
@of(of_tensorflow.set_control_inputs, of_tensorflow.add_control_inputs, of_tensorflow.evaluated)
@of(of_tensorflow.function_graph)
def test_graphs_are_read_and_changed():
    with tf.Graph().as_default() as graph:
        one, two = tf.constant(1.0), tf.constant(2.0)
        total = tf.add(one, one).op
        of_tensorflow.set_input(total, 1, two)
        assert list(total.inputs) == [one, two]
        of_tensorflow.add_control_inputs(total, [two.op])
        assert of_tensorflow.control_outputs(two.op) == [total]
        of_tensorflow.set_control_inputs(total, [one.op])
        assert list(total.control_inputs) == [one.op]
        of_tensorflow.set_attribute(total, "_own", tf.compat.v1.AttrValue(b=True))
        assert total.get_attr("_own")
        assert of_tensorflow.evaluated(tf.range(3)).tolist() == [0, 1, 2]

        @tf.function
        def doubled(value):
            return 2 * value

        doubled(one)
        (call,) = (op for op in graph.get_operations() if "Call" in op.type)
        inner = of_tensorflow.function_graph(graph, call.get_attr("f").name)
        assert "Mul" in [op.type for op in inner.get_operations()]


@of(of_tensorflow.call_options, of_tensorflow.calling_with, of_tensorflow.with_constants)
def test_functions_are_called_otherwise_and_frozen():
    asked = []

    class Options(of_tensorflow.CallOptions):
        def as_attrs(self):
            asked.append(1)
            return super().as_attrs()

    before = of_tensorflow.call_options()
    variable = tf.Variable(3.0)
    function = tf.function(lambda value: value * variable)
    with of_tensorflow.calling_with(Options(before.executor_type)):
        assert function(tf.constant(2.0)) == 6
    assert asked
    assert of_tensorflow.call_options() is before
    frozen = of_tensorflow.with_constants(function.get_concrete_function(tf.constant(2.0)))
    variable.assign(5.0)
    assert frozen(tf.constant(2.0))[0] == 6


@of(of_tensorflow.gpu_limits, of_tensorflow.uses_onednn, of_tensorflow.address_of)
def test_devices_and_their_memory():
    assert len(of_tensorflow.gpu_limits()) == len(tf.config.list_logical_devices("GPU"))
    assert of_tensorflow.uses_onednn() in (True, False)
    assert of_tensorflow.address_of(tf.ones(4)) % 4 == 0


@of(of_tensorflow.global_seed, of_tensorflow.has_devices)
def test_seed_and_devices_of_a_process():
    tf.random.set_seed(7)
    assert of_tensorflow.global_seed() == 7
    tf.ones(1)
    assert of_tensorflow.has_devices()
    asks = "from tfunet.inside.of_tensorflow import global_seed, has_devices\n"
    asks += "assert global_seed() is None and not has_devices()"
    subprocess.run([sys.executable, "-c", asks], cwd=ROOT, check=True)


@of(of_tensorflow.numbers_are_arrays, of_tensorflow.updating_alone)
def test_variables_of_strategies(monkeypatch):
    kind = values.DistributedVariable
    for name in ("__array__", "__float__", "__int__"):  # Undone at the end of the test.
        monkeypatch.setattr(kind, name, None, raising=False)
    of_tensorflow.numbers_are_arrays()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA  # As that of an optimizer's iterations.
        number = tf.Variable(2.0, aggregation=first)
        assert np.asarray(number).tolist() == 2
        assert np.asarray(number, dtype="int32").dtype == np.int32
        assert (float(number), int(number)) == (2.0, 2)

    @tf.function
    def step(is_in_branch):
        def replica():
            with of_tensorflow.updating_alone():
                added = tf.cast(is_in_branch, tf.float32)
                tf.cond(is_in_branch, lambda: number.assign_add(added), number.read_value)

        strategy.run(replica)

    step(tf.constant(True))  # An update for which replicas meet is an error in a branch.
    assert number.numpy() == 3


@of(of_fit.around, of_fit.train_by, of_fit.around_making_steps, of_fit.around_making_predict)
@of(of_fit.around_building, of_fit.around_callbacks, of_fit.data_set_of, of_fit.build)
@of(of_fit.first_epoch, of_fit.begin_with, of_fit.rate_of, of_fit.losses_of, of_fit.function_of)
def test_what_a_fit_does_is_changed(monkeypatch):
    for kind, name in (
        (TensorFlowTrainer, "distribute_strategy"),
        (TensorFlowTrainer, "_make_function"),
        (TensorFlowTrainer, "make_predict_function"),
        (TensorFlowTrainer, "_maybe_symbolic_build"),
        (CallbackList, "__init__"),
    ):  # Undone at the end of the test.
        monkeypatch.setattr(kind, name, getattr(kind, name))
    seen = []

    def noting(what):
        def instead(original, *args, **kwargs):
            seen.append((what, (*args, *kwargs.values())))
            return original(*args[1:], **kwargs)

        return instead

    of_fit.around_making_steps(noting("step"))
    of_fit.around_making_predict(noting("predict"))
    of_fit.around_building(noting("build"))
    of_fit.around_callbacks(noting("callbacks"))
    of_fit.train_by(lambda model: seen.append(("strategy", (model,))) or Passing())
    model = keras.Sequential([layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.125), "mse")
    x = np.ones((4, 2), "float32")
    begins = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: of_fit.begin_with(model, 2),
        on_epoch_begin=lambda epoch, logs: seen.append(("epoch", (epoch,))),
    )
    model.fit(x, x[:, :1], epochs=3, batch_size=2, callbacks=[begins], verbose=0)
    model.predict(x, verbose=0)
    assert {what for what, _ in seen} == {
        *("step", "predict", "build", "callbacks", "strategy", "epoch")
    }
    assert all(args[0] is model for what, args in seen if what in ("step", "predict", "strategy"))
    assert [args[0] for what, args in seen if what == "epoch"] == [2]
    assert of_fit.first_epoch(model) == 2
    iterator = next(args[1] for what, args in seen if what == "build" and len(args) > 1)
    assert isinstance(of_fit.data_set_of(iterator), tf.data.Dataset)
    assert of_fit.rate_of(model.optimizer).numpy() == 0.125
    unbuilt = keras.Sequential([layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    of_fit.build(unbuilt, (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])))
    assert unbuilt.weights[0].shape == (2, 1)
    accuracy = keras.metrics.BinaryAccuracy()
    assert of_fit.function_of(accuracy) is keras.metrics.binary_accuracy
    assert of_fit.function_of(keras.metrics.Mean()) is None
    (loss,) = of_fit.losses_of(unbuilt)
    assert loss([[1.0]], [[3.0]]) == 4


class Passing:
    """What Keras asks of a strategy: all by itself."""

    scope = staticmethod(contextlib.nullcontext)

    def experimental_distribute_dataset(self, dataset):
        return dataset

    def run(self, step, args=()):
        return step(*args)

    def reduce(self, way, value, axis):
        return value


class Elsewhere(of_tensorflow.VariableElsewhere):
    """A variable whose value an array has."""

    def fetched(self):
        value = tf.numpy_function(lambda: self.array, [], self.dtype)
        return tf.ensure_shape(value, self.shape)

    def store(self, value):
        def write(value):
            self.array = np.array(value)
            return np.int32(0)

        tf.numpy_function(write, [value], tf.int32)

    def numpy(self):
        return self.array


def elsewhere(array):
    made = Elsewhere(shape=array.shape, dtype=str(array.dtype), trainable=True)
    made.array = array
    return made


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda it: it.assign(tf.zeros((3, 2))), np.zeros((3, 2))),
        (lambda it: it.assign_add(tf.ones((3, 2))), np.arange(6).reshape(3, 2) + 1),
        (lambda it: it.assign_sub(tf.ones((3, 2))), np.arange(6).reshape(3, 2) - 1),
        (lambda it: it.scatter_add(rows_of(1.0)), [[0, 1], [4, 5], [5, 6]]),
        (lambda it: it.scatter_sub(rows_of(1.0)), [[0, 1], [0, 1], [3, 4]]),
        (lambda it: it.scatter_update(rows_of(9.0)), [[0, 1], [9, 9], [9, 9]]),
    ],
)
def test_a_variable_elsewhere_takes_values(change, expected):
    variable = elsewhere(np.arange(6, dtype="float32").reshape(3, 2))

    @tf.function(autograph=False)
    def changes():
        change(variable)

    changes()
    np.testing.assert_array_equal(variable.numpy(), expected)


def rows_of(number):
    """Return the number in the rows 1 and 2; where rows add up, twice in the first."""
    values = tf.fill((2, 2), number) if number == 9 else tf.fill((3, 2), number)
    rows = [1, 2] if number == 9 else [1, 1, 2]
    return tf.IndexedSlices(values, tf.constant(rows), tf.constant([3, 2]))


def test_a_variable_elsewhere_is_read_and_watched():
    variable = elsewhere(np.arange(6, dtype="float32").reshape(3, 2))
    assert variable.is_initialized()
    untrained = elsewhere(np.ones((3, 2), "float32"))

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            read = variable.value() + variable.read_value() + variable
            row = variable.sparse_read([2])[0, 1] + variable.gather_nd([[1, 0]])[0]
            loss = tf.reduce_sum(read * untrained) + row
        assert [id(each) for each in tape.watched_variables()] == [id(variable), id(untrained)]
        return tape.gradient(loss, variable)

    np.testing.assert_array_equal(tf.convert_to_tensor(gradients()), [[3, 3], [4, 3], [3, 4]])


@of(of_tensorflow.outside_of)
def test_graphs_of_branches_and_loops_know_what_is_around_them():
    around = []

    def part(*_):
        graph = tf.compat.v1.get_default_graph()
        around.append(of_tensorflow.outside_of(graph))
        return tf.constant(True)

    @tf.function(autograph=False)
    def branches(value):
        own = tf.compat.v1.get_default_graph()
        assert of_tensorflow.outside_of(own) is None
        tf.cond(value, part, part)
        tf.while_loop(lambda at: at < 2, lambda at: (part(), at + 1)[1:], [0])
        assert around == [own] * len(around)

    branches(tf.constant(True))
    assert len(around) >= 3


@pytest.fixture
def built():
    """An optimizer with weight decay and averages, and its two variables."""
    one, other = (keras.Variable(np.ones(3), name=name) for name in ("one", "other"))
    made = keras.optimizers.AdamW(0.1, weight_decay=0.5, use_ema=True, clipvalue=0.25)
    made.exclude_from_weight_decay(var_list=[other])
    made.build([one, other])
    return made, one, other


@of(of_optimizers.undistributed, of_optimizers.remade, of_optimizers.empty_like)
@of(of_optimizers.of_any_length)
def test_optimizers_are_made_again_and_leave_strategies_alone(built):
    optimizer, one, _ = built
    made = of_optimizers.remade(optimizer)
    assert made.get_config() == optimizer.get_config()
    assert not made.built
    assert issubclass(type(made), of_optimizers.undistributed(type(optimizer)).__base__)
    assert isinstance(made, keras.optimizers.AdamW)
    small, part = of_optimizers.empty_like(one), of_optimizers.of_any_length(one)
    for variable in (small, part):
        assert (variable.name, variable.path) == (one.name, one.path)
        assert np.asarray(variable).size == 0
    part.value.assign(np.arange(5))
    assert np.asarray(part.value).tolist() == [0, 1, 2, 3, 4]
    rate = tf.Variable(0.5)
    made = of_optimizers.remade(keras.optimizers.SGD(lambda: rate + 0))
    made.build([one])
    made.apply([tf.ones(3)])
    assert np.asarray(one).tolist() == [0.5] * 3

    class Own(keras.optimizers.SGD):
        def get_config(self):
            raise KeyError("own")

    with pytest.raises(ValueError, match=r"Own cannot be made again.* get_config raised KeyError"):
        of_optimizers.remade(Own())


@of(of_optimizers.add_without_value, of_optimizers.assigning_values, of_keras.instead_of_value)
def test_states_are_added_without_values():
    weight = keras.Variable(np.ones((2, 3)), name="weight")
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.1)  # It assigns to its states when built.

    def instead(shape, dtype):
        raise LookupError(shape)

    def add(before, reference, **options):
        if reference is None:
            return before(**options)
        return of_optimizers.add_without_value(before, options, instead)

    with of_optimizers.adding(optimizer, add), of_optimizers.assigning_values(optimizer):
        optimizer.build([weight])
    iterations, rate, *states = optimizer.variables
    assert [(state.shape, state.path) for state in states] == [
        ((2, 3), f"schedule_free_adam_w/weight_{name}") for name in ("momentum", "velocity")
    ]
    for state in states:
        assert of_keras.instead_of_value(state) is instead
        with pytest.raises(LookupError):
            state.numpy()
    for other in (iterations, rate, tf.Variable(0.0)):
        assert of_keras.instead_of_value(other) is None
    optimizer.assign(rate, 0.5)
    assert rate.numpy() == 0.5


@of(of_optimizers.adding, of_optimizers.num_slots, of_optimizers.leaves)
def test_states_are_added_in_another_way(built):
    optimizer, one, other = built
    added = []

    def add(before, reference, **options):
        added.append((reference, before(**options)))
        return added[-1][1]

    made = of_optimizers.remade(optimizer)
    with of_optimizers.adding(made, add):
        made.build([one, other])
    references = [reference for reference, _ in added]
    assert references == [*[each for each in references if each is one or each is other]]
    assert len(references) == 6 == 2 * of_optimizers.num_slots(optimizer)
    assert all(any(state is own for own in made.variables) for _, state in added)
    inner, within = of_optimizers.remade(optimizer), []

    def add_within(before, reference, **options):
        within.append((reference, before(**options)))
        return within[-1][1]

    with of_optimizers.adding(inner, add), of_optimizers.adding(inner, add_within):
        inner.build([one, other])
    assert added[-len(within) :] == within
    assert len(within) == 6
    assert "add_variable" not in vars(inner)
    scaled = keras.optimizers.LossScaleOptimizer(optimizer)
    assert of_optimizers.leaves(scaled) == [optimizer] == of_optimizers.leaves(optimizer)
    if hasattr(keras.optimizers, "MultiOptimizer"):
        several = keras.optimizers.OptimizerMap(optimizer)
        assert of_optimizers.leaves(keras.optimizers.MultiOptimizer(several)) == [optimizer]


@of(of_optimizers.apply, of_optimizers.apply_clipped, of_optimizers.applying_by)
def test_gradients_are_applied_in_another_way(built):
    optimizer, one, other = built
    seen = []
    with of_optimizers.applying_by(optimizer, lambda *given: seen.append(given)):
        optimizer.apply([tf.ones(3), tf.ones(3)])
    ((gradients, variables),) = seen
    assert [id(each) for each in variables] == [id(one), id(other)]
    assert gradients[0].numpy().tolist() == [1] * 3  # Not clipped.
    assert np.asarray(one).tolist() == [1] * 3
    sgd = keras.optimizers.SGD(1.0, clipvalue=0.25)
    sgd.build([one, other])
    with of_optimizers.applying_by(sgd, seen.append):
        of_optimizers.apply(sgd, [tf.ones(3)], [one])
        of_optimizers.apply_clipped(sgd, [tf.ones(3)], [other])
    assert np.asarray(one).tolist() == [0.75] * 3
    assert np.asarray(other).tolist() == [0] * 3


@of(of_optimizers.share_counters, of_optimizers.own_numbers, of_optimizers.share_exclusions)
@of(of_optimizers.decays)
def test_what_optimizers_share(built):
    optimizer, one, other = built
    assert [of_optimizers.decays(optimizer, each) for each in (one, other)] == [True, False]
    for variable, decays in ((one, True), (other, False)):
        made, part = of_optimizers.remade(optimizer), of_optimizers.of_any_length(variable)
        with of_optimizers.adding(made, lambda *_, part=part, **__: part):
            made.build([part])
        of_optimizers.share_exclusions(made, part, optimizer, variable)
        assert of_optimizers.decays(made, part) == decays
    of_optimizers.share_counters(made, optimizer)
    optimizer.iterations.assign(7)
    optimizer.learning_rate = 0.25
    assert (int(made.iterations), float(made.learning_rate)) == (7, 0.25)
    nadam = keras.optimizers.Nadam()
    nadam.build([one])
    assert [*of_optimizers.own_numbers(nadam)] == ["_u_product"]
    assert of_optimizers.own_numbers(optimizer) == {}


@of(of_optimizers.only_training, of_optimizers.bounded)
def test_optimizers_update_some_variables_and_within_bounds(built):
    optimizer, one, other = built
    averages = [each for each in optimizer.variables if "average" in each.path]
    with of_optimizers.only_training(optimizer, [other]):
        optimizer.apply([tf.ones(3)], [other])
    assert np.asarray(averages[0]).tolist() == [0] * 3
    assert np.asarray(averages[1])[0] != 0
    optimizer.apply([tf.ones(3), tf.ones(3)])
    assert np.asarray(averages[0])[0] != 0
    seen = []

    @contextlib.contextmanager
    def bounds(variables):
        seen.append([id(each) for each in variables])
        yield
        seen.append("after")

    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0)
    scaled.build([one])
    before = np.array(one)
    with of_optimizers.bounded(scaled, bounds):
        scaled.apply([tf.ones(3)], [one])
    assert seen == [[id(one)], "after"]
    np.testing.assert_array_equal(one, before - 0.5)


class Looking(layers.Dense):
    """Notes what lies in a folder while it is saved."""

    def __init__(self, units, folder):
        super().__init__(units)
        self.folder, self.seen = folder, []

    def save_own_variables(self, store):
        super().save_own_variables(store)
        self.seen.append(sorted(path.name[:5] for path in self.folder.iterdir()))


@of(of_fit.saving_through_file)
def test_large_models_are_saved_through_a_file_beside_theirs(tmp_path):
    layer = Looking(2, tmp_path)
    model = keras.Sequential([layers.Input((4,)), layer])
    for least in (40, 41):
        with of_fit.saving_through_file(least, "part-"):
            model.save(tmp_path / "saved.keras")
    assert layer.seen == [["part-", "saved"], ["saved"]]


def test_replaced_attributes_come_back():
    class Thing:
        ours = 1

    thing = Thing()
    thing.own = 2
    with replacing(thing, ours=3, own=4), replacing(Thing, ours=5):
        assert (thing.ours, thing.own, Thing.ours) == (3, 4, 5)
    assert vars(thing) == {"own": 2}
    assert Thing.ours == 1
    with replacing(of_keras, UNSEEDED="another"):
        assert of_keras.UNSEEDED == "another"
    assert of_keras.UNSEEDED != "another"


@of(of_fit.drawing_by, of_fit.reducing_by, of_fit.synchronized_moments_of)
def test_what_a_step_draws_and_reduces_is_changed():
    def noting(original, *args, **kwargs):
        seen.append(original.__name__)
        return original(*args, **kwargs)

    seen = []
    with of_fit.drawing_by(noting, noting, noting):
        for draw in of_fit.DRAWS_OF_SHAPE:
            more = {"randint": (0, 9), "gamma": (1.0,), "binomial": (3, 0.5), "beta": (1.0, 1.0)}
            if hasattr(keras.random, draw):
                getattr(keras.random, draw)((2,), *more.get(draw, ()))
        keras.random.dropout(tf.ones(2), 0.5)
        keras.random.categorical(tf.ones((1, 2)), 1)
    assert seen == [*of_fit.DRAWS_OF_SHAPE, "dropout", "categorical"]
    seen.clear()
    with of_fit.reducing_by(noting, noting):
        masked = tf.ones((2, 2))
        masked._keras_mask = tf.constant([True, False])
        keras.losses.MeanSquaredError()(tf.ones((2, 2)), masked)
    assert sorted(seen) == ["apply_mask", "reduce_values"]
    norm = layers.BatchNormalization(synchronized=True, momentum=0.0)
    with of_fit.synchronized_moments_of(lambda x: x[:1]):
        norm(tf.constant([[2.0], [4.0]]), training=True)
    np.testing.assert_allclose(norm.moving_mean, [2])
    norm(tf.constant([[2.0], [4.0]]), training=True)
    np.testing.assert_allclose(norm.moving_mean, [3])


@of(of_fit.saving, of_fit.around_attributes)
def test_where_models_are_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(saving_lib, "get_attr_skipset", saving_lib.get_attr_skipset)  # Undone.
    kinds = set()

    def noting(names, kind):
        kinds.add(kind)
        return names(kind)

    of_fit.around_attributes(noting)
    saved = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    saved.compile("sgd", "mse")
    saved.save(tmp_path / "saved.keras")
    assert {"Sequential", "Layer", "Optimizer"} <= kinds
    for name in ("save_model", "load_model", "save_weights", "load_weights"):
        assert callable(getattr(of_fit.saving(), name))


MODULES = [of_fit, of_keras, of_optimizers, of_tensorflow]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_private_name_has_its_test(module):
    own = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    assert own
    assert own <= TESTED


# The one of a backend, which imports nothing of the package but its seam.
SEAM = {"tf_native/multiworker.py"}


def test_only_files_inside_use_private_modules():
    private = re.compile(r"^\s*(from|import) (keras\.src|tensorflow\.python)\b", re.M)
    files = [*ROOT.glob("tfunet/**/*.py"), *ROOT.glob("tf_native/*.py"), *ROOT.glob("hvd/*.py")]
    using = {str(path.relative_to(ROOT)) for path in files if private.search(path.read_text())}
    names = ("of_fit", "of_keras", "of_optimizers", "of_tensorflow")
    assert using == {*(f"tfunet/inside/{name}.py" for name in names), *SEAM}
