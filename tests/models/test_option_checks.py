"""Options are checked before Keras is imported, by what the builders check them with."""

import inspect
import subprocess
import sys

import pytest

from tfunet.models import (
    EXAMPLES,
    encoder_rules,
    encoders,
    isensee,
    isensee_plan,
    unet,
    unet_plan,
)
from tfunet.models.option_checks import check_options


@pytest.mark.parametrize("model", EXAMPLES)
def test_published_settings_are_taken(model):
    image_shape, num_classes = EXAMPLES[model]
    check_options(model, {}, image_shape=image_shape, num_classes=num_classes)


@pytest.mark.parametrize(
    ("build", "plan"), [(unet.build, unet_plan.plan), (isensee.build, isensee_plan.plan)]
)
def test_plan_takes_what_the_builder_takes(build, plan):
    assert list(inspect.signature(plan).parameters) == list(inspect.signature(build).parameters)


@pytest.mark.parametrize(
    ("model", "image_shape", "options", "message"),
    [
        ("summit_5_2", (48, 64, 4), {}, "must be a multiple of 32"),
        ("summit_5_2", (64, 64, 4), {"filters": 1}, "filters must be a whole number of at least 2"),
        ("cicek3d", (64, 64, 64, 1), {"levels": 0}, "levels"),
        ("cosmoflow2018", (64, 64, 64, 1), {}, "too small: convolution4"),
        ("nnunet3d", (64, 64, 1), {}, "3D network"),
        ("unet", (64, 64, 1), {"encoder": "MobileNetV2", "downsampling": "strided"}, "way down"),
        ("unet", (64, 64, 1), {"encoder_weights": "some.h5"}, "only with an encoder"),
        ("unet", (64, 64, 1), {"encoder": "MobileNetV2", "encoder_options": 3}, "must be a table"),
    ],
)
def test_a_value_is_refused(model, image_shape, options, message):
    with pytest.raises(ValueError, match=message):
        check_options(model, options, image_shape=image_shape, num_classes=2)


def test_keras_is_not_imported():
    code = (
        "import sys; from tfunet.models.option_checks import check_options\n"
        "try: check_options('nnunet2d', {'normalization': 'none!'}, image_shape=(128, 128, 1),"
        " num_classes=2)\n"
        "except ValueError as error: print(error)\n"
        "print(sorted({'keras', 'tensorflow'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.endswith("Allowed: none, batch, synchronized_batch, group, instance.\n[]\n")


def test_encoders_are_known_without_keras():
    assert list(encoder_rules.names()) == encoders.names()
