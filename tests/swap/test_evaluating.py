"""Evaluations and predictions within the budget: their results are those without support."""

import keras
import numpy as np
import pytest
from kinds import FEW_KINDS, KINDS, OF_EACH_SORT, batches
from strategies import AllThatMayBeSplit, AllThatMayGo
from supported_runs import FEW_SLABS, FLOAT32, WHOLE, forced

from tfunet.swap.plan import slab_chains


def evaluated(kind, strategy=None, policy="float32"):
    """Return the loss of an evaluation, the logits of a prediction, and the evaluation's plans.

    Without a strategy there is no support, and there are no plans.
    """
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
        callbacks = [forced(strategy)] if strategy else []
        loss = model.evaluate(image, mask, batch_size=2, verbose=0, callbacks=callbacks)
        plans = [plan for support in callbacks for plan in support.evaluation_plans]
        logits = model.predict(image, batch_size=2, verbose=0, callbacks=callbacks)
    finally:
        keras.config.set_dtype_policy("float32")
    return loss, keras.tree.flatten(logits), plans


@pytest.mark.parametrize("kind", OF_EACH_SORT)
def test_same_bits_when_all_that_can_be_is_given_up(kind):
    loss, logits, _ = evaluated(kind)
    supported_loss, supported_logits, plans = evaluated(kind, AllThatMayGo("swap", "recompute"))
    assert plans[-1].decisions
    assert supported_loss == loss
    for a, b in zip(logits, supported_logits, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_results_in_slabs_are_those_of_whole_ops(kind, monkeypatch):
    monkeypatch.setattr(slab_chains, "MOST_SLABS", FEW_SLABS)
    policy = "float32" if kind in FLOAT32 else "float64"
    loss, logits, _ = evaluated(kind, policy=policy)
    loss_in_slabs, logits_in_slabs, plans = evaluated(kind, AllThatMayBeSplit(), policy)
    assert bool(plans[-1].split) == (kind not in WHOLE)
    # oneDNN computes slabs of float32 in other orders than whole volumes.
    error = 1e-4 if policy == "float32" else 2e-6
    np.testing.assert_allclose(loss_in_slabs, loss, rtol=error)
    for a, b in zip(logits, logits_in_slabs, strict=True):
        np.testing.assert_allclose(a, b, rtol=error, atol=error)
