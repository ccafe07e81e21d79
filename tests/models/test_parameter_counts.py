"""The published numbers of parameters come out exactly, the largest without being allocated."""

import math
import subprocess
import sys

import pytest

from tfunet.models import cosmoflow, presets
from tfunet.models.describe import describe
from tfunet.models.symbolic import build_symbolic

# torchgpipe's U-Net (poolings, convolutions), 4 channels, 1 class.
SUMMIT = {
    "summit_5_2": 72_301_856,
    "summit_5_5": 232_687_904,
    "summit_6_2": 289_357_088,
    "summit_7_2": 1_157_578_016,
}


@pytest.mark.parametrize(("name", "count"), SUMMIT.items())
def test_summit_models_have_the_published_number_of_parameters(name, count):
    described = describe(name, image_shape=(256, 256, 4), num_classes=1)
    assert (described.num_trainable, described.num_non_trainable) == (count, 0)


# (convolutions, filters) with 3 channels, in torchgpipe's benchmark of memory: in millions.
@pytest.mark.parametrize(
    ("convolutions", "filters", "millions"), [(6, 72, 362.2), (11, 128, 2210), (24, 160, 7800)]
)
def test_summit_models_of_other_sizes_have_the_published_number(convolutions, filters, millions):
    options = {"convolutions": convolutions, "filters": filters}
    described = describe("summit_5_2", image_shape=(192, 192, 3), num_classes=1, options=options)
    assert described.num_trainable / 1e6 == pytest.approx(millions, rel=0.002)


def test_cicek_has_the_published_number_of_parameters_beside_batch_normalization():
    model = build_symbolic(
        lambda: presets.cicek3d(image_shape=(64, 64, 64, 3), num_classes=3), precision="float32"
    )
    normalizations = [
        operation for operation in model.layers if "Normalization" in type(operation).__name__
    ]
    assert len(normalizations) == 14
    inside = sum(layer.count_params() for layer in normalizations)
    assert model.count_params() - inside == 19_069_955


def test_first_unet_has_the_parameters_counted_elsewhere():
    # The figure of the common Keras and PyTorch versions with transposed convolutions.
    described = describe("ronneberger2d", image_shape=(256, 256, 1), num_classes=1)
    assert described.num_trainable == 31_030_593


# Oyama et al. 2020, table 1: 9.44 million at each size. MLPerf HPC 1.0: counted from its settings.
COSMOFLOW = {
    ("cosmoflow", 128): 27 * (4 * 32 + 32 * 64 + 64 * 128 + 128 * 256 + 256 * 512)
    + (32 + 64 + 128 + 256 + 512)
    + (4**3 * 512 + 1) * 128
    + (128 + 1) * 64
    + (64 + 1) * 4,
    **{("cosmoflow2020", size): 9_438_644 for size in (128, 256, 512)},
}


@pytest.mark.parametrize(("name", "size"), COSMOFLOW)
def test_cosmoflow_has_the_published_number_of_parameters(name, size):
    described = describe(name, image_shape=(size, size, size, 4), num_classes=4)
    assert described.num_trainable == COSMOFLOW[name, size]
    assert sum(level.num_parameters for level in described.levels) == described.num_trainable
    assert described.levels[-1].side == "dense"
    assert described.output_shape == (4,)
    assert "not known: model 'cosmoflow', whose output is no image" in str(described)


def test_the_first_cosmoflow_has_the_published_size():
    model = build_symbolic(
        lambda: cosmoflow.mathuriya2018(image_shape=(128, 128, 128, 1), num_classes=3),
        precision="float32",
    )
    kernels = [weight for weight in model.trainable_weights if len(weight.shape) > 1]
    # The paper says 28.15 MB; its own code has biases beside that.
    assert sum(math.prod(weight.shape) for weight in kernels) * 4 == 28_152_512
    assert [layer.output.shape[1] for layer in model.layers if "Conv" in type(layer).__name__] == [
        *(126, 60, 27, 6, 4, 3, 2),
    ]


def _convolution(size: int, channels: int, filters: int, *, bias: bool) -> int:
    return size**3 * channels * filters + (filters if bias else 0)


def _isensee_by_hand(channels: int, classes: int, *, wide: bool, bias: bool) -> int:
    """Parameters counted from the figure of the paper (wide), or from 3DUnetCNN's arrangement."""
    total, entering = 0, channels
    for level in range(5):
        filters = 16 * 2**level
        total += _convolution(3, entering, filters, bias=bias)
        total += 2 * _convolution(3, filters, filters, bias=bias)
        total += 3 * 2 * filters  # three normalizations with scale and centre
        entering = filters
    for level in range(4):
        filters = 16 * 2**level
        inner = 2 * filters if wide else filters
        total += _convolution(3, 2 * filters, filters, bias=bias) + 2 * filters
        total += _convolution(3, 2 * filters, inner, bias=bias) + 2 * inner
        if level > 0 or not wide:
            total += _convolution(1, inner, filters, bias=bias) + 2 * filters
        if level < 3:
            last = inner if level == 0 else filters
            total += _convolution(1, last, classes, bias=True)
    return total


@pytest.mark.parametrize(
    ("name", "wide", "bias"), [("isensee", True, False), ("isensee_3dunetcnn", False, True)]
)
def test_isensee_models_have_the_parameters_counted_by_hand(name, wide, bias):
    described = describe(name, image_shape=(32, 32, 32, 4), num_classes=3)
    assert described.num_trainable == _isensee_by_hand(4, 3, wide=wide, bias=bias)


LARGEST = """
import resource
import keras
from tfunet.models.describe import describe

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak_bytes()
described = describe("summit_7_2", image_shape=(256, 256, 4), num_classes=1)
# The next stateless scope of anybody initializes what Keras noted as still without a value.
with keras.StatelessScope():
    pass
print(described.num_trainable, peak_bytes() - before)
"""


def test_describing_the_largest_model_allocates_none_of_its_weights():
    printed = subprocess.run(
        [sys.executable, "-c", LARGEST], capture_output=True, text=True, check=True, timeout=280
    ).stdout
    count, grown_bytes = map(int, printed.split()[-2:])
    assert count == SUMMIT["summit_7_2"]
    # Its weights are 4.6 GB, its largest kernel 1.2 GB.
    assert grown_bytes < 200 * 2**20
