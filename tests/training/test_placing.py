"""What is told and refused before a run's first step, wherever its layers are."""

import numpy as np
import pytest
from paths import SUPPORT
from proving import built, processes

__all__ = ["processes"]
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(400)]
MODELS = SUPPORT / "proof_models.py"


@pytest.fixture(scope="module")
def holes(tmp_path_factory):
    """Data in which some pixels count for nothing."""
    root = tmp_path_factory.mktemp("holes")
    for case in range(4):
        image = np.random.default_rng(case).normal(size=(32, 32)).astype(np.float32)
        np.save(root / f"{case}_mask.npy", (image > 0).astype(np.uint8))
        image[3:9, 2:7] = np.nan
        np.save(root / f"{case}.npy", image)
    masks = {"cell": "{case}_mask.npy"}
    options = {"root": str(root), "images": "{case}.npy", "masks": masks, "fill": -3.0}
    return {"data": "folder", "data_options": options}


@pytest.mark.parametrize(
    "places",
    [
        {"num_replicas": 2},
        {"split": [2, 1]},
        # Two micro-batches; the second convolution begins the second stage.
        {"stages": 2, "micro_batches": 2, "balance": ["last"]},
    ],
    ids=lambda places: next(iter(places)),
)
@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ("plain", {"metrics": ["Precision"]}, "metrics=['Precision']: those of Keras cannot be"),
        ("slow", {}, "statistics of 1 batch normalisations still hold 100%"),
        # With the name of a layer that the model does not have, the cut would be refused, too.
        ("plain", {"metrics": ["accuracy"], "holes": True}, "=('accuracy',) would count them."),
        ("without_config", {}, "keeps the model's weights, model.weights.h5: Keras cannot save"),
    ],
)
def test_every_placing_tells_it(places, model, settings, words, holes, processes):
    has_holes = settings.get("holes")
    own = {key: value for key, value in settings.items() if key != "holes"}
    if has_holes:
        own |= holes
        places = {**places, **({"balance": ["nowhere"]} if "stages" in places else {})}
    said = processes.call(built, {"model": f"{MODELS}:{model}", **places, **own})
    assert words in said
