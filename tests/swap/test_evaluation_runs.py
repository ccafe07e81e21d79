"""Evaluations within the budget: where they are planned, what is told, and what stays."""

import contextlib
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from kinds import KINDS, batches
from supported_runs import FEW_SLABS

from tfunet.swap import LargeModelSupport, callback
from tfunet.swap.measure import profile
from tfunet.swap.plan import chains, split
from tfunet.swap.plan.plan import Plan
from tfunet.swap.search import planner

KIND = "unet, residual, no normalization"


def compiled():
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = KINDS[KIND]()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.jit_compile = False
    return model, *batches(model, KIND)


def support(budget=0, **options):
    return LargeModelSupport(budget, threshold_bytes=256, **{"verbose": 0, **options})


@pytest.fixture
def fixed_times(monkeypatch):
    """No plan depends on a clock: of an evaluation every tensor that may be is split."""

    def make_plan(step, *, budget_bytes, **_):
        splits = step.is_forward and budget_bytes == 0
        tensors = split.splittable(step) if splits else ()
        found = split.cut(step, tensors)
        return Plan(
            split=tuple(step.tensors[one].name for one in sorted(tensors)),
            slab_rows={step.ops[last].name: chain.height for last, chain in found.chains.items()},
            budget_bytes=budget_bytes,
        )

    monkeypatch.setattr(planner, "make_plan", make_plan)
    monkeypatch.setattr(chains, "MOST_SLABS", FEW_SLABS)


def test_nothing_stays_after_an_evaluation_or_a_prediction(fixed_times):
    model, image, mask = compiled()
    before = {name: vars(model).get(name) for name in callback.STEPS}
    one = support()
    for run in (
        lambda: model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[one]),
        lambda: model.predict(image, batch_size=2, verbose=0, callbacks=[one]),
    ):
        run()
        assert one.evaluation_plans[-1].split
        assert {name: vars(model).get(name) for name in callback.STEPS} == before
        assert {vars(model)[name] for name in callback.STEPS.values()} == {None}
    assert one.plans == []
    assert not model.optimizer.built  # It takes memory, and nothing is trained.


def test_nothing_stays_after_an_exception_in_an_evaluation():
    model, image, mask = compiled()
    with pytest.raises(ValueError, match="shape"):
        model.evaluate(image, mask[:, :4], batch_size=2, verbose=0, callbacks=[support()])
    assert not callback.STEPS.keys() & vars(model).keys()
    model.evaluate(image, mask, batch_size=2, verbose=0)


def test_a_test_step_of_ones_own_is_there_again(fixed_times):
    model, image, mask = compiled()
    calls = []

    def own(data):
        calls.append(data)
        return type(model).test_step(model, data)

    model.test_step = own
    one = support()
    model.fit(image, mask, batch_size=2, verbose=0, validation_data=(image, mask), callbacks=[one])
    assert calls
    assert one.evaluation_plans[-1].split
    assert vars(model)["test_step"] is own


def test_validation_inside_of_fit_is_planned_once_and_gives_the_same_numbers(fixed_times):
    results = []
    for callbacks in ([], [support()]):
        model, image, mask = compiled()
        found = model.fit(
            image,
            mask,
            batch_size=2,
            epochs=2,
            shuffle=False,
            verbose=0,
            validation_data=(image, mask),
            callbacks=callbacks,
        )
        results.append(found.history["val_loss"])
    np.testing.assert_allclose(*results, rtol=1e-5)
    (one,) = callbacks
    assert len(one.plans) == len(one.evaluation_plans) == 1
    assert one.plans[0] is not one.evaluation_plans[0]


def test_context_supports_evaluations_and_a_test_step_that_a_train_step_calls(fixed_times):
    class Own(keras.Model):
        """Its train_step evaluates, too: that is a part of it, and not planned on its own."""

        def train_step(self, data):
            before = self.test_step(data)["loss"]
            return {**super().train_step(data), "before": before}

    plain, image, mask = compiled()
    model = Own(plain.input, plain.output)
    model.compile(loss=plain.loss)
    one = support()
    with one.on(model):
        model.train_on_batch(image[:2], mask[:2])
        assert (len(one.plans), len(one.evaluation_plans)) == (1, 0)
        model.test_on_batch(image[:2], mask[:2])
        assert (len(one.plans), len(one.evaluation_plans)) == (1, 1)
        model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[one])
        assert "test_step" in vars(model)  # An evaluation inside ends nothing.
    assert "test_step" not in vars(model)


def test_a_loop_of_ones_own(fixed_times):
    model, image, _ = compiled()
    one = support()
    forward = tf.function(one.evaluating(lambda x: model(x, training=False)))
    with one.on(model):
        in_slabs = forward(tf.constant(image[:2]))
    assert one.evaluation_plans[-1].split
    np.testing.assert_allclose(in_slabs, model(image[:2], training=False), rtol=1e-4, atol=1e-5)
    # Without support it is what it was.
    again = tf.function(one.evaluating(lambda x: model(x, training=False)))
    again(tf.constant(image[:2]))
    assert len(one.evaluation_plans) == 1


