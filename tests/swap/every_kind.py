"""The kinds of model that test_exactness.py leaves out: make contract runs this file by name."""

import pytest
from kinds import KINDS, OF_EACH_SORT
from supported_runs import assert_changes_no_bit, assert_changes_no_bit_on_disk


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_EACH_SORT])
def test_same_bits_when_all_that_can_be_is_given_up(kind):
    assert_changes_no_bit(kind)


@pytest.mark.parametrize("kind", ["unet, batch", "attention", "1D"])
def test_same_bits_with_all_that_can_be_on_disk(kind, tmp_path):
    assert_changes_no_bit_on_disk(kind, "float32", tmp_path)
