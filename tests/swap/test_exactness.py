"""Large-model support changes no bit of losses and weights."""

import pytest
from kinds import KINDS
from strategies import AllThatMayGo
from supported_runs import assert_same, forced, passed_with_onednn, plain, trained

# Slabs change the last bits: test_in_slabs.py.
SOME_OF_BOTH = AllThatMayGo("swap", "recompute")


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_when_all_that_can_be_is_given_up(kind):
    support = forced(SOME_OF_BOTH)
    assert_same(trained(kind, [support]), plain(kind))
    assert support.plans[-1].decisions
    assert len(support.plans[-1].detours) > 3


def test_same_bits_with_onednn():
    kinds = "own or two or dropout or attention or subclassed or normalization"
    assert 5 <= passed_with_onednn("-k", f"given_up and ({kinds})", __file__) <= 9


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_same_bits_in_mixed_precision(policy):
    support = forced(SOME_OF_BOTH)
    kind = "nested"  # It normalises, in float32.
    assert_same(trained(kind, [support], policy), plain(kind, policy))
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
    support = forced(AllThatMayGo("swap"), host=0, disk=tmp_path)
    assert_same(trained(kind, [support], policy), plain(kind, policy))
    plan = support.plans[-1]
    assert sorted(plan.on_disk) == sorted(plan.decisions)
    assert plan.on_disk
    assert not list(tmp_path.iterdir())


def test_same_bits_with_some_on_disk_and_some_on_the_host(tmp_path):
    support = forced(SOME_OF_BOTH, host="20KiB", disk=tmp_path)
    assert_same(trained("unet, batch", [support]), plain("unet, batch"))
    plan = support.plans[-1]
    assert 0 < len(plan.on_disk) < plan.count("swap")
