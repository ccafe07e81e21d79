"""The description of a model: its levels, and models that are not ours."""

import keras
import pytest

from tfunet.models import isensee, unet
from tfunet.models.describe import describe

UNET = {"filters": 4, "levels": 2, "convolutions": 1}


def test_levels_go_down_to_the_bottom_and_up_again():
    described = describe("unet", image_shape=(32, 16, 1), num_classes=3, options=UNET)
    assert [(level.side, level.spatial, level.channels) for level in described.levels] == [
        ("down", (32, 16), (4,)),
        ("down", (16, 8), (8,)),
        ("bottom", (8, 4), (16,)),
        ("up", (16, 8), (8, 8)),
        ("up", (32, 16), (4, 4, 3)),
    ]
    assert described.output_shape == (32, 16, 3)


@pytest.mark.parametrize("name", ["unet", "isensee", "cicek3d"])
def test_levels_hold_all_parameters(name):
    described = describe(name, image_shape=(32, 32, 32, 1), num_classes=2)
    total = described.num_trainable + described.num_non_trainable
    assert sum(level.num_parameters for level in described.levels) == total
    for level in described.levels:
        assert f"{level.num_parameters:,}" in str(described)


def test_a_saved_model_is_described_like_the_function_that_built_it(tmp_path):
    options = {"image_shape": (16, 16, 1), "num_classes": 2}
    path = tmp_path / "net.keras"
    unet.build(**options, **UNET).save(path)
    saved = describe(str(path), **options)
    built = describe("unet", **options, options=UNET)
    assert saved.levels == built.levels
    assert saved.receptive_field == built.receptive_field
    with pytest.raises(ValueError, match="every dimension"):
        describe(str(path), image_shape=(32, 32, 1), num_classes=2)


def test_a_function_in_the_users_file_is_described(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "import keras\n"
        "def build(*, image_shape, num_classes, width=2):\n"
        "    inputs = keras.Input(image_shape)\n"
        "    turned = keras.layers.Permute((2, 1, 3), name='turn')(inputs)\n"
        "    return keras.Model(inputs, keras.layers.Conv2D(num_classes, width)(turned))\n"
    )
    described = describe(
        f"{file}:build", image_shape=(8, 8, 1), num_classes=2, options={"width": 3}
    )
    assert described.num_trainable == 3 * 3 * 2 + 2
    assert described.receptive_field is None
    assert "not known: layer 'turn' of type Permute" in str(described)


def test_deeper_segmentations_are_listed_at_their_own_level():
    model = describe("isensee", image_shape=(32, 32, 1), num_classes=5)
    segmentations = [5 in level.channels for level in model.levels if level.side == "up"]
    assert segmentations == [False, True, True, True]


def test_the_graph_names_its_parts():
    model = isensee.build(image_shape=(32, 32, 1), num_classes=2)
    names = [layer.name for layer in model.layers]
    assert names[0] == "image"
    assert {"down0_context_dropout", "up3_localization1_convolution", "segmentation2"} <= {*names}
    assert isinstance(model.get_layer("down4_context_dropout"), keras.layers.SpatialDropout2D)


def test_an_encoder_is_a_row_of_its_own():
    described = describe(
        "unet",
        image_shape=(64, 32, 3),
        num_classes=2,
        options={
            "encoder": "MobileNetV3Small",
            # Neither the file nor what only training needs is looked at.
            "encoder_weights": "nowhere.h5",
            "deep_supervision": True,
            "filters": 2,
        },
    )
    (bottom,) = (level for level in described.levels if level.side == "bottom")
    assert (bottom.spatial, bottom.channels) == ((2, 1), (576,))
    assert bottom.num_parameters == 939_120
    assert "'encoder', a network inside the model" in described.receptive_field_unknown
    # The first convolution of the encoder alone: an input and an output of half the size.
    assert described.activation_bytes_float32 > 4 * (64 * 32 * 3 + 32 * 16 * 16)
