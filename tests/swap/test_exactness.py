"""Training with large-model support gives the losses and weights of training without, bit for bit."""

import keras
import numpy as np
import pytest
from kinds import KINDS, batches

from tfunet.swap import LargeModelSupport

keras.utils.set_random_seed(0)

def trained(kind, callbacks, policy="float32", **options):
    """Return the losses of three steps, the weights after them, and the model."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = KINDS[kind]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss, **options)
        image, mask = batches(model, kind)
        losses = []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
        )
        model.fit(
            image, mask, batch_size=2, shuffle=False, verbose=0, callbacks=[keep, *callbacks]
        )
    finally:
        keras.config.set_dtype_policy("float32")
    return losses, model.get_weights(), model


def assert_same(one, other):
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_same_weights_when_all_that_can_be_is_swapped_or_recomputed(kind):
    without = trained(kind, [], jit_compile=False)
    for allowed in (("swap",), ("recompute",), ("swap", "recompute")):
        support = LargeModelSupport(0, threshold_bytes=256, allowed=allowed, verbose=0)
        assert_same(trained(kind, [support]), without)
        assert set(support.plans[-1].decisions.values()) <= set(allowed)
        if "swap" in allowed:
            assert support.plans[-1].decisions
