"""Keras metrics give for logits what they give for their probabilities."""

import keras
import numpy as np
import pytest

from tfunet.learning.logit_metrics import of_logits

RNG = np.random.default_rng(0)
MASK = RNG.integers(0, 2, (2, 8, 8))
LOGITS = RNG.normal(0.3, 1, (2, 8, 8, 1)).astype("float32")


def value(metric, output):
    model = keras.Sequential([keras.Input((8, 8, output.shape[-1])), keras.layers.Identity()])
    model.compile(loss="mse", metrics=[metric])
    compiled = model._compile_metrics
    compiled.update_state(MASK, output)
    (result,) = compiled.result().items()
    return result[0], float(np.ravel(result[1])[0])


@pytest.mark.parametrize(
    "name",
    [
        *("accuracy", "acc", "BinaryAccuracy", "binary_accuracy", "BinaryIoU", "Precision"),
        *("Recall", "TruePositives", "FalseNegatives", "AUC"),
    ],
)
def test_one_logit(name):
    (metric,) = of_logits([name], 1)
    same, plain = value(name, 1 / (1 + np.exp(-LOGITS)))
    assert value(metric, LOGITS) == (same, pytest.approx(plain, rel=1e-4))
    # That is not what the metric by its name alone gives.
    assert value(name, LOGITS)[1] != pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("name", ["SparseCategoricalCrossentropy", "sparse_categorical_accuracy"])
def test_a_logit_for_each_class(name):
    logits = np.concatenate([0 * LOGITS, LOGITS], -1)
    exponents = np.exp(logits)
    (metric,) = of_logits([name], 2)
    same, plain = value(name, exponents / exponents.sum(-1, keepdims=True))
    assert value(metric, logits) == (same, pytest.approx(plain, rel=1e-4))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BinaryAcuracy", "Unknown metric 'BinaryAcuracy'. Did you mean 'BinaryAccuracy'"),
        ("SparseCategoricalAccuracy", "needs a logit for each class, and the model gives one"),
        ("sparse_categorical_crossentropy", "needs a logit for each class"),
        ("MeanIoU", "'MeanIoU' needs options, which metrics= cannot give .*num_classes"),
    ],
)
def test_a_metric_that_cannot_be_made_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        of_logits([name], 1)
