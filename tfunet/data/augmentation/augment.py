"""Changes a training sample at random, as a function of (seed, epoch, sample) alone.

Pure functions of tensors with static shapes, for the data pipeline and for the device. A kind that
is off is not in the graph, and one that a sample skips by chance is not computed. XLA can compile
the functions, but draws other random numbers from the same seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, final

import tensorflow as tf

from tfunet.config.augmentation import KINDS, Amount, Augmentation, chosen_axes
from tfunet.data.augmentation import intensity, random_streams, spatial


@final
@dataclass(frozen=True, kw_only=True)
class SampleDraws:
    """The random numbers of one sample in one epoch."""

    seed: int
    epoch: tf.Tensor
    sample: tf.Tensor

    def seed_of(self, stream: str) -> tf.Tensor:
        """Return the seed (2,) of one stream."""
        return random_streams.stream_seed(
            self.seed, self.epoch, self.sample, random_streams.STREAMS[stream]
        )

    def amounts(self, name: str, amount: Amount, count: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return whether the sample is changed (a scalar), and by which amounts (count,)."""
        numbers = random_streams.uniform([1 + count], self.seed_of(name))
        is_on = numbers[0] < amount.probability
        return is_on, between(amount.low, amount.high, numbers[1:], KINDS[name].neutral)


