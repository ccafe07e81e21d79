"""A threshold for all classes, or one for each of them."""

import numpy as np
import pytest
from PIL import Image

from tfunet.data.defects import DefectsError
from tfunet.data.source import open_source

ROWS = np.arange(40, dtype=np.uint8).repeat(48).reshape(40, 48)
MASKS = {"axon": "{case}_axon.png", "myelin": "{case}_myelin.png"}


@pytest.fixture
def folder(tmp_path):
    """One case: axons as values up to 200, myelin as numbered objects."""
    Image.fromarray(ROWS).save(tmp_path / "a_image.png")
    Image.fromarray(5 * ROWS).save(tmp_path / "a_axon.png")
    Image.fromarray((ROWS // 10) * (ROWS < 20)).save(tmp_path / "a_myelin.png")
    return tmp_path


def opened(folder, threshold, masks=MASKS):
    options = {"root": str(folder), "images": "{case}_image.png", "masks": masks}
    return open_source("folder", {**options, "threshold": threshold})


def test_each_class_has_its_own(folder):
    _, labels = opened(folder, {"myelin": 0, "axon": 127}).read_case(0)
    expected = np.where(ROWS * 5 > 127, 1, np.where((ROWS >= 10) & (ROWS < 20), 2, 0))
    np.testing.assert_array_equal(labels, expected)


def test_a_class_without_one_holds_one_value(folder):
    source = opened(folder, {"axon": 127})  # The values of myelin are 0 and 1.
    assert source.read_case(0)[1].max() == 2
    with pytest.raises((DefectsError, ValueError), match=r"a_axon\.png.*a mask of one class holds"):
        opened(folder, {"myelin": 0}).read_case(0)


def test_one_class_is_as_with_a_number(folder):
    masks = {"axon": MASKS["axon"]}
    table, number = (opened(folder, value, masks) for value in ({"axon": 99}, 99))
    np.testing.assert_array_equal(table.read_case(0)[1], number.read_case(0)[1])
    assert table.fingerprint == number.fingerprint


def test_other_thresholds_are_another_data_set(folder):
    prints = {
        opened(folder, threshold).fingerprint
        for threshold in (0, {"axon": 0}, {"myelin": 0}, {"axon": 1, "myelin": 0})
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("threshold", "message"),
    [
        ({"axons": 1}, "threshold= names the class 'axons'. Did you mean 'axon'"),
        ({"axon": "127"}, "must be a number or a table"),
        ({"axon": float("nan")}, "allowed: a number, such as 127"),
        (float("inf"), "a number, such as 127"),
    ],
)
def test_what_is_no_threshold_is_refused(threshold, message, folder):
    with pytest.raises(ValueError, match=message):
        opened(folder, threshold)
