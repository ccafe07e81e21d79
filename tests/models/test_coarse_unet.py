"""The network of studies/large-models-resolution.toml, which sees at half the resolution."""

import keras
import numpy as np
import pytest
from paths import ROOT

from tfunet.models.make import make_model

FILE = ROOT / "studies" / "coarse_unet.py"


def make(shape, coarser):
    keras.utils.set_random_seed(0)
    options = {"coarser": coarser, "filters": 2, "levels": 2}
    return make_model(f"{FILE}:build", image_shape=shape, num_classes=3, options=options)


@pytest.mark.parametrize("shape", [(16, 24, 1), (16, 8, 24, 2)])
def test_both_resolutions_label_every_voxel_with_the_same_network(shape):
    whole, coarse = make(shape, 1), make(shape, 2)
    assert whole.output_shape == coarse.output_shape == (None, *shape[:-1], 3)
    assert [weight.shape for weight in whole.weights] == [weight.shape for weight in coarse.weights]


def test_the_coarse_one_sees_means_of_blocks_and_no_more():
    model = make((16, 16, 16, 1), 2)
    image = np.random.default_rng(0).normal(size=(1, 16, 16, 16, 1)).astype("float32")
    shuffled = image.reshape(1, 8, 2, 8, 2, 8, 2, 1)[:, :, ::-1, :, ::-1, :, ::-1]
    logits = model.predict(image, verbose=0)
    same = model.predict(shuffled.reshape(image.shape), verbose=0)
    np.testing.assert_allclose(logits, same, atol=1e-5)
    assert np.abs(logits - make((16, 16, 16, 1), 1).predict(image, verbose=0)).max() > 1e-3


def test_another_resolution_is_refused():
    with pytest.raises(ValueError, match="coarser must be 1 or 2, got 3"):
        make((24, 24, 1), 3)
