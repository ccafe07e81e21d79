import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tfunet.config import keys
from tfunet.config.data_keys import SplitKeys
from tfunet.config.memory_keys import SWAP_KEYS, MemoryKeys
from tfunet.config.run import RunConfig, from_json


@pytest.mark.parametrize(
    ("given", "replica_batch", "global_batch"),
    [
        ({}, 4, 4),
        ({"num_replicas": 3, "replica_batch": 2}, 2, 6),  # weak scaling
        ({"num_replicas": 2, "global_batch": 8}, 4, 8),  # strong scaling
        ({"num_replicas": 2, "global_batch": 8, "replica_batch": 4}, 4, 8),
    ],
)
def test_batch_is_given_per_replica_or_for_all(given, replica_batch, global_batch):
    config = RunConfig(**given)
    assert (config.replica_batch, config.global_batch) == (replica_batch, global_batch)
    assert (config.replica_samples, config.global_samples) == (replica_batch, global_batch)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_replicas": 2, "global_batch": 7}, "cannot be divided"),
        ({"num_replicas": 2, "global_batch": 8, "replica_batch": 3}, "Give one of the two"),
        ({"replica_batch": 4, "accumulation": 3}, "equal passes"),
        ({"num_replicas": 0}, "at least 1, got 0"),
        ({"steps": 0}, "at least 1"),
        ({"validation_share": 1.0}, "between 0 and 1"),
        ({"learning_rate": 0.0}, "positive"),
        ({"precision": "float8"}, "Known: float32"),
        ({"outputs": "region"}, "Did you mean 'regions'"),
        (
            {"outputs": "regions", "metrics": ("dice", "accuracy")},
            "outputs = 'regions' cannot be combined with the metric 'accuracy'",
        ),
        ({"patch": (4,)}, "2 or 3 positive sizes"),
        ({"split": (2,)}, "each of the 2 or 3 axes"),
        ({"split": (1, 2, 1), "patch": (8, 8)}, "has 3 numbers, and a sample of shape"),
        ({"split": (1, 9), "patch": (16, 8)}, "has 8 rows there. Choose at most 8"),
        ({"stages": 0}, "stages must be at least 1"),
        ({"stages": 2, "micro_batches": 0}, "micro_batches must be at least 1"),
        ({"stages": 2, "micro_batches": 3}, "replica_batch=4 cannot be cut into micro_batches=3"),
        ({"stages": 2, "micro_batches": 8}, "replica_batch=4 cannot be cut into micro_batches=8"),
        ({"stages": 2, "schedule": "gpip"}, "Did you mean 'gpipe'"),
        ({"stages": 2, "batch_norm": "defered"}, "Did you mean 'deferred'"),
        ({"batch_norm": "deferred"}, "batch_norm = .deferred. has an effect only on a network in"),
        ({"stages": 2, "schedule": "v", "balance": ("a",)}, "needs, 3: .* chunks 2 and"),
        ({"stages": 2, "schedule": "v", "recompute": True}, "not built for schedule = .v."),
        ({"stages": 2, "balance": "size"}, 'write balance = ."size".'),
        ({"stages": 3, "balance": ("a",)}, "balance = ..a.. must name .* stages=3 needs, 2"),
        ({"stages": 3, "balance": ("a", "a")}, "must name as many different layers"),
        ({"stages": 2, "balance": ()}, "balance = .. must name as many different layers"),
        ({"stages": 2, "balance": "[1]"}, "a list of names of layers, .* got .1.."),
        ({"micro_batches": 2}, "micro_batches = 2 has an effect only on a network in stages"),
        ({"schedule": "gpipe"}, 'schedule = "gpipe" has an effect only on'),
        ({"balance": ("a",)}, "balance = .* has an effect only on"),
        ({"recompute": True}, "recompute = true has an effect only on"),
        ({"stages": 2, "split": (2, 1), "swap": "auto"}, 'with swap = "auto": plans of stages'),
        ({"stages": 2, "xla": True}, "combined with xla = true"),
        ({"stages": 2, "elastic": True}, "combined with elastic = true"),
        ({"stages": 2, "accumulation": 2}, "micro_batches cuts the batch into parts already"),
        ({"stages": 2, "precision": "mixed_float16"}, "one number for all stages"),
        ({"stages": 2, "optimizer_options": {"use_ema": True}}, "optimizer_options.use_ema"),
        ({"tiling": (2,)}, "tiling must have a number for each of the 2 or 3 axes"),
        ({"tiling": (2, 0)}, "tiling must be positive numbers"),
        ({"tiling": (2, 2, 1), "patch": (64, 64)}, "tiling = .* has 3 numbers, and a sample"),
        ({"tiling": (2, 65), "patch": (64, 64)}, "tiling = .* has 64 rows there"),
        (
            {"tiling": (3, 1), "global_batch": 1, "stages": 2, "micro_batches": 2},
            "micro_batches=2 must divide the 3 tiles that each replica takes in a step",
        ),
        (
            {"tiling": (2, 1), "stages": 2, "batch_norm": "deferred"},
            'combined with batch_norm = "deferred": each tile has moving statistics of its own',
        ),
        ({"tiling": (2, 1), "swap": "auto"}, 'combined with swap = "auto"'),
        ({"tiling": (2, 1), "xla": True}, "combined with xla = true: tiles have their own parts"),
        ({"tiling": (2, 1), "accumulation": 2}, "each tile is a pass of its own already"),
        ({"tiling": (2, 1), "pipeline": "device"}, 'combined with pipeline = "device"'),
        ({"tiling": (2, 1), "augmentation": {"rotation90": True}}, "augmentation.rotation90 needs"),
        ({"tiling": (2, 1), "augmentation": {"noise": 0.1}}, "augmentation.noise needs whole"),
        (
            {"tiling": (2, 1), "model_options": {"encoder": "MobileNet"}},
            "model_options.encoder cannot be combined with tiling = .2, 1.: .* or use split",
        ),
        (
            {"tiling": (3, 1), "global_batch": 1, "num_replicas": 2},
            "makes 3 tiles of a step's global_batch=1 samples, which cannot be shared",
        ),
        ({"tiling": (2, 1), "global_batch": 2, "replica_batch": 2, "num_replicas": 2}, "is not"),
        ({"zero": 3}, "zero must be one of 0, 1, 2, got 3"),
        ({"zero": 2, "stages": 2}, "zero = 2 cannot be combined with stages=2: .* zero = 1"),
        (
            {"zero": 2, "backend": "horovod", "backend_options": {"compression": "fp16"}},
            "combined with backend_options.compression: .* or leave out compression",
        ),
        ({"zero": 1, "xla": True}, "zero = 1 cannot be combined with xla: the exchange"),
        (
            {"zero": 1, "swap": "auto", "swap_weights": "state"},
            'zero = 1 cannot be combined with swap_weights = "state": .* leave out swap_weights',
        ),
        ({"warmup_epochs": -1}, "not be negative"),
        ({"on_bad_sample": "ignore"}, "Known: refuse, skip"),
        ({"folds": 1}, "folds must be at least 2"),
        ({"folds": 3, "fold": 3}, "between 0 and 2"),
        ({"fold": 1}, "Give folds too"),
        ({"folds": 3, "validation_groups": ("a",)}, "Give one of them"),
        ({"swap": "lots"}, "not an amount of memory"),
    ],
)
def test_bad_value_is_refused_with_what_is_allowed(given, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**given)


