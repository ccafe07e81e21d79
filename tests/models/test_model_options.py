"""What the builders refuse, and what they then say."""

import re
import subprocess
import sys

import pytest

from tfunet.config.typed_values import kinds_of
from tfunet.models import EXAMPLES, cosmoflow, isensee, presets, unet
from tfunet.models.describe import describe
from tfunet.models.make import make_model
from tfunet.models.plans import PLANS, plan_model
from tfunet.models.preset_settings import base_of


def early(model, *, image_shape, num_classes, **options):
    """Return what is said of options before Keras is imported."""
    try:
        plan_model(model, options, image_shape=image_shape, num_classes=num_classes)
    except ValueError as refusal:
        return str(refusal)
    return "nothing"


UNET_REFUSALS = [
    # Options, and parts of the message: what came, what is allowed, the near match.
    ({"normalization": "instnace"}, ["'instnace'", "Did you mean 'instance'?", "none, batch,"]),
    ({"activation": "leakyrelu"}, ["'leakyrelu'", "'leaky_relu'", "relu, leaky_relu, elu"]),
    ({"upsampling": "bilinear"}, ["'bilinear'", "transposed, nearest, linear"]),
    ({"downsampling": "stride"}, ["'stride'", "Did you mean 'strided'?"]),
    ({"filters": 0}, ["filters must be a whole number of at least 1, got 0"]),
    ({"filters": 1.5}, ["filters", "1.5"]),
    ({"convolutions": 0}, ["convolutions", "at least 1"]),
    ({"levels": 0}, ["levels", "at least 1"]),
    ({"levels": True}, ["levels", "True"]),
    ({"dropout": 1.0}, ["dropout", "less than 1, got 1.0"]),
    ({"bottom_dropout": -0.1}, ["bottom_dropout", "-0.1"]),
    ({"residual": "false"}, ["model_options.residual must be true or false", "'false'"]),
    ({"bias": "yes"}, ["bias", "'yes'"]),
    ({"affine": 1}, ["affine", "1"]),
    ({"normalization": "group", "filters": 12}, ["groups=8", "does not divide 12"]),
    ({"groups": 4}, ["groups is for normalization 'group' only", "'instance'"]),
    ({"negative_slope": 0.1, "activation": "relu"}, ["negative_slope", "'leaky_relu' only"]),
    ({"negative_slope": -1}, ["negative_slope", "-1"]),
    ({"upsampling": "nearest", "upsampling_filters": [8] * 4}, ["upsampling_filters", "'nearest'"]),
    ({"upsampling_filters": [8, 8]}, ["upsampling_filters must have 4 rows", "got 2"]),
    ({"encoder_filters": [[8]] * 4}, ["encoder_filters must have 5 rows", "got 4"]),
    ({"decoder_filters": [[8]] * 3 + [[]]}, ["decoder_filters", "at least one convolution"]),
    ({"encoder_filters": [[8]] * 4 + [[0]]}, ["encoder_filters", "at least 1, got 0"]),
    ({"encoder_filters": 8}, ["encoder_filters must be a list of lists", "got 8"]),
    ({"decoder_filters": [8] * 4}, ["decoder_filters must be a list of lists", "got [8, 8"]),
    ({"upsampling_filters": 8}, ["upsampling_filters must be a list of whole numbers", "got 8"]),
    (
        {"encoder_filters": [[8]] * 5, "decoder_filters": [[8]] * 4, "filters": 8},
        ["filters", "give one or the other"],
    ),
    ({"image_shape": (64, 1)}, ["(*spatial, channels)", "(64, 1)"]),
    ({"image_shape": (64, 64, 0)}, ["channels", "got 0"]),
    ({"image_shape": (64, 64, None)}, ["channels", "got 0"]),
    ({"image_shape": (64, -64, 1)}, ["spatial size", "-64"]),
    ({"num_classes": 0}, ["num_classes", "got 0"]),
    # One voxel at the bottom has no deviation: its instance-normalized value is always zero.
    ({"image_shape": (16, 16, 1)}, ["single voxel", "(16, 16)"]),
]


@pytest.mark.parametrize(("options", "parts"), UNET_REFUSALS, ids=str)
def test_unet_refuses_and_says_what_is_allowed(options, parts):
    given = {"image_shape": (64, 64, 1), "num_classes": 2, **options}
    with pytest.raises(ValueError, match=re.escape(parts[0])) as refusal:
        unet.build(**given)
    for part in parts:
        assert part in str(refusal.value)
    assert early("unet", **given) == str(refusal.value)


