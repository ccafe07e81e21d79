"""Metrics of cells that membranes keep apart: by hand, over all pairs, and by scikit-image."""

import math
import sys
from itertools import combinations

import numpy as np
import pytest
from scipy import ndimage
from skimage.metrics import adapted_rand_error, variation_of_information
from skimage.segmentation import expand_labels

from tfunet.config.case_metrics import SEGMENTS, case_metrics
from tfunet.config.run import RunConfig
from tfunet.learning.case_metrics import check_library, measure


def values(predicted, truth):
    return measure(case_metrics(SEGMENTS), predicted, truth, None)


def drawn(*rows):
    return np.array([[letter == "#" for letter in row] for row in rows])


TWO_CELLS = drawn("####.####", "####.####")
DIAGONAL = drawn("##.", "#.#", ".##")


@pytest.mark.parametrize(
    ("predicted", "truth", "expected"),
    [
        (TWO_CELLS, TWO_CELLS, (0, 0, 0)),
        # A thick membrane parts the same cells.
        (drawn("##....###", "##....###"), TWO_CELLS, (0, 0, 0)),
        # A gap joins the cells of 8 voxels: 2 * 56 of 240 pairs are right. One bit is missing.
        (drawn("####.####", "#########"), TWO_CELLS, (1 - 112 / ((112 + 240) / 2), 0, 1)),
        # The left cell in halves: 2 * 12 of its 56 pairs are left. Half of the voxels have a bit.
        (drawn("#..#.####", "#..#.####"), TWO_CELLS, (1 - 80 / ((112 + 80) / 2), 0.5, 0)),
        # Corners do not connect: a membrane along a diagonal parts two cells of 3 voxels.
        (DIAGONAL, DIAGONAL, (0, 0, 0)),
        (np.ones((3, 3), bool), DIAGONAL, (1 - 12 / ((12 + 30) / 2), 0, 1)),
        # One voxel has no pair that could be wrong.
        (drawn("#.."), drawn("#.."), (0, 0, 0)),
    ],
)
def test_cells_by_hand(predicted, truth, expected):
    assert values(predicted, truth) == pytest.approx(expected, abs=1e-12)


def random_cells(shape, seed):
    """Return a mask of cells with membranes, and a prediction that breaks and thickens some."""
    rng = np.random.default_rng(seed)
    seeds = rng.random(shape) < 0.02
    _, nearest = ndimage.distance_transform_edt(~seeds, return_indices=True)
    owner = np.ravel_multi_index(tuple(nearest), shape)
    truth = ndimage.maximum_filter(owner, 2) == ndimage.minimum_filter(owner, 2)
    noise = ndimage.gaussian_filter(rng.normal(size=shape), 1)
    predicted = (truth & (noise > -0.25)) | (noise > 0.25)
    return predicted, truth


@pytest.mark.parametrize("shape", [(24, 30), (7, 12, 14)])
def test_random_cells_over_all_pairs_and_by_scikit_image(shape):
    predicted, truth = random_cells(shape, seed=len(shape))
    found = values(predicted, truth)
    true, _ = ndimage.label(truth)
    grown = expand_labels(ndimage.label(predicted)[0], distance=np.inf)
    error, *_ = adapted_rand_error(true, grown)
    by_library = [error, *variation_of_information(true, grown, ignore_labels=(0,))]
    assert found == pytest.approx(by_library, rel=1e-12)
    assert min(found) > 0.05
    cells = list(zip(true[truth].tolist(), grown[truth].tolist(), strict=True))
    together = [[a[side] == b[side] for a, b in combinations(cells, 2)] for side in (0, 1)]
    both = np.logical_and(*together).sum()
    assert found[0] == pytest.approx(1 - 2 * both / np.sum(together), rel=1e-12)

    def bits(labels):
        shares = np.array([labels.count(label) for label in set(labels)]) / len(labels)
        return -float(shares @ np.log2(shares))

    entropies = [bits([cell[side] for cell in cells]) for side in (0, 1)]
    assert found[1:] == pytest.approx([bits(cells) - entropy for entropy in entropies], rel=1e-9)


def test_pixel_sizes_have_no_influence():
    predicted, truth = random_cells((7, 12, 14), seed=3)
    names = case_metrics((*SEGMENTS, "cldice"))
    expected = measure(names, predicted, truth, None)
    assert measure(names, predicted, truth, (5.0, 0.3, 1.0)) == expected
    assert not math.isnan(sum(expected))


@pytest.mark.parametrize("name", [*SEGMENTS, "cldice"])
def test_without_scikit_image_one_line_says_what_to_install(name, monkeypatch):
    check_library(case_metrics([name]))
    for module in ("skimage.metrics", "skimage.morphology"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ValueError, match=rf"{name}.* scikit-image.*pip install 'tfunet\[metrics\]'"
    ):
        check_library(case_metrics([name]))
    check_library(case_metrics(["dice", "hd95"]))


@pytest.mark.parametrize("name", ["arand@1mm", "cldice@2px", "vi_merge@0.7"])
def test_they_have_no_tolerance(name):
    with pytest.raises(
        ValueError, match=r"Without a tolerance: .*cldice, arand, vi_split, vi_merge"
    ):
        RunConfig(metrics=(name,))
