"""Tiles of training samples: together they are the samples, and no more is read than a window."""

import numpy as np
import pytest
import tensorflow as tf
from cache_reads import bytes_read

from tfunet.config.augmentation import read_augmentation
from tfunet.data.cache import build_cache
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.generated.phantoms import cells, tumours
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.tile_pipeline import TilePipeline
from tfunet.geometry.grid import grid
from tfunet.learning.own_part import own_pixels
from tfunet.parallel.mesh import part_bounds

PATCH = (28, 20)
CUT = grid(PATCH, (3, 2), (3, 3), (4, 2))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    source = cells(num_cases=9, size=32)
    return build_cache(source, tmp_path_factory.mktemp("cache"), patch=PATCH)


def samples_of(cases, **changed):
    options = {"cases": cases, "train": tuple(range(8)), "last_step": 5, "replica_batch": 2}
    return TrainingPipeline(**{**options, "seed": 3, **changed})


@pytest.mark.parametrize(
    ("augmentation", "num_replicas"),
    [({"flips": False}, 1), ({}, 2), ({"flips": [1], "brightness": 0.3}, 3)],
)
def test_tiles_of_all_replicas_are_the_samples_of_a_step(cases, augmentation, num_replicas):
    samples = samples_of(cases, augmentation=read_augmentation(augmentation))
    tiles = TilePipeline(samples=samples, grid=CUT, num_replicas=num_replicas)
    assert tiles.replica_tiles == 2 * 6 // num_replicas
    fed = [list(tiles(range(replica, replica + 1))) for replica in range(num_replicas)]
    whole = list(samples(range(1)))
    assert [len(own) for own in fed] == [len(whole) * tiles.replica_tiles] * num_replicas
    for step, batch in enumerate(whole):
        own = slice(step * tiles.replica_tiles, (step + 1) * tiles.replica_tiles)
        numbers = []
        images, masks = np.zeros((2, *PATCH, 1)), np.zeros((2, *PATCH))
        order = batch["sample"].numpy().tolist()
        for tile in (tile for replica in fed for tile in replica[own]):
            (number,) = tile["tile"].numpy().tolist()
            numbers.append(number)
            assert tile["image"].shape == (1, *CUT.largest_window, 1)
            at = order.index(number // 6)
            place = CUT.even_tiles[number % 6]
            box = tuple(map(slice, place.start, place.stop))
            inside = tuple(
                slice(*span) for span in zip(tile["own_start"][0], tile["own_stop"][0], strict=True)
            )
            images[at][box] = tile["image"].numpy()[0][inside]
            masks[at][box] = tile["mask"].numpy()[0][inside]
            window = tuple(
                slice(begin, begin + size)
                for begin, size in zip(place.begin, CUT.largest_window, strict=True)
            )
            np.testing.assert_array_equal(tile["image"][0], batch["image"][0, at][window])
        assert numbers == [sample * 6 + tile for sample in order for tile in range(6)]
        np.testing.assert_array_equal(images, batch["image"][0])
        np.testing.assert_array_equal(masks, batch["mask"][0])


def test_replicas_of_one_process_take_turns(cases):
    tiles = TilePipeline(samples=samples_of(cases, last_step=1), grid=CUT, num_replicas=2)
    both = [int(tile["tile"][0]) for tile in tiles(range(2))]
    alone = [
        [int(tile["tile"][0]) for tile in tiles(range(replica, replica + 1))]
        for replica in range(2)
    ]
    assert both == [number for pair in zip(*alone, strict=True) for number in pair]


def test_devices_of_a_replica_take_the_same_tiles_several_at_a_time(cases):
    def fed(devices, **changed):
        samples = samples_of(cases, last_step=2)
        tiles = TilePipeline(samples=samples, grid=CUT, num_replicas=2, **changed)
        return list(tiles(devices))

    single = [fed(range(replica, replica + 1)) for replica in range(2)]
    # Two replicas of two stages, in one process: passes of three tiles take turns.
    taken = fed(range(4), pass_tiles=3, stages=2)
    assert len(taken) == 2 * 2 * 4
    for at, batch in enumerate(taken):
        replica, number = at // 2 % 2, at // 4
        expected = single[replica][3 * number : 3 * number + 3]
        for name, value in batch.items():
            rows = np.concatenate([tile[name] for tile in expected])
            np.testing.assert_array_equal(value, rows)


@pytest.mark.parametrize("augmentation", [{"flips": False}, {"flips": [0, 1]}])
def test_parts_of_a_tile_have_its_pixels_and_its_own_part(cases, augmentation):
    samples = samples_of(cases, last_step=1, augmentation=read_augmentation(augmentation))
    whole = list(TilePipeline(samples=samples, grid=CUT)(range(1)))
    # Uneven: the window has 16 rows.
    split = TilePipeline(samples=samples, grid=CUT, split=(3, 1))
    bounds = part_bounds(CUT.largest_window, (3, 1))
    together, seen = list(split(range(3))), 0
    for part in range(3):
        begin, end = bounds[0][part : part + 2]
        for at, (tile, own) in enumerate(zip(whole, split(range(part, part + 1)), strict=True)):
            # Read alone, and cut from the whole window by a process that has all devices.
            cut = together[3 * at + part]
            for name in ("image", "mask"):
                np.testing.assert_array_equal(own[name], tile[name][:, begin:end])
                np.testing.assert_array_equal(cut[name][:, : end - begin], own[name])
            for name in ("own_start", "own_stop", "tile"):
                np.testing.assert_array_equal(cut[name], own[name])
            seen += int(own_pixels(own, tf.int32)[0])
    assert seen == 2 * PATCH[0] * PATCH[1]


def test_a_resumed_run_goes_on_with_the_tiles_of_its_step(cases):
    def numbers(**changed):
        tiles = TilePipeline(samples=samples_of(cases, **changed), grid=CUT)
        return [int(tile["tile"][0]) for tile in tiles(range(1))]

    every = numbers()
    assert numbers(first_step=3) == every[3 * 12 :]
    # Where data are in memory, one tile is.
    assert numbers(synthetic=True) == [every[0]] * 5 * 12


def test_only_the_window_is_read(tmp_path):
    """Counted where pixels leave the store."""
    source = tumours(num_cases=2, size=24)
    cases = build_cache(source, tmp_path, patch=(24, 24, 24))
    cut = grid((24, 24, 24), (2, 3, 1), (1, 1, 1), (2, 2, 2))
    samples = samples_of(cases, train=(0, 1), last_step=1)
    with bytes_read(cases) as read:
        tiles = list(TilePipeline(samples=samples, grid=cut)(range(1)))
    assert len(tiles) == 2 * 6
    assert cut.largest_window == (14, 12, 24)
    assert sum(read) == len(tiles) * 14 * 12 * 24 * (4 * 4 + 1)


def test_every_voxel_of_a_case_is_in_the_core_of_one_tile(cases):
    whole = EvaluationPipeline(cases=cases, validation=(8, 2), replica_batch=1, halo=2)
    tiled = EvaluationPipeline(
        cases=cases, validation=(8, 2), replica_batch=1, halo=2, grid=CUT, tells_places=True
    )
    assert tiled.num_windows == 6 * whole.num_windows
    counted = np.zeros((2, 32, 32), int)
    own = 0
    for batch in tiled(range(1)):
        (case,), (start,) = batch["case"].numpy(), batch["start"].numpy()
        first, last = (start + batch[name].numpy()[0] for name in ("core_start", "core_stop"))
        counted[case][tuple(map(slice, first, last))] += 1
        own += int(np.prod(batch["own_stop"] - batch["own_start"]))
    assert (counted == 1).all()
    assert own == whole.num_windows * np.prod(PATCH)
