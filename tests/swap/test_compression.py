"""Swapped tensors that are rounded to bfloat16."""

import dataclasses
import json

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from small_fits import fitted, support
from strategies import Fixed, swapped_plan

from tfunet.config.run import RunConfig
from tfunet.graph.reader import read
from tfunet.inside.of_tensorflow import uses_onednn
from tfunet.record import RunFolder
from tfunet.swap import LargeModelSupport
from tfunet.swap.measure import profile
from tfunet.swap.plan import slab_chains
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.exact import without_compared
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import schedule
from tfunet.swap.report.text import text
from tfunet.swap.search.candidates import Candidates
from tfunet.swap.search.strategy import Strategy
from tfunet.swap.storage.disk import DiskFile
from tfunet.swap.storage.host import NumpyMemory, function_of, key_of
from tfunet.swap.storage.tiers import CompressedTier, DiskTier, HostAndDisk

NUMBERS = [0.0, -0.0, 1.0, 1 / 3, -1e-30, 3e38, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf, np.nan]


@pytest.fixture(autouse=True)
def same_costs(monkeypatch):
    """What is swapped depends on no clock: convolutions take a millisecond, and the others less."""

    def measured(step, ops, tier, known):
        seconds = [1e-3 if "Conv" in op.kind else 1e-5 for op in step.ops]
        return Costs(op_seconds=seconds, out_bytes_per_second=1e9, in_bytes_per_second=1e9), {}

    monkeypatch.setattr(profile, "measure", measured)


def second_activation(trace):
    """Return a plan that swaps one tensor."""
    activations = [op.outputs[0] for op in trace.ops if op.kind in ("Relu", "Tanh")]
    return swapped_plan(trace, [activations[1]])


def test_losses_are_near_those_without_and_host_memory_is_half():
    results = {}
    for compression in (None, "bfloat16"):
        keras.backend.clear_session()
        held = []
        callback = support(compression=compression)
        watch = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, callback=callback, held=held: held.append(
                [array.nbytes for array in callback._room.host._arrays.values()]
            )
        )
        model, losses = fitted([callback, watch], epochs=3)
        (plan,) = callback.plans
        assert sum(held[-1]) == plan.host_bytes > 0
        results[compression] = plan, losses, model.get_weights()
    (plain, losses, weights), (plan, rounded_losses, rounded) = results.values()
    assert plan.decisions.keys() == plan.compressed_bytes.keys() == plain.decisions.keys()
    assert (plan.compression, plain.compression, plain.compressed_bytes) == ("bfloat16", None, {})
    assert 2 * plan.host_bytes == plain.host_bytes == sum(plain.tensor_bytes.values())
    assert plan.tensor_bytes == plain.tensor_bytes
    assert rounded_losses != losses
    np.testing.assert_allclose(rounded_losses, losses, rtol=1e-4)
    changed = [np.abs(a - b).max() for a, b in zip(weights, rounded, strict=True)]
    assert 0 < max(changed) < 1e-4


