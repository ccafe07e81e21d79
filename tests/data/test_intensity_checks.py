"""Intensities of another scale than the training's are told."""

import numpy as np
import pytest

from tfunet.data.intensity_checks import IntensityChecks

# Half of it is dark, as around the sample under a microscope.
EIGHT_BITS = np.repeat([0, 40, 0, 220], 16).astype(np.float32)
FIXED = {"mean": (90.0,), "deviation": (60.0,)}
CLIPPED = {**FIXED, "low": (0.0,), "high": (255.0,)}


@pytest.mark.parametrize(
    ("scale", "trained"),
    [((0.0, 255.0), ()), (FIXED, ()), (CLIPPED, ()), ("none", (0.0, 255.0))],
)
@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (1, ""),
        (0.5, ""),
        (4, "25% of its values, up to 880, lie above"),
        (257, "of its values, up to 56540, lie above"),
        (1 / 255, "its values, 0 to 0.862745, fill only"),
    ],
)
def test_another_scale_than_the_training_is_told(scale, trained, factor, told):
    checks = IntensityChecks(scale, trained)
    checks.add(EIGHT_BITS * np.float32(factor))
    notes = checks.notes()
    assert len(notes) == bool(told)
    assert not told or told in notes[0]


def test_a_scale_that_each_image_has_for_itself_is_not_told():
    for scale in ("zscore", {"clip": (1.0, 99.0)}, "none"):
        checks = IntensityChecks(scale, () if scale == "none" else (-1.0, 1.0))
        checks.add(EIGHT_BITS * 257)
        assert not checks.notes()


def test_bone_above_a_window_of_ct_is_not_told():
    checks = IntensityChecks((-160.0, 240.0))
    checks.add(np.array([*[-1000.0] * 500, *[30.0] * 320, *[1500.0] * 180], np.float32))
    assert not checks.notes()


def test_a_little_metal_in_a_window_of_ct_is_not_told():
    checks = IntensityChecks((-160.0, 240.0))
    checks.add(np.array([*[-1000.0] * 500, *[30.0] * 495, *[9000.0] * 5], np.float32))
    assert not checks.notes()
