"""What a proof compares, on which samples, what it leaves out and what it keeps."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import layers

from tfunet.arguments import from_dict
from tfunet.config.run import RunConfig
from tfunet.geometry.grid import grid
from tfunet.proof import kept, small
from tfunet.proof.differences import Difference, of_gradients, of_losses, of_values, share_of, worst
from tfunet.proof.left_out import in_words, left_out
from tfunet.proof.prove import ways_of
from tfunet.training.tiling import Tiles

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("one", "other", "least", "share"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, 0.0),
        ([1.0, 2.0], [1.0, 1.0], 0.0, 0.5),
        ([-4.0, 2.0], [-4.0, 1.0], 0.0, 0.25),  # Signs do not count.
        ([0.0], [1e-9], 0.0, 1.0),
        ([0.0], [1e-9], 1.0, 1e-9),
        ([0.0, 0.0], [0.0, 0.0], 0.0, 0.0),
        ([NAN, 1.0], [NAN, 1.0], 0.0, 0.0),
        ([INF], [INF], 0.0, 0.0),
        ([NAN], [1.0], 0.0, INF),
        ([INF], [1.0], 0.0, INF),
        ([INF], [-INF], 0.0, INF),
        ([1.0], [1.0, 1.0], 0.0, INF),
        ([[1.0]], [1.0], 0.0, INF),
        ([], [], 0.0, 0.0),
        (3, 3.0, 0.0, 0.0),
        (np.uint8(1), np.uint8(2), 0.0, 0.5),  # Whole numbers do not wrap around.
    ],
)
def test_difference_is_a_share_of_the_largest_number(one, other, least, share):
    assert share_of(one, other, least) == pytest.approx(share)
    assert share_of(other, one, least) == pytest.approx(share)


def test_losses_are_told_from_what_is_recorded():
    found = of_losses({"step loss": 1.0, "iou": 1.0}, {"step loss": 2.0, "dice": 1.0}, "step ")
    assert [(one.kind, one.name, one.share) for one in found] == [
        ("loss", "step loss", 0.5),
        ("recorded", "iou", INF),
        ("recorded", "dice", INF),
    ]


@pytest.mark.parametrize(
    ("one", "other", "shares"),
    [
        ({0: [[1.0]], 1: [[2.0]]}, {0: [[1.0]], 1: [[1.0]]}, [0.0, 0.5]),
        # Rounding, as of a bias before a normalisation, is compared with the largest gradient.
        ({0: [[1e-17]], 1: [[1.0]]}, {0: [[-1e-17]], 1: [[1.0]]}, [2e-14, 0.0]),
        ({0: [[1.0]]}, {0: [[1.0]], 1: [[1.0]]}, [0.0, INF]),  # Missing on one side.
        ({0: [[1.0]], 1: [[1.0]]}, {0: [[1.0]]}, [0.0, INF]),
        ({0: [[1.0], [2.0]]}, {0: [[1.0]]}, [INF]),  # Applied once more.
        ({0: [[1.0], [2.0]]}, {0: [[1.0], [4.0]]}, [0.5]),
        ({}, {}, []),
    ],
)
def test_gradients_are_compared_variable_by_variable(one, other, shares):
    def arrays(table):
        return {number: list(map(np.array, given)) for number, given in table.items()}

    found = of_gradients(arrays(one), arrays(other), ["a", "b"], 1e-3)
    assert [difference.share for difference in found] == pytest.approx(shares)
    assert [difference.name for difference in found] == ["a", "b"][: len(shares)]


@pytest.mark.parametrize(
    ("before", "one", "other", "share"),
    [
        ([10.0], [10.1], [10.1], 0.0),
        ([10.0], [10.2], [10.1], 0.5),  # A share of the change, not of the value.
        ([10.0], [10.0 + 1e-9], [10.0], 1e-4),  # A change that is nothing but rounding.
        (None, [10.0], [5.0], 0.5),  # An optimizer begins with nothing.
        (None, [True], [False], INF),
        (None, [True], [True], 0.0),
        ([0.0], [0.0], [NAN], INF),
    ],
)
def test_changes_of_variables_are_compared(before, one, other, share):
    begun = [] if before is None else [np.array(before)]
    (found,) = of_values(begun, [np.array(one)], [np.array(other)], ["a"], ["states"], 1e-6)
    assert found.share == pytest.approx(share)


def test_the_worst_of_each_kind_is_recorded():
    found = [
        Difference(kind=kind, name="x", share=share)
        for kind, share in zip("aba", (1, 2, 3), strict=True)
    ]
    assert worst(found) == {"a": 3, "b": 2}
    assert worst([]) == {}


@pytest.mark.parametrize(
    ("patch", "steps", "parts", "expected"),
    [
        ((64, 64), (1, 1), (1, 1), (8, 8)),
        ((64, 64), (4, 4), (1, 1), (8, 8)),
        ((64, 64), (16, 16), (1, 1), (32, 16)),  # Not one voxel at the bottom.
        ((65, 64), (4, 4), (1, 1), (9, 8)),  # Odd sizes stay odd.
        ((63, 64), (4, 4), (1, 1), (11, 8)),
        ((64, 64), (4, 4), (2, 1), (16, 8)),
        ((64, 64), (4, 4), (3, 2), (24, 16)),
        ((64, 64), (16, 16), (2, 1), (32, 16)),
        ((16, 16), (16, 16), (1, 1), (16, 16)),  # None is larger than the run's own.
        ((20, 6), (1, 1), (4, 1), (20, 6)),
        ((64, 64, 64), (8, 8, 8), (1, 1, 1), (16, 8, 8)),
    ],
)
def test_small_patch_suits_the_network_and_the_split(patch, steps, parts, expected):
    assert small.small_patch(patch, steps, parts) == expected


@pytest.mark.parametrize(
    ("counts", "halo", "steps", "tiles", "image"),
    [
        ((4, 1), (5, 5), (1, 1), (2, 1), (12, 8)),
        ((4, 3), (5, 5), (4, 4), (2, 2), (24, 24)),
        ((2, 2), (0, 0), (1, 1), (2, 2), (2, 2)),
        ((2, 1), (30, 30), (4, 4), (2, 1), (72, 8)),
    ],
)
def test_small_tiles_are_just_larger_than_their_halo(counts, halo, steps, tiles, image):
    whole = Tiles(grid=grid((96, 96), counts, halo, steps), statistics=("norm",))
    made = small.small_tiles(whole, (96, 96), steps)
    assert (made.grid.tiles, made.grid.image, made.grid.halo) == (tiles, image, halo)
    assert made.statistics == ("norm",)
    assert not made.grid.is_finer_than_halo


def pooled(size=24, times=2):
    image = keras.Input((size, size, 1))
    x = image
    for _ in range(times):
        x = layers.MaxPooling2D(padding="same")(layers.Conv2D(2, 3, padding="same")(x))
    x = layers.UpSampling2D(2**times)(x)
    return keras.Model(image, x)


def nested():
    image = keras.Input((24, 24, 1))
    return keras.Model(image, layers.Conv2D(2, 1)(pooled()(image)))


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = layers.Conv2D(2, 1)

    def call(self, inputs):
        return self.last(inputs)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (pooled, (4, 4)),
        (nested, (4, 4)),
        (lambda: pooled(23), (4, 4)),  # 23 -> 12 -> 6
        (lambda: pooled(times=0), (1, 1)),
        (lambda: keras.Sequential([keras.Input((24, 24, 1)), layers.AveragePooling2D(3)]), (3, 3)),
        (Own, (16, 16)),
    ],
)
def test_factors_of_pooling_are_read_from_the_layers(make, steps):
    assert small.pooling_steps(make(), 2) == steps


def test_operations_of_convolutions_are_counted():
    assert small.step_flops(pooled(24, 1), 2) == 3 * 2 * (3 * 3 * 1 * 2) * 24 * 24
    assert small.step_flops(Own(), 2) == 0


def config(**settings):
    return from_dict({"backend": "mirrored", **settings})


NORM = "takes its statistics from a part of the batch"
DRAWS = "draws other random numbers"


class Draws(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.random.normal(inputs.shape[1:], seed=self.seeds)


def with_all():
    image = keras.Input((16, 16, 2))
    x = layers.BatchNormalization(name="norm")(image)
    x = layers.BatchNormalization(synchronized=True, name="synchronized")(x)
    x = layers.GroupNormalization(1, name="group")(x)
    x = layers.Dropout(0.5, name="dropout")(x)
    return keras.Model(image, Draws(name="draws")(x))


TILING = {"tiling": [2, 2], "patch": [16, 16], "backend": "single"}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"split": [2, 1], "patch": [16, 16]}, {}),
        ({"num_replicas": 2}, {"norm": NORM, "dropout": DRAWS, "draws": DRAWS}),
        (
            {"accumulation": 2, "global_batch": 2},
            {"norm": NORM, "synchronized": NORM, "dropout": DRAWS, "draws": DRAWS},
        ),
        ({"stages": 2}, {}),
        # Layers of Keras draw the numbers of the whole batch in stages.
        (
            {"stages": 2, "micro_batches": 2, "global_batch": 2},
            {"norm": NORM, "synchronized": NORM, "draws": DRAWS},
        ),
        (
            TILING,
            {
                "norm": NORM,
                "synchronized": NORM,
                "group": "takes its statistics from a tile",
                "dropout": DRAWS,
                "draws": DRAWS,
            },
        ),
    ],
)
def test_layers_that_see_a_part_are_left_out(settings, names):
    model = with_all()
    all_layers = list(model._flatten_layers())
    found = left_out(model, config(**settings))
    assert {all_layers[number].name: reason for number, reason in found.items()} == names


def test_what_is_left_out_is_told_reason_by_reason():
    model = with_all()
    assert in_words(model, {}) == []
    assert in_words(model, left_out(model, config(accumulation=2, global_batch=2))) == [
        "norm and 1 more take their statistics from a part of the batch",
        "dropout and 1 more draw other random numbers",
    ]


@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        ({"backend": "single"}, []),
        ({"num_replicas": 2}, ["num_replicas"]),
        ({"split": [2, 1], "patch": [16, 16]}, ["split"]),
        ({"split": [1, 1], "patch": [16, 16], "backend": "single"}, []),
        ({"stages": 2}, ["stages"]),
        (TILING, ["tiling"]),
        ({"tiling": [1, 1], "patch": [16, 16], "backend": "single"}, []),
        ({"accumulation": 2, "global_batch": 2}, ["accumulation"]),
        (
            {"num_replicas": 2, "split": [2, 1], "patch": [16, 16], "global_batch": 2},
            ["num_replicas", "split"],
        ),
    ],
)
def test_ways_are_what_changes_how_a_step_is_computed(settings, ways):
    assert ways_of(config(**settings)) == ways


BASE = RunConfig(backend="mirrored", num_replicas=2, patch=(16, 16), global_batch=8)


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"seed": 5}, True),
        ({"epochs": 7}, True),
        ({"prove": False}, True),
        ({"learning_rate": 0.5}, True),
        ({"global_batch": 16, "replica_batch": None}, True),
        ({"num_replicas": 4, "replica_batch": None}, False),
        ({"patch": (32, 32)}, False),
        ({"accumulation": 2, "replica_batch": None}, False),
        ({"split": (2, 1)}, False),
        ({"loss": "crossentropy"}, False),
        ({"model_options": {"filters": 4}}, False),
        ({"optimizer_options": {"clipnorm": 1.0}}, False),
        ({"metrics": ("accuracy",)}, False),
    ],
)
def test_key_is_of_what_a_small_step_hangs_on(changes, is_same):
    assert (kept.key_of(replace(BASE, **changes)) == kept.key_of(BASE)) == is_same


def test_key_changes_with_the_users_program(tmp_path):
    program = tmp_path / "model.py"
    program.write_text("def build(**_): return 1\n")
    own = replace(BASE, model=f"{program}:build", model_options={})
    before = kept.key_of(own)
    program.write_text("def build(**_): return 2\n")
    assert kept.key_of(own) != before


KEPT = {
    "is_proved": True,
    "ways": ["split"],
    "patch": [16, 8],
    "samples": 2,
    "precision": "float64",
    "differences": {"loss": 1e-16},
    "left_out": [],
    "seconds": 0.5,
}


def test_proof_is_kept_for_the_run_and_its_sweep(tmp_path):
    run, other = tmp_path / "sweep" / "one", tmp_path / "sweep" / "two"
    run.mkdir(parents=True)
    other.mkdir()
    kept.keep(run, "key", KEPT)
    assert kept.read(run, "key") == KEPT
    assert kept.read(run, "another key") is None
    assert kept.read(other, "key") is None  # Not a sweep yet.
    (run.parent / kept.PLAN).write_text("{}")
    kept.keep(run, "key", KEPT)
    assert kept.read(other, "key") == KEPT


# What cannot be is not believed of another's record.
WRONG = ({"is_proved": False}, {"left_out": "all"}, {"patch": [0]}, {"seconds": 1e999}, {"more": 1})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"key": "key"}', '{"key": "key", "proved": 1}', "\x00\xff"]
    + [json.dumps({"key": "key", "proved": {**KEPT, **wrong}}) for wrong in WRONG],
)
def test_damaged_proof_is_made_anew(text, tmp_path):
    (tmp_path / kept.FILE).write_text(text)
    assert kept.read(tmp_path, "key") is None
    kept.keep(tmp_path, "key", KEPT)
    assert json.loads((tmp_path / kept.FILE).read_text())["key"] == "key"
    assert kept.read(tmp_path, "key") == KEPT
