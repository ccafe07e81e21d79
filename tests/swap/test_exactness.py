"""Large-model support changes no bit of losses and weights."""

import pytest
from kinds import KINDS
from strategies import AllThatMayGo
from supported_runs import assert_same, passed_with_onednn, trained

from tfunet.swap import LargeModelSupport

# Slabs change the last bits: test_in_slabs.py.
SOME_OF_BOTH = AllThatMayGo("swap", "recompute")


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_when_all_that_can_be_is_given_up(kind):
    support = LargeModelSupport(0, threshold_bytes=256, strategy=SOME_OF_BOTH, verbose=0)
    assert_same(trained(kind, [support]), trained(kind, []))
    assert support.plans[-1].decisions
    assert len(support.plans[-1].detours) > 3


def test_same_bits_with_onednn():
    kinds = "own or two or dropout or attention or subclassed or normalization"
    assert 5 <= passed_with_onednn("-k", f"given_up and ({kinds})", __file__) <= 9


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_same_bits_in_mixed_precision(policy):
    support = LargeModelSupport(0, threshold_bytes=256, strategy=SOME_OF_BOTH, verbose=0)
    kind = "nested"  # It normalises, in float32.
    assert_same(trained(kind, [support], policy), trained(kind, [], policy))
    assert support.plans[-1].decisions


# Layers of all ranks and types of tensor, a second derivative, random numbers.
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("unet 3D", "float32"),
        ("unet, batch", "float32"),
        ("own train_step", "float32"),
        ("dropout", "float32"),
        ("attention", "float32"),
        ("1D", "float32"),
        ("two outputs", "float32"),
        ("nested", "mixed_bfloat16"),
        ("nested", "mixed_float16"),
    ],
)
def test_same_bits_with_all_that_can_be_on_disk(kind, policy, tmp_path):
    support = LargeModelSupport(
        0, host=0, disk=tmp_path, strategy=AllThatMayGo("swap"), threshold_bytes=256, verbose=0
    )
    assert_same(trained(kind, [support], policy), trained(kind, [], policy))
    plan = support.plans[-1]
    assert sorted(plan.on_disk) == sorted(plan.decisions)
    assert plan.on_disk
    assert not list(tmp_path.iterdir())


def test_same_bits_with_some_on_disk_and_some_on_the_host(tmp_path):
    support = LargeModelSupport(
        0, host="20KiB", disk=tmp_path, strategy=SOME_OF_BOTH, threshold_bytes=256, verbose=0
    )
    assert_same(trained("unet, batch", [support]), trained("unet, batch", []))
    plan = support.plans[-1]
    assert 0 < len(plan.on_disk) < plan.count("swap")
