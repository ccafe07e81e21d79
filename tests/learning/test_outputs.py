"""Logits become probabilities and labels."""

import numpy as np
import pytest

from tfunet.learning.outputs import ClassOutputs, RegionOutputs

TUMOUR = RegionOutputs(regions={"whole": (1, 2, 3, 4), "core": (1, 3, 4), "enhancing": (4,)})


@pytest.mark.parametrize(
    ("inside", "label"),
    [
        ((0, 0, 0), 0),
        ((1, 0, 0), 2),
        ((1, 1, 0), 1),
        ((1, 1, 1), 4),
        # An inner region is written though the network sees no outer one, as by nnU-Net.
        ((0, 0, 1), 4),
        ((0, 1, 0), 1),
        ((1, 0, 1), 4),
    ],
)
def test_the_innermost_region_is_written(inside, label):
    logits = np.where(inside, 2.0, -1.0).astype(np.float32).reshape(1, 1, 1, 3)
    assert TUMOUR.labels(logits).numpy().tolist() == [[[label]]]
    probabilities = TUMOUR.probabilities(logits)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits)), atol=1e-6)
    assert TUMOUR.most_probable(probabilities).tolist() == [[[label]]]
    assert TUMOUR.most_probable(probabilities).dtype == np.uint8


def test_half_is_outside():
    assert TUMOUR.labels(np.zeros((1, 2, 2, 3), np.float32)).numpy().max() == 0
    assert TUMOUR.most_probable(np.full((1, 2, 2, 3), 0.5, np.float32)).max() == 0


def test_one_region_is_one_logit_of_its_label():
    outputs = RegionOutputs(regions={"cell": (3,)})
    assert outputs.num_probabilities == 1
    logits = np.array([[[-1.0], [1.0]]], np.float32)
    assert outputs.labels(logits).numpy().tolist() == [[0, 3]]
    assert outputs.probabilities(logits).shape == (1, 2, 1)


def test_one_logit_of_classes_is_the_foreground():
    outputs = ClassOutputs(num_classes=2)
    logits = np.array([[[-1.0], [1.0]]], np.float32)
    assert outputs.labels(logits).numpy().tolist() == [[0, 1]]
    probabilities = outputs.probabilities(logits)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-6)
    assert outputs.most_probable(probabilities).tolist() == [[0, 1]]
