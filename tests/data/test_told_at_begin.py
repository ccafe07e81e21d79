"""What a run says at its begin about settings that may do something else than one thinks."""

import numpy as np
import pytest
from PIL import Image

from tfunet.arguments import from_dict
from tfunet.data.class_weights import class_weights
from tfunet.data.early_checks import check_early
from tfunet.data.source import open_source
from tfunet.data.told_at_begin import told_at_begin
from tfunet.learning.outputs import ClassOutputs
from tfunet.prediction.network import TrainedNetwork

CLASSES = {"sky": 0, "road": [3, 4], "background": []}


@pytest.fixture
def config(tmp_path):
    """A function that gives a configuration for images in which each pixel has a class."""
    for number in range(4):
        Image.fromarray(np.full((32, 32), 9, np.uint8)).save(tmp_path / f"{number}_i.png")
        Image.fromarray(np.eye(32, dtype=np.uint8) * 3).save(tmp_path / f"{number}_m.png")
    options = {"root": str(tmp_path), "images": "{case}_i.png", "masks": "{case}_m.png"}

    def made(classes=CLASSES, **settings):
        data_options = {**options, "classes": classes}
        return from_dict(
            {"data": "folder", "data_options": data_options, "replica_batch": 1, **settings}
        )

    return made


def told(config):
    source = open_source(config.data, config.data_options)
    return list(told_at_begin(config, source, class_weights(config, source)))


def test_an_encoder_without_a_file_of_weights_is_told(config):
    (line,) = told(config(model_options={"encoder": "MobileNetV2"}))
    assert line.startswith("The encoder MobileNetV2 begins with random weights.")
    assert "model_options.encoder_weights" in line
    assert told(config(model_options={"encoder": "MobileNetV2", "encoder_weights": "a.h5"})) == []
    assert told(config()) == []


def test_class_weights_are_named(config):
    three = {"loss_options": {"class_weights": [0.0, 1.0, 10.0]}}
    line = "class_weights: 0 background (no pixel has it) 0, 1 sky 1, 2 road 10."
    assert told(config(**three)) == [line]
    line = "class_weights: 0 background 0, 1 sky 1, 2 road 10."
    assert told(config({"sky": 1, "road": 3}, **three)) == [line]
    check_early(config(**three))
    message = r"has 2 numbers.* in this order: 0 background \(no pixel has it\), 1 sky, 2 road\."
    with pytest.raises(ValueError, match=message):
        check_early(config(loss_options={"class_weights": [1.0, 10.0]}))


def test_it_is_told_how_regions_are_written(config):
    classes = {"necrosis": 1, "edema": 2, "solid": 3, "enhancing": 4}
    regions = {"whole": list(classes), "core": ["necrosis", "solid", "enhancing"]}
    made = config(classes, outputs="regions")
    made.data_options["regions"] = {**regions, "enhancing": ["enhancing"]}
    assert told(made) == [
        "Regions are written into masks in this order: whole as 2 edema, core as 1 necrosis, "
        "enhancing as 4 enhancing. Never written, since no region tells it apart: 3 solid."
    ]
    (line,) = told(config(outputs="regions"))
    assert line == "Regions are written into masks in this order: sky as 1 sky, road as 2 road."


def test_a_prediction_names_classes_and_their_values_in_masks(config, tmp_path):
    def classes(config, names, values):
        network = TrainedNetwork(
            config=config,
            path=tmp_path / "model.keras",
            channels=1,
            num_classes=3,
            outputs=ClassOutputs(num_classes=3),
            patch=(32, 32),
            preparation=None,
            names=names,
            mask_values=values,
        )
        return network.classes()

    source = open_source("folder", config().data_options)
    assert classes(config(), ("1 sky", "2 road"), source.mask_values) == {
        "0": {"name": "background", "mask_values": []},
        "1": {"name": "sky", "mask_values": [0]},
        "2": {"name": "road", "mask_values": [3, 4]},
    }
    # A record without names tells only the numbers.
    assert classes(config(), (), ())["2"] == {"name": "2"}