@pytest.mark.parametrize(
    ("given", "replica_samples", "replica_tiles"),
    [
        ({}, 4, 4),
        ({"global_batch": 2}, 2, 8),
        ({"global_batch": 2, "num_replicas": 2}, 1, 4),
        # Two replicas share each of these.
        ({"global_batch": 1, "num_replicas": 2}, 1, 2),
        ({"global_batch": 3, "num_replicas": 2}, 2, 6),
    ],
)
def test_replicas_share_out_the_tiles_of_a_step(given, replica_samples, replica_tiles):
    config = RunConfig(tiling=(2, 2) if given else (), **given)
    assert (config.replica_samples, config.replica_tiles) == (replica_samples, replica_tiles)
    assert from_json(config.to_json()) == config


def test_no_support_can_be_named_in_a_grid():
    assert RunConfig(swap="none") == RunConfig()


def test_json_gives_the_same_configuration_back():
    config = RunConfig(
        patch=(8, 8),
        model_options={"filters": [1, 2]},
        callbacks=({"name": "EarlyStopping", "patience": 2},),
        decay_epochs=(3, 4),
        num_replicas=2,
        global_batch=8,
        stages=3,
        balance=("first", "second"),
    )
    assert from_json(config.to_json()) == config


def test_a_record_with_a_key_that_is_gone_is_read():
    values = json.loads(RunConfig().to_json())
    for former in (None, "none", "bfloat16"):
        assert from_json(json.dumps({**values, "swap_compression": former})) == RunConfig()