COSMOFLOW_REFUSALS = [
    ({"image_shape": (64, 64, 1)}, ["volumes of one size", "(64, 64, 1)"]),
    ({"image_shape": (None, 64, 64, 1)}, ["volumes of one size", "None"]),
    ({"image_shape": (64, 64, 40, 1)}, ["multiple of 32", "40 in dimension 2"]),
    ({"pooling": "mean"}, ["'mean'", "max, average"]),
    ({"dense": 128}, ["dense must be a list of whole numbers", "128"]),
    ({"dense": [0]}, ["each entry of dense", "got 0"]),
    ({"flat_dropout": 1}, ["flat_dropout", "less than 1"]),
    ({"scaled_tanh": "no"}, ["scaled_tanh", "'no'"]),
]


@pytest.mark.parametrize(("options", "parts"), COSMOFLOW_REFUSALS, ids=str)
def test_cosmoflow_refuses_and_says_what_is_allowed(options, parts):
    given = {"image_shape": (64, 64, 64, 1), "num_classes": 4, **options}
    with pytest.raises(ValueError, match=re.escape(parts[0])) as refusal:
        cosmoflow.build(**given)
    for part in parts:
        assert part in str(refusal.value)
    assert early("cosmoflow", **given) == str(refusal.value)


@pytest.mark.parametrize("model", EXAMPLES)
def test_published_settings_are_taken(model):
    image_shape, num_classes = EXAMPLES[model]
    plan_model(model, {}, image_shape=image_shape, num_classes=num_classes)
    assert len(kinds_of(PLANS[base_of(model)][0])) > 5


@pytest.mark.parametrize(
    ("model", "image_shape", "options", "message"),
    [
        ("summit_5_2", (48, 64, 4), {}, "must be a multiple of 32"),
        ("summit_5_2", (64, 64, 4), {"filters": 1}, "filters must be a whole number of at least 2"),
        ("cicek3d", (64, 64, 64, 1), {"levels": 0}, "levels"),
        ("cicek3d", (64, 64, 64, 1), {"dropuot": 0}, "'cicek3d' has no option 'dropuot'. Did you"),
        ("cosmoflow2018", (64, 64, 64, 1), {}, "too small: convolution4"),
        ("cosmoflow2018", (128, 128, 128, 1), {"levels": 3}, "has no option 'levels'"),
        ("nnunet3d", (64, 64, 1), {}, "3D network"),
        ("unet", (64, 64, 1), {"epochs": 3}, "epochs is a key of the run"),
        ("unet", (64, 64, 1), {"encoder": "MobileNetV2", "downsampling": "strided"}, "way down"),
        ("unet", (64, 64, 1), {"encoder_weights": "some.h5"}, "only with an encoder"),
        ("unet", (64, 64, 1), {"encoder": "MobileNetV2", "encoder_options": 3}, "must be a table"),
    ],
)
def test_options_are_refused_without_keras(model, image_shape, options, message):
    with pytest.raises(ValueError, match=message):
        plan_model(model, options, image_shape=image_shape, num_classes=2)


