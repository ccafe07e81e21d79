"""Large-model support changes no bit of losses and weights."""

import pytest
from kinds import OF_EACH_SORT
from strategies import AllThatMayGo
from supported_runs import (
    assert_changes_no_bit,
    assert_changes_no_bit_on_disk,
    assert_same,
    forced,
    passed_with_onednn,
    plain,
    trained,
)


# Slabs change the last bits: test_in_slabs.py.
@pytest.mark.parametrize("kind", OF_EACH_SORT)
def test_same_bits_when_all_that_can_be_is_given_up(kind):
    assert_changes_no_bit(kind)


def test_same_bits_with_onednn():
    kinds = "own or two or dropout or attention or subclassed"
    assert passed_with_onednn("-k", f"given_up and ({kinds})", __file__) == 5


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_same_bits_in_mixed_precision(policy):
    assert_changes_no_bit("nested", policy)  # It normalises, in float32.


# Layers of all ranks and types of tensor, a second derivative, random numbers.
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("unet 3D", "float32"),
        ("own train_step", "float32"),
        ("dropout", "float32"),
        ("two outputs", "float32"),
        ("nested", "mixed_bfloat16"),
        ("nested", "mixed_float16"),
    ],
)
def test_same_bits_with_all_that_can_be_on_disk(kind, policy, tmp_path):
    assert_changes_no_bit_on_disk(kind, policy, tmp_path)


def test_same_bits_with_some_on_disk_and_some_on_the_host(tmp_path):
    support = forced(AllThatMayGo("swap", "recompute"), host="20KiB", disk=tmp_path)
    assert_same(trained("unet, batch", [support]), plain("unet, batch"))
    plan = support.plans[-1]
    assert 0 < len(plan.on_disk) < plan.count("swap")
