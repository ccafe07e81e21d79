"""Evaluations and predictions within the budget: their results are those without support."""

import keras
import numpy as np
import pytest
from kinds import FEW_KINDS, KINDS, batches
from supported_runs import FEW_SLABS, FLOAT32, WHOLE, all_that_may_be_split, all_that_may_go

from tfunet.swap import LargeModelSupport
from tfunet.swap.plan import chains
from tfunet.swap.search import planner


def found(kind, support, policy="float32"):
    """Return what an evaluation and a prediction of a model give."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = KINDS[kind]()
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        image, mask = batches(model, kind)
        if not model.built:
            model(image[:2])
        model.jit_compile = False
        callbacks = [support] if support else []
        loss = model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=callbacks)
        plans = list(support.evaluation_plans) if support else []
        logits = model.predict(image, batch_size=2, verbose=0, callbacks=callbacks)
    finally:
        keras.config.set_dtype_policy("float32")
    return loss, keras.tree.flatten(logits), plans


def support(**options):
    return LargeModelSupport(0, threshold_bytes=256, verbose=0, **options)


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_same_bits_when_all_that_can_be_is_given_up(kind, monkeypatch):
    monkeypatch.setattr(planner, "make_plan", all_that_may_go)
    loss, logits, _ = found(kind, None)
    for ways in (["swap"], ["recompute"]):
        one, other, plans = found(kind, support(allowed=ways))
        assert plans[-1].decisions
        assert one == loss
        for a, b in zip(logits, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_results_in_slabs_are_those_of_whole_ops(kind, monkeypatch):
    monkeypatch.setattr(planner, "make_plan", all_that_may_be_split)
    monkeypatch.setattr(chains, "MOST_SLABS", FEW_SLABS)
    policy = "float32" if kind in FLOAT32 else "float64"
    loss, logits, _ = found(kind, None, policy)
    one, other, plans = found(kind, support(), policy)
    assert bool(plans[-1].split) == (kind not in WHOLE)
    # oneDNN computes slabs of float32 in other orders than whole volumes.
    error = 1e-4 if policy == "float32" else 2e-6
    np.testing.assert_allclose(one, loss, rtol=error)
    for a, b in zip(logits, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=error, atol=error)