def test_what_a_table_holds_is_what_a_file_could_hold():
    options = {"a": np.int64(3), "b": [np.float32(0.5)], "c": Path("x"), "d": {"e": (1, 2)}}
    config = RunConfig(model_options=options, callbacks=({"name": "X", "n": np.int64(2)},))
    assert config.model_options == {"a": 3, "b": [0.5], "c": "x", "d": {"e": (1, 2)}}
    assert json.loads(config.to_json())["callbacks"] == [{"name": "X", "n": 2}]


def test_every_key_stands_in_one_section_and_says_what_it_is():
    in_sections = [key.name for section in RunConfig.__bases__ for key in fields(section)]
    assert sorted(in_sections) == sorted(keys.KEYS)
    for key in fields(RunConfig):
        assert key.metadata.keys() - {"is_way"} == {"may_change"}, key.name


def test_lists_of_keys_follow_from_the_sections():
    assert (
        *("pipeline", "store"),
        *("stages", "micro_batches", "schedule", "balance", "recompute"),
        *("backend", "backend_options", "split", "processes", "shared_memory", "tiling"),
        "zero",
    ) == keys.WAY
    assert (
        *("model_options", "data_options", "augmentation", "backend_options"),
        *("loss_options", "optimizer_options", "tournament"),
    ) == keys.OPTIONS
    assert set(keys.MAY_CHANGE) == {
        *("num_replicas", "split", "replica_batch", "processes", "cores_per_replica"),
        *("stages", "schedule", "balance", "recompute", "elastic", "prove", "hang_seconds"),
        *("trace", "track", "share_cores", "shared_memory", "epoch_score", "layout", "store"),
        "zero",
        *("swap_host", "swap_disk", "swap_disk_size", "swap_weights"),
        *("cpu_memory", "gpu_memory"),
    }
    assert set(SWAP_KEYS) == {key.name for key in fields(MemoryKeys)} - {"cpu_memory", "gpu_memory"}
    assert SWAP_KEYS[0] == "swap"


def test_a_section_is_checked_alone():
    assert SplitKeys(folds=3, fold=2).skips_bad is False
    with pytest.raises(ValueError, match="between 0 and 2"):
        SplitKeys(folds=3, fold=3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("learning_rate", value) for value in (0.0, -1e-3, math.inf, math.nan)),
        *(("decay_factor", value) for value in (-0.1, math.inf, math.nan)),
        *(("warmup_epochs", value) for value in (-1.0, math.inf, math.nan)),
        *(("hang_seconds", value) for value in (-1.0, math.nan)),
        *(("validation_share", value) for value in (0.0, 1.0, math.nan)),
        *(("foreground_share", value) for value in (-0.1, 1.1, math.nan)),
        *(("seed", value) for value in (-1, 2**32, 10**30)),
        ("decay_epochs", (2, -1)),
    ],
)
def test_a_number_that_no_run_can_have_is_refused(key, value):
    with pytest.raises(ValueError, match=key):
        RunConfig(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("patch", (48, 64), "48x64"),
        ("split", [2, 1], "2x1"),
        ("data_options.patch", [32, 32], "32x32"),
        ("loss_options.class_weights", [0.5, 2.0], "[0.5, 2]"),
        ("augmentation.flips", [0, 1], "[0, 1]"),
        ("model_options.encoder_filters", [[8], [16, 16]], "[[8], [16, 16]]"),
        ("decay_epochs", (), "-"),
        ("xla", True, "yes"),
    ],
)
def test_only_sizes_are_written_with_an_x(key, value, text):
    assert keys.show_setting(key, value) == text
    assert keys.describe({key: value}) == f"{key}={text}"
