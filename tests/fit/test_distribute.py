"""`tfunet.distribute()` that comes too late, twice or where it cannot work."""

import subprocess
import sys

import pytest
import tensorflow as tf
from paths import ROOT

import tfunet

TWICE = """
import keras, tfunet
keras.utils.set_random_seed(3)
one = tfunet.distribute(backend="horovod")
assert (one.backend, one.num_replicas, one.is_chief) == ("single", 1, True), one
assert tfunet.distribute(backend="horovod") is one
keras.layers.Dense(1)(keras.ops.ones((1, 1)))
assert tfunet.distribute(backend="horovod") is one
try:
    tfunet.distribute(batch="replica")
except ValueError as error:
    print(error)
"""


def test_second_call_must_ask_the_same():
    done = subprocess.run(
        [sys.executable, "-c", TWICE], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == (
        "distribute() was called with batch='global', backend='horovod', and now with "
        "batch='replica', backend=None. Call it once.\n"
    )


def test_call_after_the_first_tensor_is_refused():
    tf.ones(1)
    with pytest.raises(ValueError, match=r"distribute\(\) came after TensorFlow took its devices"):
        tfunet.distribute()


def test_unknown_batch_is_refused():
    with pytest.raises(ValueError, match=r"Unknown batch 'globl'\. Did you mean 'global'\?"):
        tfunet.distribute(batch="globl")


def test_keras_that_does_not_run_on_tensorflow_is_refused(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND chooses the Keras backend 'jax'"):
        tfunet.distribute()


def test_keras_2_is_refused(monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    with pytest.raises(ValueError, match="TF_USE_LEGACY_KERAS makes Keras 2"):
        tfunet.distribute()
    monkeypatch.delenv("TF_USE_LEGACY_KERAS")
    monkeypatch.setitem(sys.modules, "tf_keras", sys)
    with pytest.raises(ValueError, match=r"This script uses tf_keras \(Keras 2\)"):
        tfunet.distribute()
