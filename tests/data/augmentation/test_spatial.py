"""Moving pixels: against numpy, Pillow and closed forms; labels stay labels, and stay aligned."""

from itertools import product

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfunet.data.augmentation import spatial

RNG = np.random.default_rng(0)
SHAPES = [(9, 9), (8, 11), (7, 6, 9), (1, 5, 4)]


def sample(shape, channels=2):
    image = RNG.normal(size=(*shape, channels)).astype(np.float32)
    return image, RNG.integers(0, 4, shape).astype(np.uint8)


def identity(rank):
    return np.eye(rank, dtype=np.float32), np.zeros(rank, np.float32)


def resampled(image, mask, matrix, shift, moved=None):
    moved = {axis: tf.constant(field, tf.float32) for axis, field in (moved or {}).items()}
    out = spatial.resample(
        tf.constant(image),
        tf.constant(mask),
        tf.constant(matrix, tf.float32),
        tf.constant(shift, tf.float32),
        moved,
    )
    return [tensor.numpy() for tensor in out]


def places(shape, matrix, shift):
    """Where each pixel of the result comes from, (*shape, rank) float64."""
    middle = (np.asarray(shape) - 1) / 2
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    return (grid - middle - shift) @ np.asarray(matrix, np.float64).T + middle


def mirrored(index, length):
    """The pixel that mirrors at both ends lead to, counted step by step."""
    order = [*range(length), *range(length - 2, 0, -1)]
    return np.asarray(order)[index % len(order)]


def linear(image, where):
    """Multilinear interpolation in float64, the plain way."""
    low = np.floor(where).astype(int)
    total = np.zeros(image.shape)
    for taps in product((0, 1), repeat=where.shape[-1]):
        weights = np.prod(np.where(taps, where - low, 1 - (where - low)), axis=-1)
        indices = tuple(
            mirrored(low[..., axis] + tap, image.shape[axis]) for axis, tap in enumerate(taps)
        )
        total += weights[..., None] * image[indices]
    return total


@pytest.mark.parametrize("shape", SHAPES)
def test_a_map_that_moves_nothing_changes_no_bit(shape):
    image, mask = sample(shape)
    out = resampled(image, mask, *identity(len(shape)))
    np.testing.assert_array_equal(out[0], image)
    np.testing.assert_array_equal(out[1], mask)


@pytest.mark.parametrize("shape", SHAPES)
def test_any_map_interpolates_linearly_and_mirrors_at_the_border(shape):
    image, mask = sample(shape)
    rank = len(shape)
    matrix = np.eye(rank) + RNG.normal(scale=0.4, size=(rank, rank))
    shift = RNG.normal(scale=2, size=rank)
    found, labels = resampled(image, mask, matrix, shift)
    where = places(shape, matrix, shift)
    np.testing.assert_allclose(found, linear(image.astype(np.float64), where), atol=2e-4)
    nearest = np.floor(where + 0.5).astype(int)
    expected = mask[tuple(mirrored(nearest[..., axis], n) for axis, n in enumerate(shape))]
    # Halfway between two pixels either is as near.
    unsure = (np.abs(where - np.floor(where) - 0.5) < 1e-4).any(axis=-1)
    np.testing.assert_array_equal(labels[~unsure], expected[~unsure])


def test_an_affine_map_is_pillows_inside():
    image, mask = sample((40, 40), channels=1)
    matrix = np.array([[0.9, 0.3], [-0.2, 1.1]])
    middle = np.full(2, 19.5)
    offset = middle - matrix @ middle
    # Pillow counts columns first, and places from the corner of the first pixel.
    (a, b), (c, d) = matrix
    x0 = offset[1] + 0.5 - 0.5 * (c + d)
    y0 = offset[0] + 0.5 - 0.5 * (a + b)
    expected = Image.fromarray(image[..., 0]).transform(
        (40, 40), Image.Transform.AFFINE, (d, c, x0, b, a, y0), Image.Resampling.BILINEAR
    )
    found, _ = resampled(image, mask, matrix, (0, 0))
    inside = np.all((places((40, 40), matrix, (0, 0)) > 1) & (places((40, 40), matrix, 0) < 38), -1)
    assert inside.mean() > 0.6
    np.testing.assert_allclose(found[inside][:, 0], np.asarray(expected)[inside], atol=1e-4)


@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
@pytest.mark.parametrize(("shape", "plane"), [((8, 8), (0, 1)), ((9, 9, 9), (0, 2))])
def test_rotation_by_right_angles_is_numpys_rot90(shape, plane, quarters):
    image, mask = sample(shape)
    matrix = spatial.rotation_matrix([tf.constant(90.0 * quarters)], [plane], len(shape))
    found, labels = resampled(image, mask, matrix, np.zeros(len(shape)))
    np.testing.assert_allclose(found, np.rot90(image, quarters, plane), atol=1e-4)
    np.testing.assert_array_equal(labels, np.rot90(mask, quarters, plane))


def test_rotations_in_several_planes_keep_lengths_and_angles():
    degrees = [tf.constant(angle) for angle in (20.0, -35.0, 50.0)]
    matrix = spatial.rotation_matrix(degrees, spatial.planes((0, 1, 2)), 3).numpy()
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-6)
    assert np.linalg.det(matrix) == pytest.approx(1)
    # One after the other, backwards: the turn in the first plane comes first.
    alone = [
        spatial.rotation_matrix([angle], [plane], 3).numpy()
        for angle, plane in zip(degrees, spatial.planes((0, 1, 2)), strict=True)
    ]
    np.testing.assert_allclose(matrix, alone[2] @ alone[1] @ alone[0], atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 10), (6, 7, 9)])
