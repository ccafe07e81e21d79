"""The proof before the first step finds each wrong rule, and names what it spoils."""

import re

import pytest
import wrong_rules
from paths import SUPPORT
from proving import processes, proof

__all__ = ["processes"]
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(400)]


def of(model, **settings):
    return {"model": f"{SUPPORT / 'proof_models.py'}:{model}", **settings}


BORDERS = f"{SUPPORT / 'proof_models.py'}:Borders"
RULES = [
    ("all_layers_are_pointwise", of("over_space", split=[2, 1]), r"layer 'over_space' \(Softmax\)"),
    (
        "all_losses_are_pixelwise",
        of("plain", split=[2, 1], loss=BORDERS),
        r"the loss 'borders(_\d+)?'",
    ),
    ("each_pass_changes_states", of("moving_mean", accumulation=2), "the state 'moving/mean'"),
    (
        "each_pass_changes_states",
        of("moving_mean", stages=2, micro_batches=2),
        "the state 'moving/mean'",
    ),
    (
        "replicas_share_terms",
        of("penalized", split=[2, 1]),
        "the loss .*, or what 'first' adds to it",
    ),
    ("halo_is_a_row_too_small", of("plain", split=[2, 1]), r"the layer 'first' \(Conv2D\)"),
    ("gradients_are_summed", of("plain", num_replicas=2), "the gradient of 'first/kernel'"),
    (
        "all_replicas_get_the_first_ones_samples",
        of("plain", num_replicas=2),
        "the loss 'dice_crossentropy'",
    ),
    (
        "metrics_are_of_the_first_replica",
        of("plain", num_replicas=2, metrics=["accuracy"]),
        "the recorded metric '.*accuracy'",
    ),
    (
        "halo_of_tiles_is_a_row_too_small",
        of("plain", tiling=[2, 1], loss="crossentropy"),
        "the loss 'crossentropy'",
    ),
    ("a_share_is_skipped", of("plain", num_replicas=2, zero=1), "the same gradients in '"),
    ("a_share_is_updated_twice", of("plain", num_replicas=2, zero=1), "the same gradients in '"),
    ("a_share_comes_back_stale", of("plain", num_replicas=2, zero=1), "the same gradients in '"),
    ("a_gradient_misses_a_replica", of("plain", num_replicas=2, zero=2), "the gradient of '"),
    (
        "each_stage_clips_alone",
        of("plain", stages=2, optimizer_options={"global_clipnorm": 1e-3}),
        "what the optimizer makes of the same gradients in 'first/kernel'",
    ),
]


@pytest.mark.parametrize(("rule", "settings", "name"), RULES)
def test_wrong_rule_is_found_by_name(rule, settings, name, processes):
    right = processes.call(proof, settings)
    assert right["is_proved"], right
    said = processes.call(proof, settings, getattr(wrong_rules, rule))
    assert isinstance(said, str), said
    assert re.search(f"First of all, .*{name}.* differs", said), said
