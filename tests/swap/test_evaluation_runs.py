"""Evaluations within the budget: where they are planned, what is told, and what stays."""

import contextlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from kinds import KINDS, batches
from strategies import split_plan
from supported_runs import FEW_SLABS, forced

from tfunet.swap import LargeModelSupport, compiled
from tfunet.swap.measure import profile
from tfunet.swap.plan import slab_chains, split
from tfunet.swap.plan.plan import Plan
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Strategy

KIND = "unet, residual, no normalization"


def compiled_model():
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = KINDS[KIND]()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.jit_compile = False
    return model, *batches(model, KIND)


def support(budget=0, **options):
    return LargeModelSupport(
        budget, threshold_bytes=256, **{"weights": "none", "verbose": 0, **options}
    )


class SplitEvaluations(Strategy):
    """Splits what may be split of an evaluation, whatever the budget and the clock say."""

    def plan(self, problem):
        trace = problem.trace
        return split_plan(trace, split.splittable(trace) if trace.is_forward else ())


def splitting(**options):
    return forced(SplitEvaluations(), **options)


@pytest.fixture
def few_slabs(monkeypatch):
    monkeypatch.setattr(slab_chains, "MOST_SLABS", FEW_SLABS)


def test_nothing_stays_after_an_evaluation_or_a_prediction(few_slabs):
    model, image, mask = compiled_model()
    before = {name: vars(model).get(name) for name in compiled.STEPS}
    callback = splitting()
    for run in (
        lambda: model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[callback]),
        lambda: model.predict(image, batch_size=2, verbose=0, callbacks=[callback]),
    ):
        run()
        assert callback.evaluation_plans[-1].split
        assert {name: vars(model).get(name) for name in compiled.STEPS} == before
        assert {vars(model)[name] for name in compiled.STEPS.values()} == {None}
    assert callback.plans == []
    assert not model.optimizer.built  # It takes memory, and nothing is trained.


def test_nothing_stays_after_an_exception_in_an_evaluation():
    model, image, mask = compiled_model()
    with pytest.raises(ValueError, match="shape"):
        model.evaluate(image, mask[:, :4], batch_size=2, verbose=0, callbacks=[support()])
    assert not compiled.STEPS.keys() & vars(model).keys()
    model.evaluate(image, mask, batch_size=2, verbose=0)


def test_a_test_step_of_ones_own_is_there_again(few_slabs):
    model, image, mask = compiled_model()
    calls = []

    def own(data):
        calls.append(data)
        return type(model).test_step(model, data)

    model.test_step = own
    callback = splitting()
    model.fit(
        image, mask, batch_size=2, verbose=0, validation_data=(image, mask), callbacks=[callback]
    )
    assert calls
    assert callback.evaluation_plans[-1].split
    assert vars(model)["test_step"] is own


def test_validation_inside_of_fit_is_planned_once_and_gives_the_same_numbers(few_slabs):
    results = []
    for callbacks in ([], [splitting()]):
        model, image, mask = compiled_model()
        fitted = model.fit(
            image,
            mask,
            batch_size=2,
            epochs=2,
            shuffle=False,
            verbose=0,
            validation_data=(image, mask),
            callbacks=callbacks,
        )
        results.append(fitted.history["val_loss"])
    np.testing.assert_allclose(*results, rtol=1e-5)
    (callback,) = callbacks
    assert len(callback.plans) == len(callback.evaluation_plans) == 1
    assert callback.plans[0] is not callback.evaluation_plans[0]


