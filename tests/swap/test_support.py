"""The callback: what it refuses and what it leaves behind."""

import keras
import numpy as np
import pytest
from kinds import KINDS, batches

from tfunet.inside.of_tensorflow import uses_onednn
from tfunet.machine import device
from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan
from tfunet.swap.search.planner import Planner


def compiled(**options):
    keras.utils.set_random_seed(1)
    model = KINDS["shared layers"]()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model, *batches(model, "shared layers")


def support(**options):
    # Slabs change the last bits: tests/swap/test_in_slabs.py.
    ways = ["swap", "recompute"]
    return LargeModelSupport(
        0, weights="none", threshold_bytes=256, verbose=0, allowed=ways, **options
    )


def test_nothing_stays_after_training():
    model, image, mask = compiled(jit_compile="auto")
    before = dict(vars(model))
    model.fit(image, mask, batch_size=2, verbose=0, callbacks=[support()])
    assert "train_step" not in vars(model)
    assert model.train_function is None
    assert model.jit_compile == before["_jit_compile"]
    # And it trains on, as any other.
    model.fit(image, mask, batch_size=2, verbose=0)


def test_nothing_stays_after_an_exception_in_a_step():
    model, image, mask = compiled()
    with pytest.raises(ValueError, match="shape"):
        model.fit(image, mask[:, :4], batch_size=2, verbose=0, callbacks=[support()])
    assert "train_step" not in vars(model)


def test_it_says_that_planning_begins_and_once_that_onednn_is_off(monkeypatch, capsys):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)  # As if nobody had chosen.
    model, image, mask = compiled(jit_compile=False)
    callback = LargeModelSupport(0, weights="none", threshold_bytes=256)
    for _ in range(2):
        model.fit(image, mask, batch_size=2, verbose=0, callbacks=[callback])
    lines = capsys.readouterr().out.splitlines()
    begins = [line for line in lines if "planning a training step of" in line]
    assert (lines[0], len(begins)) == (begins[0], 2)
    off = [at for at, line in enumerate(lines) if "TF_ENABLE_ONEDNN_OPTS=1 before" in line]
    assert off == ([] if uses_onednn() else [1])
    # Who chose to do without it is not told.
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert not device.lacks_onednn()


def test_context_supports_train_on_batch():
    model, image, mask = compiled()
    callback = support()
    with callback.on(model):
        model.train_on_batch(image[:2], mask[:2])
        assert callback.plans[-1].decisions
    assert "train_step" not in vars(model)
    with_support = model.get_weights()
    other, image, mask = compiled(jit_compile=False)
    other.train_on_batch(image[:2], mask[:2])
    for a, b in zip(with_support, other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_per_execution_and_callback_used_twice():
    callback = support()
    for _ in range(2):
        model, image, mask = compiled(steps_per_execution=3, jit_compile=False)
        model.fit(image, mask, batch_size=2, verbose=0, shuffle=False, callbacks=[callback])
    plain, image, mask = compiled(steps_per_execution=3, jit_compile=False)
    plain.fit(image, mask, batch_size=2, verbose=0, shuffle=False)
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jit_compile": True}, "without jit_compile=True"),
        ({"run_eagerly": True}, "run_eagerly=True"),
    ],
)
def test_what_it_cannot_support_is_refused_before_training(options, message):
    model, image, mask = compiled(**options)
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        model.fit(image, mask, verbose=0, callbacks=[support()])
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_the_planner_may_do_is_refused_beside_a_strategy():
    with pytest.raises(ValueError, match="Leave out allowed beside strategy"):
        LargeModelSupport(0, strategy=Planner(), allowed=["swap"])


def test_unknown_way_is_refused():
    with pytest.raises(ValueError, match="Known: 'swap', 'recompute'"):
        LargeModelSupport(0, allowed=["compress"])


def test_plan_is_used_again():
    keras.backend.clear_session()  # Layers are numbered from here.
    model, image, mask = compiled()
    first = support()
    model.fit(image, mask, batch_size=2, verbose=0, callbacks=[first])
    plan = Plan.from_json(first.plans[-1].to_json())
    again = LargeModelSupport("8GiB", plan=plan, verbose=0)
    keras.backend.clear_session()
    model, image, mask = compiled()
    model.fit(image, mask, batch_size=2, verbose=0, callbacks=[again])
    assert again.plans[-1] == plan


def test_plan_of_another_model_is_refused():
    model, image, mask = compiled()
    plan = Plan(decisions={"elsewhere/Relu:0": "swap"})
    with pytest.raises(ValueError, match="another model or batch"):
        model.fit(image, mask, verbose=0, callbacks=[LargeModelSupport("8GiB", plan=plan)])