def test_the_disk_holds_half(tmp_path):
    held = {}
    for compression in (None, "bfloat16"):
        keras.backend.clear_session()
        callback = support(tmp_path, compression=compression)
        sizes = []
        watch = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, callback=callback, sizes=sizes: sizes.append(
                callback._room._file._end
            )
        )
        held[compression] = callback, sizes, fitted([callback, watch])[1]
    (plain, whole, _), (rounded, half, losses) = held.values()
    assert rounded.plans[-1].on_disk == plain.plans[-1].on_disk
    assert 2 * rounded.plans[-1].disk_bytes == plain.plans[-1].disk_bytes == whole[-1]
    assert 2 * half[-1] == whole[-1]
    # Rounded once: as in host memory.
    assert losses == fitted([support(compression="bfloat16")])[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("where", ["host", "disk"])
def test_what_comes_back_is_the_nearest_bfloat16(where, dtype, tmp_path):
    host, file = NumpyMemory(), DiskFile(tmp_path)
    numbers = np.array([NUMBERS, np.random.default_rng(0).normal(size=len(NUMBERS))], dtype)

    @tf.function(jit_compile=False, autograph=False)
    def there_and_back(given):
        tensor, other = given + 0, given * 1
        names = [tensor.name]
        graph = tensor.graph
        on_disk = names if where == "disk" else []
        file.reserve({key_of(graph, tensor.name): 2 * numbers.size}, part=function_of(graph))
        tier = HostAndDisk(host, DiskTier(file, on_gpu=False), on_disk)
        tier = CompressedTier(tier, "bfloat16", names)
        copies = [tier.out(tensor), tier.out(other)]
        with tf.control_dependencies(copies):
            return tier.back(tensor), tier.back(other)

    rounded, same = (tensor.numpy() for tensor in there_and_back(numbers))
    assert (rounded.dtype, rounded.shape) == (numbers.dtype, numbers.shape)
    np.testing.assert_array_equal(rounded, numbers.astype(ml_dtypes.bfloat16).astype(dtype))
    assert rounded[0, 3] != numbers[0, 3]
    np.testing.assert_array_equal(same, numbers)
    sizes = sorted(array.itemsize for array in host._arrays.values())
    assert sizes == ([2] if where == "host" else []) + [numbers.itemsize]


def test_only_gradients_that_read_a_rounded_tensor_change():
    changes = []
    for compression in (None, "bfloat16"):
        keras.backend.clear_session()
        model, image, mask = _shared_free()
        before = model.get_weights()
        callback = LargeModelSupport(
            0,
            threshold_bytes=256,
            verbose=0,
            compression=compression,
            strategy=Fixed(second_activation),
        )
        model.fit(image, mask, batch_size=4, verbose=0, callbacks=[callback])
        assert bool(callback.plans[-1].compressed_bytes) == (compression is not None)
        changes.append([a - b for a, b in zip(model.get_weights(), before, strict=True)])
    differ = [not np.array_equal(a, b) for a, b in zip(*changes, strict=True)]
    # The second of four convolutions feeds it; ReLU's gradient reads its sign; the kernel of the
    # third reads its numbers. Each has a kernel and a bias.
    assert differ == [False, False, False, False, True, False, False, False]
    (steps,) = [(a, b) for a, b, differs in zip(*changes, differ, strict=True) if differs]
    # A sum of products with numbers that are off by 2**-9 at the most.
    assert np.abs(steps[0] - steps[1]).max() < 2**-8 * np.abs(steps[0]).max()


def _shared_free():
    keras.utils.set_random_seed(1)
    image = x = keras.Input((16, 16, 1))
    for _ in range(3):
        x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    model = keras.Model(image, keras.layers.Conv2D(2, 1)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, jit_compile=False)
    numbers = np.random.default_rng(0).normal(size=(4, 16, 16, 1)).astype("float32")
    return model, numbers, (numbers[..., 0] > 0).astype("int32")


def searching():
    """A model whose gradients look for maxima: poolings in 3D and over all voxels."""
    image = keras.Input((8, 8, 8, 1))
    skip = keras.layers.Conv3D(4, 3, padding="same", activation="relu")(image)
    skip = keras.layers.Conv3D(4, 3, padding="same", activation="tanh")(skip)
    x = keras.layers.MaxPooling3D()(skip)
    x = keras.layers.Conv3D(8, 3, padding="same", activation="relu")(x)
    x = keras.layers.Concatenate()([skip, keras.layers.UpSampling3D()(x)])
    x = keras.layers.Conv3D(4, 3, padding="same", activation="relu")(x)
    x = keras.layers.Multiply()([x, keras.layers.GlobalMaxPooling3D(keepdims=True)(x)])
    return keras.Model(image, keras.layers.Conv3D(2, 1)(x))


def steps_of(make, callbacks, policy="float32"):
    """Return by how much three steps change the weights of a model, in one array."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, jit_compile=False)
        before = model.get_weights()
        image = np.random.default_rng(0).normal(size=(3, *model.input_shape[1:]))
        mask = (image[..., 0] > 0.3).astype("int32")
        model.fit(image, mask, batch_size=1, shuffle=False, verbose=0, callbacks=callbacks)
    finally:
        keras.config.set_dtype_policy("float32")
    ends = zip(model.get_weights(), before, strict=True)
    return np.concatenate([(a - b).ravel() for a, b in ends])


class AllSwapped(Strategy):
    """Swaps whatever it may, whether or not that lowers the peak."""

    def plan(self, problem):
        trace = without_compared(problem.trace)
        candidates = Candidates(dataclasses.replace(problem, trace=trace), ("swap",))
        return swapped_plan(trace, candidates.idle(schedule(trace, {}), {}))


def test_gradients_find_what_they_look_for():
    callback = LargeModelSupport(
        0, threshold_bytes=256, verbose=0, compression="bfloat16", strategy=AllSwapped()
    )
    rounded, plain = steps_of(searching, [callback]), steps_of(searching, [])
    # If no number equals the maximum, its gradient is a division by zero.
    assert 0 < np.linalg.norm(rounded - plain) < 0.01 * np.linalg.norm(plain)
    plan = callback.plans[-1]
    assert 0 < len(plan.compressed_bytes) < len(plan.decisions)


def test_planner_rounds_nothing_that_is_looked_for():
    callback = LargeModelSupport(
        0, threshold_bytes=256, verbose=0, allowed=["swap", "recompute"], compression="bfloat16"
    )
    rounded, plain = steps_of(searching, [callback]), steps_of(searching, [])
    plan = callback.plans[-1]
    swapped = {name for name, what in plan.decisions.items() if what == "swap"}
    assert 0 < len(swapped) < len(plan.decisions)
    assert 0 < len(plan.compressed_bytes) < len(swapped)
    assert 0 < np.linalg.norm(rounded - plain) < 0.01 * np.linalg.norm(plain)


def test_tensors_of_16_bits_are_swapped_as_they_are():
    options = {"threshold_bytes": 256, "verbose": 0, "allowed": ["swap"]}
    callback = LargeModelSupport(0, **options, compression="bfloat16")
    rounded = steps_of(searching, [callback], "mixed_bfloat16")
    (plan,) = callback.plans
    assert plan.decisions
    assert (plan.compressed_bytes, plan.compression) == ({}, None)
    # oneDNN rounds otherwise where it fuses ops, which depends on what is swapped.
    apart = 1e-3 if uses_onednn() else 0
    np.testing.assert_allclose(
        rounded, steps_of(searching, [], "mixed_bfloat16"), rtol=0, atol=apart
    )


def test_whole_numbers_and_narrow_ones_are_no_candidates():
    with tf.Graph().as_default():
        like = tf.compat.v1.placeholder(tf.float32, (4, 2))
        types = ("float64", "float32", "float16", "bfloat16", "int32", "bool")
        made = {dtype: tf.cast(tf.sqrt(like), dtype) for dtype in types}
        ops = tf.compat.v1.get_default_graph().get_operations()[1:]
        trace, handles = read(ops, compression="bfloat16")
        sizes = {
            handle.name: tensor.compressed_bytes
            for handle, tensor in zip(handles, trace.tensors, strict=True)
        }
        compressed_bytes = {dtype: sizes[tensor.name] for dtype, tensor in made.items()}
        assert not any(tensor.compressed_bytes for tensor in read(ops)[0].tensors)
    assert compressed_bytes == {
        "float64": 16,
        "float32": 16,
        **dict.fromkeys(("float16", "bfloat16", "int32", "bool"), 0),
    }


def test_split_tensors_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(slab_chains, "MOST_SLABS", 2)
    # With less, all is split that may be.
    callback = LargeModelSupport(
        40_000, margin=0.0, threshold_bytes=256, verbose=0, compression="bfloat16"
    )
    rounded, plain = steps_of(searching, [callback]), steps_of(searching, [])
    plan = callback.plans[-1]
    assert plan.split
    assert plan.compressed_bytes
    assert not plan.compressed_bytes.keys() & set(plan.split)
    assert np.linalg.norm(rounded - plain) < 0.01 * np.linalg.norm(plain)


def test_plan_that_rounds_is_followed_again_and_asks_for_leave():
    keras.backend.clear_session()
    first = support(compression="bfloat16")
    losses = fitted([first])[1]
    plan = Plan.from_json(first.plans[-1].to_json())
    assert plan == first.plans[-1]
    assert plan.compressed_bytes
    keras.backend.clear_session()
    again = LargeModelSupport("8GiB", plan=plan, verbose=0, compression="bfloat16")
    assert fitted([again])[1] == losses
    keras.backend.clear_session()
    with pytest.raises(ValueError, match="give compression='bfloat16' too"):
        fitted([LargeModelSupport("8GiB", plan=plan, verbose=0)])


def test_plan_from_before_there_was_compression_is_read():
    first = support()
    fitted([first])
    table = json.loads(first.plans[-1].to_json())
    del table["compression"], table["compressed_bytes"]
    assert Plan.from_table(table) == first.plans[-1]


def test_given_plan_rounds_no_more_than_it_names(monkeypatch):
    keras.backend.clear_session()
    plain = support()
    losses = fitted([plain])[1]
    keras.backend.clear_session()
    again = support(plan=plain.plans[-1], compression="bfloat16")
    assert fitted([again])[1] == losses


def test_it_is_said_that_tensors_are_rounded(capsys):
    callback = support(compression="bfloat16", verbose=1)
    fitted([callback])
    shown = capsys.readouterr().out
    assert "tensors swapped, compressed to bfloat16 (" in shown
    assert "Losses are not those without support." in shown
    plan = callback.plans[-1]
    assert "compressed to bfloat16" in text(plan)
    assert "(bfloat16)" in text(plan)
    some = dataclasses.replace(plan, decisions={**plan.decisions, "other:0": "swap"})
    assert f"{len(plan.compressed_bytes)} of them compressed to bfloat16" in text(some)
    fitted([support(verbose=1)])
    assert "Losses" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: support(compression="bfloat"), "Unknown compression 'bfloat'. Did you mean"),
        (lambda: support(compression="float16"), "Known: bfloat16"),
        (lambda: RunConfig(swap="auto", swap_compression="zip"), "Unknown swap_compression 'zip'"),
        (lambda: RunConfig(swap_compression="bfloat16"), "Give swap too"),
    ],
)
def test_unknown_compression_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_none_is_the_default():
    assert RunConfig(swap="auto", swap_compression="none") == RunConfig(swap="auto")
    assert RunConfig(swap="none", swap_compression="bfloat16") == RunConfig()
    assert RunConfig(swap_compression="none") == RunConfig()


def test_unfinished_run_does_not_go_on_rounded(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write_config(RunConfig(swap="auto"))
    with pytest.raises(ValueError, match="swap_compression='bfloat16'"):
        folder.write_config(RunConfig(swap="auto", swap_compression="bfloat16"))