def test_context_supports_evaluations_and_a_test_step_that_a_train_step_calls(few_slabs):
    class Own(keras.Model):
        """Its train_step evaluates, too: that is a part of it, and not planned on its own."""

        def train_step(self, data):
            before = self.test_step(data)["loss"]
            return {**super().train_step(data), "before": before}

    plain, image, mask = compiled_model()
    model = Own(plain.input, plain.output)
    model.compile(loss=plain.loss)
    callback = splitting()
    with callback.on(model):
        model.train_on_batch(image[:2], mask[:2])
        assert (len(callback.plans), len(callback.evaluation_plans)) == (1, 0)
        model.test_on_batch(image[:2], mask[:2])
        assert (len(callback.plans), len(callback.evaluation_plans)) == (1, 1)
        model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[callback])
        assert "test_step" in vars(model)  # An evaluation inside ends nothing.
    assert "test_step" not in vars(model)


def test_a_loop_of_ones_own(few_slabs):
    model, image, _ = compiled_model()
    callback = splitting()
    forward = tf.function(callback.evaluating(lambda x: model(x, training=False)))
    with callback.on(model):
        in_slabs = forward(tf.constant(image[:2]))
    assert callback.evaluation_plans[-1].split
    np.testing.assert_allclose(in_slabs, model(image[:2], training=False), rtol=1e-4, atol=1e-5)
    # Without support it is what it was.
    again = tf.function(callback.evaluating(lambda x: model(x, training=False)))
    again(tf.constant(image[:2]))
    assert len(callback.evaluation_plans) == 1


def test_a_line_only_where_something_is_done(few_slabs, capsys):
    model, image, mask = compiled_model()
    lines = []
    for budget, options in (("8GiB", {}), (0, {"strategy": SplitEvaluations()})):
        callback = support(budget, margin=0.0, verbose=1, **options)
        model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[callback])
        lines.append(capsys.readouterr().out)
        assert len(callback.evaluation_plans) == 1
    assert lines[0] == ""
    begins, planned = lines[1].splitlines()
    assert begins.startswith("Large-model support: planning a forward pass of ")
    assert planned.startswith("Large-model support: in evaluation, of the tensors ")
    model.predict(image, batch_size=2, verbose=0, callbacks=[splitting(verbose=1)])
    assert "Large-model support: in prediction, of the tensors " in capsys.readouterr().out


def test_an_evaluation_that_fits_keeps_its_graph(few_slabs):
    model, image, mask = compiled_model()
    graphs = []
    for callback in (None, support("8GiB")):
        with contextlib.nullcontext() if callback is None else callback.on(model):
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
    take = profile.op_times.take

    def spied(kinds):
        taken.append([kind.op.type for kind in kinds])
        return take(kinds)

    monkeypatch.setattr(profile.op_times, "take", spied)
    monkeypatch.setattr(profile, "SMALL_BYTES", 2**8)
    model, image, mask = compiled_model()
    callback = support(allowed=["swap"], margin=0.0)
    with callback.on(model):
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


class Recorded(Strategy):
    """Plans as another strategy does, and keeps what was asked."""

    def __init__(self, inner, asked):
        self.inner, self.asked = inner, asked

    def plan(self, problem):
        self.asked.append(problem.trace)
        return self.inner.plan(problem)


def test_a_plan_is_not_of_evaluations(few_slabs):
    asked = []
    model, image, mask = compiled_model()
    recorded = support(strategy=Recorded(Planner(), asked), margin=0.0, plan=Plan())
    model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=[recorded])
    assert asked
    assert all(trace.is_forward for trace in asked)  # Once more where slabs were timed.


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
        timeout=200,
        check=False,
    )
    if done.returncode:
        # Where its own scratch does not fit, oneDNN ends the process.
        assert done.returncode < 0 or "ResourceExhaustedError" in done.stderr, done.stderr
        return None
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_out_of_memory_without_goes_through_in_slabs():
    # The concatenation holds 32 MiB at once, and the data is there beside it.
    with ThreadPoolExecutor() as pool:
        # TensorFlow waits for ten seconds before it refuses memory.
        refused = pool.submit(in_arena, 44, "without")
        loss, num_split = in_arena(44, "with")
        whole, none = in_arena(400, "without")
    assert refused.result() is None
    assert num_split > none == 0
    assert loss == pytest.approx(whole, rel=1e-5)