def test_translation_by_whole_pixels_is_a_shift_into_a_mirror_image(shape):
    image, mask = sample(shape)
    rank = len(shape)
    shift = np.array([2, -3, 1][:rank])
    found, labels = resampled(image, mask, np.eye(rank), shift)
    cut = tuple(slice(3 - step, 3 - step + size) for step, size in zip(shift, shape, strict=True))
    np.testing.assert_allclose(
        found, np.pad(image, [(3, 3)] * rank + [(0, 0)], mode="reflect")[cut], atol=1e-6
    )
    np.testing.assert_array_equal(labels, np.pad(mask, 3, mode="reflect")[cut])


def test_scale_makes_things_larger_along_the_chosen_axes():
    mask = np.zeros((20, 20), np.uint8)
    mask[7:13, 7:13] = 3
    matrix = spatial.scale_matrix(tf.constant(2.0), (1,), 2)
    _, labels = resampled(mask[..., None].astype(np.float32), mask, matrix, (0, 0))
    expected = np.zeros((20, 20), np.uint8)
    expected[7:13, 4:16] = 3
    np.testing.assert_array_equal(labels, expected)


def test_shear_leans_the_second_axis_towards_the_first():
    rows, columns = np.meshgrid(np.arange(21.0), np.arange(21.0), indexing="ij")
    image = np.stack([rows, columns], -1).astype(np.float32)
    matrix = spatial.shear_matrix([tf.constant(30.0)], [(0, 1)], 2)
    found, _ = resampled(image, np.zeros((21, 21), np.uint8), matrix, (0, 0))
    expected = rows - np.tan(np.pi / 6) * (columns - 10)
    inside = (expected >= 0) & (expected <= 20)
    np.testing.assert_allclose(found[..., 0][inside], expected[inside], atol=1e-4)
    np.testing.assert_allclose(found[..., 1], columns, atol=1e-4)


def test_elastic_displacement_is_white_noise_under_a_gaussian_filter():
    length, sigma, deviation, count = 24, 4.0, 1.5, 20_000
    knots = spatial.knots_shape([length], sigma)
    noise = tf.random.stateless_uniform([count, *knots], [1, 2])
    fields = spatial.displacement(noise, tf.constant(deviation), [length], sigma).numpy()
    assert fields.shape == (count, length)
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    # The autocorrelation of a Gaussian filter is a Gaussian of sqrt(2) sigma.
    expected = deviation**2 * np.exp(-(distance**2) / (4 * sigma**2))
    np.testing.assert_allclose(np.cov(fields.T), expected, atol=0.09)
    assert np.abs(fields.mean(axis=0)).max() < 0.06


@pytest.mark.parametrize("shape", [(12, 20), (7, 9, 8)])
def test_elastic_displacement_has_its_deviation_at_every_pixel_along_every_axis(shape):
    noise = tf.random.stateless_uniform([3000, *spatial.knots_shape(shape, 3.0)], [1, 2])
    fields = spatial.displacement(noise, tf.constant(2.0), shape, 3.0).numpy()
    np.testing.assert_allclose(fields.std(axis=0), 2.0, rtol=0.08)


def test_a_displacement_moves_what_is_seen_along_its_axis():
    image, mask = sample((9, 10))
    moved = {1: np.full((9, 10), 2.0)}
    found, labels = resampled(image, mask, *identity(2), moved)
    np.testing.assert_array_equal(found[:, :-2], image[:, 2:])
    np.testing.assert_array_equal(labels[:, :-2], mask[:, 2:])


@pytest.mark.parametrize(("axes", "rank"), [((0, 1), 2), ((0, 2), 3), ((0, 1, 2), 3)])
def test_quarter_turns_are_all_products_of_numpys_and_no_mirror_image(axes, rank):
    block = np.arange(3**rank, dtype=np.uint8).reshape((3,) * rank)
    expected = {block.tobytes()}
    while True:
        turns = [(axis, other) for axis in axes for other in axes if axis != other]
        grown = expected | {
            np.rot90(np.frombuffer(known, np.uint8).reshape(block.shape), 1, plane).tobytes()
            for known in expected
            for plane in turns
        }
        if grown == expected:
            break
        expected = grown
    turns = spatial.quarter_turns(axes, rank)
    found = {
        turned(block[..., None], block, turn.order, turn.reverse)[1].tobytes() for turn in turns
    }
    assert len(turns) == len(expected) == {2: 4, 3: 24}[len(axes)]
    assert found == expected


def turned(image, mask, order, reverse):
    given = spatial.reorder(
        tf.constant(image), tf.constant(mask), [(9, 9, 9), order], tf.constant(1)
    )
    return [tensor.numpy() for tensor in spatial.flip(*given, tf.constant(reverse))]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_reorder_and_flip_do_the_same_to_image_and_mask(order):
    image, mask = sample((5, 5, 5), channels=3)
    found, labels = turned(image, mask, order, (True, False, True))
    np.testing.assert_array_equal(found, np.flip(image.transpose(*order, 3), (0, 2)))
    np.testing.assert_array_equal(labels, np.flip(mask.transpose(order), (0, 2)))