def test_a_line_only_where_something_is_done(fixed_times, capsys):
    model, image, mask = compiled()
    lines = []
    for budget in ("8GiB", 0):
        one = support(budget, verbose=1)
        model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[one])
        lines.append(capsys.readouterr().out)
        assert len(one.evaluation_plans) == 1
    assert lines[0] == ""
    assert lines[1].startswith("Large-model support: in evaluation, of the tensors ")
    assert len(lines[1].splitlines()) == 1
    model.predict(image, batch_size=2, verbose=0, callbacks=[support(verbose=1)])
    assert "Large-model support: in prediction, of the tensors " in capsys.readouterr().out


def test_an_evaluation_that_fits_keeps_its_graph(fixed_times):
    model, image, mask = compiled()
    graphs = []
    for one in (None, support("8GiB")):
        with contextlib.nullcontext() if one is None else one.on(model):
            step = tf.function(model.test_step, autograph=False)
            graph = step.get_concrete_function((image[:2], mask[:2])).graph
        # But for what returns the results, and tells the replica.
        kinds = [op.type for op in graph.get_operations()]
        graphs.append([kind for kind in kinds if kind not in ("Identity", "NoOp")])
        edges = sum(len(op.control_inputs) for op in graph.get_operations())
        graphs[-1].append(edges)
    assert graphs[0] == graphs[1]


def test_what_was_timed_in_training_is_not_timed_again_in_evaluation(monkeypatch):
    taken = []
    take = profile.take

    def spied(kinds):
        taken.append([kind.op.type for kind in kinds])
        return take(kinds)

    monkeypatch.setattr(profile, "take", spied)
    monkeypatch.setattr(profile, "SMALL_BYTES", 2**8)
    model, image, mask = compiled()
    one = support(allowed=["swap"])
    with one.on(model):
        model.train_on_batch(image[:2], mask[:2])
        (of_training,) = taken
        assert "Conv2D" in of_training
        model.test_on_batch(image[:2], mask[:2])
        of_evaluation = taken[-1]
        assert "Conv2D" not in of_evaluation
        assert len(of_evaluation) < len(of_training) / 4
        # And what an evaluation timed, the next one knows.
        model.predict_on_batch(image[:2])
        assert taken[-1] == []


def test_neither_a_plan_nor_compression_nor_tflms_is_of_evaluations(monkeypatch):
    made = []
    make_plan = planner.make_plan

    def spied(step, **options):
        made.append((step, options["allowed"]))
        return make_plan(step, **options)

    monkeypatch.setattr(planner, "make_plan", spied)
    for options in (
        {"plan": Plan()},
        {"compression": "bfloat16"},
        {"swapin_ahead": 1},
    ):
        made.clear()
        model, image, mask = compiled()
        model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[support(**options)])
        assert made
        for step, allowed in made:  # Once more where slabs were timed.
            assert step.is_forward
            assert not any(one.compressed_bytes for one in step.tensors)
            assert tuple(allowed) == (("swap",) if "swapin_ahead" in options else callback.WAYS)


CAPPED = """
import json
import sys

import keras
import numpy as np
import tensorflow as tf

from tfunet.models.make import make_model
from tfunet.swap import LargeModelSupport

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
keras.utils.set_random_seed(0)
options = {"filters": 8, "levels": 1, "normalization": "none"}
model = make_model("unet", image_shape=(64, 64, 64, 1), num_classes=2, options=options)
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
image = np.random.default_rng(0).normal(size=(2, 64, 64, 64, 1)).astype("float32")
support = LargeModelSupport("20MiB", margin=0, verbose=0)
callbacks = [support] if sys.argv[1] == "with" else []
mask = (image[..., 0] > 0.3).astype("int32")
loss = model.evaluate(image, mask, batch_size=1, verbose=0, callbacks=callbacks)
print(json.dumps([loss, sum(len(one.split) for one in support.evaluation_plans)]))
"""


def in_arena(cap_mib, how):
    """Return loss and split tensors of an evaluation in a capped allocator; None where it ends."""
    done = subprocess.run(
        [sys.executable, "-c", CAPPED, how],
        env={
            **os.environ,
            "TF_CPU_ALLOCATOR_USE_BFC": "true",
            "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(cap_mib),
            "TF_ENABLE_ONEDNN_OPTS": "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        # Where its own scratch does not fit, oneDNN ends the process.
        assert done.returncode < 0 or "ResourceExhaustedError" in done.stderr, done.stderr
        return None
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_out_of_memory_without_goes_through_in_slabs():
    # The concatenation holds 32 MiB at once, and the data is there beside it.
    assert in_arena(44, "without") is None
    loss, num_split = in_arena(44, "with")
    whole, none = in_arena(400, "without")
    assert num_split > none == 0
    assert loss == pytest.approx(whole, rel=1e-5)