# All choices on tensors are TensorFlow ops. AutoGraph would take seconds to find nothing.
@tf.autograph.experimental.do_not_convert
def augment(
    image: tf.Tensor,
    mask: tf.Tensor,
    augmentation: Augmentation,
    *,
    seed: int,
    epoch: tf.Tensor,
    sample: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a sample as one epoch shows it, with the same shapes and types.

    The image is (*patch, channels) float32, of static shape, the mask (*patch) uint8. Both move
    together, and are resampled once. `augmentation.check_patch` has accepted this patch.
    """
    draws = SampleDraws(seed=seed, epoch=epoch, sample=sample)
    image, mask = _oriented(image, mask, augmentation, draws)
    image, mask = _resampled(image, mask, augmentation, draws)
    return _recoloured(image, augmentation, draws), mask


def between(low: float, high: float, numbers: tf.Tensor, neutral: float) -> tf.Tensor:
    """Map numbers uniform over 0 to 1 to amounts from `low` to `high`.

    Amounts are uniform, except that factors below 1 are as likely as factors above 1, as in
    batchgenerators.
    """
    if neutral == 1 and low < 1 < high:
        side = 2 * numbers - 1
        return 1 + side * tf.where(side < 0, 1 - low, high - 1)
    return low + numbers * (high - low)


@dataclass(frozen=True, kw_only=True)
class Orientation:
    """The flips and quarter turns of a sample: its axes in another order, then some reversed.

    Args:
        orders: All possible orders of the axes; one without turns.
        order: Index of the drawn order, a scalar.
        reverse: Whether each axis is reversed, (rank,) bool.
    """

    orders: list[tuple[int, ...]]
    order: tf.Tensor
    reverse: tf.Tensor


@dataclass(frozen=True, kw_only=True)
class AffineMap:
    """Where the pixels of a sample come from, in pixels from the centre of the oriented sample.

    Args:
        matrix: Backward map (rank, rank).
        shift: Forward translation (rank,).
        chances: Whether each of its parts changes the sample: a scalar, or True if it always does.
    """

    matrix: tf.Tensor
    shift: tf.Tensor
    chances: list[tf.Tensor | bool]


def draw_orientation(
    augmentation: Augmentation, rank: int, draws: SampleDraws
) -> Orientation | None:
    """Return how a sample is flipped and turned; None if no sample is."""
    flipped = chosen_axes(augmentation.flips, rank)
    turned = chosen_axes(augmentation.rotation90, rank)
    if not (turned or flipped):
        return None
    orders, order = [tuple(range(rank))], tf.constant(0)
    reverse = tf.zeros([rank], tf.bool)
    if turned:
        turns = spatial.quarter_turns(turned, rank)
        number = tf.cast(
            random_streams.uniform([], draws.seed_of("rotation90")) * len(turns), tf.int32
        )
        orders = list(dict.fromkeys(turn.order for turn in turns))
        order = tf.gather([orders.index(turn.order) for turn in turns], number)
        reverse = tf.gather([turn.reverse for turn in turns], number)
    if flipped:
        flips = random_streams.random_bits([rank], draws.seed_of("flips")) < 0
        reverse = tf.not_equal(reverse, flips & [axis in flipped for axis in range(rank)])
    return Orientation(orders=orders, order=order, reverse=reverse)


def draw_affine(augmentation: Augmentation, shape: list[int], draws: SampleDraws) -> AffineMap:
    """Return the composed map of rotation, scale, shear and translation."""
    rank = len(shape)
    maps: list[tf.Tensor] = []
    shift = tf.zeros([rank])
    chances: list[tf.Tensor | bool] = []

    def drawn(name: str, count: int) -> tf.Tensor:
        amount = getattr(augmentation, name)
        is_on, values = draws.amounts(name, amount, count)
        chances.append(amount.probability == 1 or is_on)
        return tf.where(is_on, values, KINDS[name].neutral)

    if augmentation.scale is not None:
        axes = chosen_axes(augmentation.scale.axes, rank)
        maps.append(spatial.scale_matrix(drawn("scale", 1)[0], axes, rank))
    for name, make in (("shear", spatial.shear_matrix), ("rotation", spatial.rotation_matrix)):
        amount = getattr(augmentation, name)
        if amount is not None:
            planes = spatial.planes(chosen_axes(amount.axes, rank))
            maps.append(make(tf.unstack(drawn(name, len(planes))), planes, rank))
    if augmentation.translation is not None:
        axes = chosen_axes(augmentation.translation.axes, rank)
        chosen = [float(length * (axis in axes)) for axis, length in enumerate(shape)]
        shift = drawn("translation", rank) * chosen
    matrix = reduce(spatial.compose, maps, tf.eye(rank))
    return AffineMap(matrix=matrix, shift=shift, chances=chances)


def _oriented(
    image: tf.Tensor, mask: tf.Tensor, augmentation: Augmentation, draws: SampleDraws
) -> tuple[tf.Tensor, tf.Tensor]:
    """Flip, and turn by multiples of 90 degrees: no pixel changes its value."""
    drawn = draw_orientation(augmentation, mask.shape.rank, draws)
    if drawn is None:
        return image, mask
    if len(drawn.orders) > 1:
        image, mask = spatial.reorder(image, mask, drawn.orders, drawn.order)
    return spatial.flip(image, mask, drawn.reverse)


def _resampled(
    image: tf.Tensor, mask: tf.Tensor, augmentation: Augmentation, draws: SampleDraws
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compose all movements by fractions of a pixel, and resample once."""
    shape = mask.shape.as_list()
    drawn = draw_affine(augmentation, shape, draws)
    chances = list(drawn.chances)
    moved: Callable[[], dict[int, tf.Tensor]] = dict
    elastic = augmentation.elastic
    if elastic is not None:
        is_on, deviations = draws.amounts("elastic", elastic, 1)
        chances.append(elastic.probability == 1 or is_on)
        deviation = tf.where(is_on, deviations[0], KINDS["elastic"].neutral)
        moved = partial(_displacement, shape, elastic, deviation, draws)
    if not chances:
        return image, mask

    def resampled() -> tuple[tf.Tensor, tf.Tensor]:
        return spatial.resample(image, mask, drawn.matrix, drawn.shift, moved())

    is_sure = any(chance is True for chance in chances)
    return _by_chance(is_sure or tf.reduce_any(chances), resampled, (image, mask))


def _displacement(
    shape: list[int], elastic: Amount, deviation: tf.Tensor, draws: SampleDraws
) -> dict[int, tf.Tensor]:
    """Return the displacement field of each axis that has one."""
    axes = chosen_axes(elastic.axes, len(shape))
    knots = [len(axes), *spatial.knots_shape(shape, elastic.sigma)]

    def field() -> tf.Tensor:
        numbers = random_streams.uniform(knots, draws.seed_of("elastic_field"))
        return spatial.displacement(numbers, deviation, shape, elastic.sigma)

    is_on = elastic.probability == 1 or deviation > 0
    fields = _by_chance(is_on, field, tf.zeros([len(axes), *shape]))
    return dict(zip(axes, tf.unstack(fields), strict=True))


def _recoloured(image: tf.Tensor, augmentation: Augmentation, draws: SampleDraws) -> tf.Tensor:
    """Change the grey values; each channel has its own amounts."""

    def noise(image: tf.Tensor, deviation: tf.Tensor) -> tf.Tensor:
        return intensity.noise(
            image, deviation, random_streams.normal(image.shape, draws.seed_of("noise_field"))
        )

    changes: dict[str, Callable[..., tf.Tensor]] = {
        "blur": partial(intensity.blur, greatest=getattr(augmentation.blur, "high", 0.0)),
        "brightness": intensity.brightness,
        "contrast": intensity.contrast,
        "gamma": intensity.gamma,
        "noise": noise,
    }
    for name, change in changes.items():
        amount = getattr(augmentation, name)
        if amount is not None:
            is_on, values = draws.amounts(name, amount, image.shape[-1])
            changed = partial(change, image, values)
            image = _by_chance(amount.probability == 1 or is_on, changed, image)
    return image


def _by_chance(is_on: tf.Tensor | bool, change: Callable[[], Any], unchanged: Any) -> Any:
    """Return `change()` if `is_on`, else `unchanged`; no tf.cond if `is_on` is always True."""
    return change() if is_on is True else tf.cond(is_on, change, lambda: unchanged)