def test_keras_is_not_imported():
    code = (
        "import sys; from tfunet.models.plans import plan_model\n"
        "try: plan_model('nnunet2d', {'normalization': 'none!'}, image_shape=(128, 128, 1),"
        " num_classes=2)\n"
        "except ValueError as error: print(error)\n"
        "print(sorted({'keras', 'tensorflow'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.endswith("Allowed: none, batch, synchronized_batch, group, instance.\n[]\n")


def test_the_first_cosmoflow_refuses_small_volumes_and_unknown_options():
    shape = {"image_shape": (64, 64, 64, 1), "num_classes": 3}
    with pytest.raises(ValueError, match="too small: convolution4 has kernels of 3 cubed"):
        cosmoflow.mathuriya2018(**shape)
    with pytest.raises(ValueError, match="'cosmoflow2020' has no option 'poling'"):
        make_model("cosmoflow2020", **shape, options={"poling": "max"})


SIZES = [
    # image_shape, levels, what the message must say of the sizes.
    ((100, 96, 1), 4, ["multiple of 16", "100 in dimension 0", "96 or 112", "2 is the most"]),
    ((64, 64, 50, 1), 3, ["multiple of 8", "50 in dimension 2", "48 or 56", "1 is the most"]),
    ((60, 62, 1), 3, ["60 in dimension 0", "62 in dimension 1", "56 or 64"]),
    ((8, 64, 1), 4, ["8 in dimension 0 (nearest allowed: 16)"]),  # nothing below but zero
    ((65, 64, 1), 1, ["65 in dimension 0", "0 is the most"]),
]


@pytest.mark.parametrize(("image_shape", "levels", "parts"), SIZES)
def test_indivisible_size_is_named_with_the_nearest_allowed(image_shape, levels, parts):
    with pytest.raises(ValueError, match="must be a multiple") as refusal:
        unet.build(image_shape=image_shape, num_classes=1, levels=levels)
    for part in parts:
        assert part in str(refusal.value)


ISENSEE_REFUSALS = [
    ({"image_shape": (40, 32, 1)}, ["multiple of 16", "depth=5", "32 or 48"]),
    ({"depth": 1}, ["depth", "at least 2"]),
    ({"segmentation_levels": 5}, ["segmentation_levels", "at most depth - 1 = 4", "got 5"]),
    ({"filters": 0}, ["filters"]),
    ({"dropout": 2}, ["dropout"]),
    ({"pre_activation": 0}, ["pre_activation"]),
    ({"narrow_localization": None}, ["narrow_localization"]),
    ({"normalization": "batchnorm"}, ["Did you mean 'batch'?"]),
    ({"image_shape": (16, 16, 16, 1)}, ["single voxel"]),
]


@pytest.mark.parametrize(("options", "parts"), ISENSEE_REFUSALS, ids=str)
def test_isensee_refuses_and_says_what_is_allowed(options, parts):
    given = {"image_shape": (64, 64, 1), "num_classes": 2, **options}
    with pytest.raises(ValueError, match=re.escape(parts[0])) as refusal:
        isensee.build(**given)
    for part in parts:
        assert part in str(refusal.value)
    assert early("isensee", **given) == str(refusal.value)


SMALLEST = [
    # The options, and a size that only the right number of halvings divides.
    (unet.build, {"levels": 3, "filters": 2}, 24),
    (isensee.build, {"depth": 3, "filters": 2, "segmentation_levels": 2}, 12),
]


@pytest.mark.parametrize(("build", "options", "size"), SMALLEST)
def test_a_size_that_the_halvings_divide_is_taken(build, options, size):
    model = build(image_shape=(size, 2 * size, 1), num_classes=2, **options)
    assert model.output.shape == (None, size, 2 * size, 2)


PRESET_REFUSALS = [
    (presets.cicek3d, (64, 64, 1), {}, "cicek3d is a 3D network"),
    (presets.ronneberger2d, (32, 32, 32, 1), {}, "ronneberger2d is a 2D network"),
    (presets.summit_5_2, (64, 64, 64, 1), {}, "summit_5_2 is a 2D network"),
    (presets.nnunet2d, (64, 64, 64, 1), {}, "nnunet2d is a 2D network"),
    (presets.nnunet3d, (64, 64, 1), {}, "nnunet3d is a 3D network"),
    (presets.cicek3d, (64, 64, 64, 1), {"dropuot": 0.1}, "Did you mean 'dropout'"),
    (presets.isensee_3dunetcnn, (64, 64, 1), {"levels": 3}, "no option 'levels'"),
    # The tables of a preset follow its filters and convolutions; others would change nothing.
    (presets.summit_5_2, (64, 64, 1), {"max_filters": 64}, "give one or the other"),
    (
        presets.summit_5_2,
        (64, 64, 1),
        {"convolutions": 0},
        "convolutions must be a whole number of at least 1",
    ),
]


@pytest.mark.parametrize(("build", "image_shape", "options", "message"), PRESET_REFUSALS)
def test_preset_refuses_what_its_publication_does_not_have(build, image_shape, options, message):
    with pytest.raises(ValueError, match=message):
        build(image_shape=image_shape, num_classes=1, **options)


@pytest.mark.parametrize(
    ("image_shape", "batch", "message"),
    [((None, 64, 1), 1, "every dimension"), ((64, 64, 1), 0, "batch"), ((64, 1), 1, "spatial")],
)
def test_describe_refuses_what_has_no_shapes(image_shape, batch, message):
    with pytest.raises(ValueError, match=message):
        describe("unet", image_shape=image_shape, num_classes=2, batch=batch)
