"""Augmentation of training samples by NVIDIA DALI, on a GPU or on the cores of this process.

TensorFlow reads the patches from the cache and draws the amounts, as `augment` does. DALI applies
them to a whole batch. The pixels are those of `augment` to about 1e-5.
"""

import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np
import tensorflow as tf
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali import math as dali_math

from tfunet.config.augmentation import KINDS, Augmentation, check_kinds
from tfunet.data.augmentation import spatial
from tfunet.data.augmentation.augment import Draws, draw_affine, draw_orientation
from tfunet.data.augmentation.dali_limits import GREY, MOST_LENGTHS, check_patch, farthest
from tfunet.data.augmentation.random_streams import normal
from tfunet.machine.cores import usable_cores

AFFINE = ("rotation", "scale", "shear", "translation")
# DALI takes a sigma of 0 as not given. With this one only the middle weight is not 0.
SMALLEST_SIGMA = 1e-3


@final
class DaliAugment:
    """Changes samples as `augment` does: `draw` takes one sample, `__call__` a batch of drawn ones.

    Args:
        augmentation: What to do.
        patch: Spatial shape of the samples.
        channels: Channels of the images.
        batch: Samples in a batch.
        seed: Seed of the run.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        *,
        patch: tuple[int, ...],
        channels: int,
        batch: int,
        seed: int,
    ) -> None:
        check_kinds(augmentation)
        check_patch(augmentation, patch)
        self._augmentation = augmentation
        self._seed = seed
        self._image_shape = (batch, *patch, channels)
        self._pipeline = pipeline_def(_changed)(
            augmentation,
            patch,
            channels,
            batch_size=batch,
            num_threads=len(usable_cores()),
            device_id=_gpu(),
            # Each run handles its own batch; meanwhile tf.data makes the next ones.
            prefetch_queue_depth=1,
        )
        self._pipeline.build()
        # Two iterators of one dataset share it.
        self._lock = threading.Lock()

    @tf.autograph.experimental.do_not_convert
    def draw(
        self, image: tf.Tensor, mask: tf.Tensor, *, epoch: tf.Tensor, sample: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return all values of a sample that `__call__` needs.

        Args:
            image: (*patch, channels) float32.
            mask: (*patch) uint8.
            epoch: Scalar int64.
            sample: Scalar int64.
        """
        draws = Draws(seed=self._seed, epoch=epoch, sample=sample)
        row = {"image": image, "mask": mask[..., tf.newaxis]}
        row |= _moves(self._augmentation, mask.shape.as_list(), draws)
        for name in GREY:
            amount = getattr(self._augmentation, name)
            if amount is not None:
                is_on, values = draws.amounts(name, amount, image.shape[-1])
                row[name] = tf.where(is_on, values, KINDS[name].neutral)
        if "noise" in row:
            row["noise"] *= normal(image.shape, draws.seed_of("noise_field"))
        if "blur" in row:
            row["blur"] = tf.maximum(row["blur"], SMALLEST_SIGMA)
        return row

    @tf.autograph.experimental.do_not_convert
    def __call__(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return image (batch, *patch, channels), mask (batch, *patch), and the rest unchanged."""
        rest: dict[str, tf.Tensor] = {
            name: rows[name] for name in ("sample", "epoch") if name in rows
        }
        names = sorted(rows.keys() - rest.keys())
        image, mask = tf.numpy_function(
            partial(self._run, names), [rows[name] for name in names], [tf.float32, tf.uint8]
        )
        return {
            "image": tf.ensure_shape(image, self._image_shape),
            "mask": tf.reshape(mask, self._image_shape[:-1]),
            **rest,
        }

    def _run(self, names: Sequence[str], *arrays: np.ndarray) -> list[np.ndarray]:
        with self._lock:
            outputs = self._pipeline.run(**dict(zip(names, arrays, strict=True)))
            # Copied: DALI may use the memory again in the next run.
            return [np.array(output.as_cpu().as_tensor()) for output in outputs]


def _gpu() -> int | None:
    """Return the number of this process's first GPU, as CUDA counts them; None without one."""
    gpus = tf.config.get_visible_devices("GPU")
    return int(gpus[0].name.rpartition(":")[2]) if gpus else None


def _is_affine(augmentation: Augmentation) -> bool:
    return any(getattr(augmentation, name) for name in AFFINE)


def _moves(augmentation: Augmentation, shape: list[int], draws: Draws) -> dict[str, tf.Tensor]:
    """Return a sample's flips, (rank,) int32, or its one map and how far that reaches.

    The map is DALI's, (rank, rank + 1): backwards, the last axis of the array first, from the
    corner of the mirrored patch. `reach` (2, rank) int32 are the pixels beyond the patch: of its
    mirror image, and then of the mirror image of both.
    """
    rank = len(shape)
    orientation = draw_orientation(augmentation, rank, draws)
    if not (augmentation.rotation90 or _is_affine(augmentation)):
        if orientation is None:
            return {}
        return {"reverse": tf.cast(orientation.reverse, tf.int32)}
    affine = draw_affine(augmentation, shape, draws)
    matrix = affine.matrix
    if orientation is not None:
        # Column a: which axis of the patch lies along axis a of the turned one, and how.
        turns = np.stack([np.eye(rank, dtype=np.float32)[:, order] for order in orientation.orders])
        signs = tf.where(orientation.reverse, -1.0, 1.0)
        matrix = spatial.compose(tf.gather(turns, orientation.order) * signs, matrix)
    size = np.asarray(shape, np.float32)
    shift = tf.reduce_sum(matrix * affine.shift, axis=1)
    beyond = tf.reduce_sum(tf.abs(matrix) * ((size - 1) / 2), axis=1) + tf.abs(shift)
    beyond -= (size - 1) / 2
    # One more for the second of the pixels that are interpolated between.
    reach = tf.where(beyond > 0, tf.math.ceil(beyond) + 1, 0)
    reach = tf.minimum(reach, MOST_LENGTHS * (size - 1))
    offset = size / 2 + reach - shift - tf.reduce_sum(matrix * (size / 2), axis=1)
    affine_map = tf.concat([matrix[::-1, ::-1], offset[::-1, tf.newaxis]], axis=1)
    if not any(_num_mirrors(augmentation, shape)):
        return {"matrix": affine_map}
    # A mirror image is one pixel smaller than the image.
    near = tf.minimum(reach, size - 1)
    return {"matrix": affine_map, "reach": tf.cast([near, reach - near], tf.int32)}


def _num_mirrors(augmentation: Augmentation, patch: Sequence[int]) -> list[int]:
    """Return how many times each axis is mirrored for the sample that reaches farthest."""
    # What is interpolated takes up to two pixels more.
    return [
        0 if pixels <= 0 else 1 if pixels + 2 < length else 2
        for pixels, length in zip(farthest(augmentation, patch), patch, strict=True)
    ]


def _changed(augmentation: Augmentation, patch: tuple[int, ...], channels: int) -> tuple[Any, Any]:
    """Define the pipeline; its inputs are what `DaliAugment.draw` returns."""
    on_gpu = Pipeline.current().device_id is not None

    def given(name: str, **options: Any) -> Any:
        return fn.external_source(name=name, batch=True, **options)

    def placed(array: Any) -> Any:
        return array.gpu() if on_gpu else array

    axes = list(range(len(patch)))
    layout = "DHWC"[-len(patch) - 1 :]
    image, mask = placed(given("image", layout=layout)), given("mask", layout=layout)
    if augmentation.rotation90 or _is_affine(augmentation):
        mirrors = _num_mirrors(augmentation, patch)
        matrix, reach = given("matrix"), given("reach") if any(mirrors) else None
        moved = partial(_warped, matrix=matrix, reach=reach, patch=patch, mirrors=mirrors)
        image = moved(image, interp_type=types.INTERP_LINEAR)
        mask = moved(placed(mask), interp_type=types.INTERP_NN)
    elif augmentation.flips:
        reverse = given("reverse")
        for axis in axes:
            image = _flipped(image, reverse[axis], axis, patch)
            mask = _flipped(mask, reverse[axis], axis, patch)
    if augmentation.blur is not None:
        widest = math.ceil(3 * augmentation.blur.high)
        windows = [2 * min(widest, length - 1) + 1 for length in patch]
        image = _blurred(image, given("blur"), windows, channels)
    if augmentation.brightness is not None:
        image = image + placed(given("brightness"))
    if augmentation.contrast is not None:
        image = _contrasted(image, placed(given("contrast")), axes)
    if augmentation.gamma is not None:
        image = _under_gamma(image, placed(given("gamma")), axes)
    if augmentation.noise is not None:
        image = image + placed(given("noise"))
    return image, mask


def _warped(
    image: Any,
    *,
    matrix: Any,
    reach: Any,
    patch: Sequence[int],
    mirrors: Sequence[int],
    interp_type: Any,
) -> Any:
    """Return the image under the map, amid its mirror image."""
    for axis, length in enumerate(patch):
        for number in range(mirrors[axis]):
            pixels = reach[number, axis : axis + 1]
            image = _mirrored(image, pixels, axis, length, patch)
            length = length + 2 * pixels
    return fn.warp_affine(
        image, matrix=matrix, size=list(patch), interp_type=interp_type, inverse_map=True
    )


def _mirrored(image: Any, pixels: Any, axis: int, length: Any, patch: Sequence[int]) -> Any:
    """Return the image with so many pixels of its mirror image at both ends of an axis."""
    before, after = (
        _flipped(fn.slice(image, start, pixels, axes=[axis]), 1, axis, patch)
        for start in (1, length - 1 - pixels)
    )
    return fn.cat(before, image, after, axis=axis)


def _flipped(image: Any, is_on: Any, axis: int, patch: Sequence[int]) -> Any:
    directions = ("depthwise", "vertical", "horizontal")[-len(patch) :]
    on: dict[str, Any] = dict.fromkeys(directions, 0)
    on[directions[axis]] = is_on
    return fn.flip(image, **on)


def _blurred(image: Any, sigma: Any, windows: list[int], channels: int) -> Any:
    last = (slice(None),) * len(windows)
    parts = [
        fn.gaussian_blur(image[(*last, slice(n, n + 1))], sigma=sigma[n], window_size=windows)
        for n in range(channels)
    ]
    return parts[0] if channels == 1 else fn.cat(*parts, axis=len(windows))


def _contrasted(image: Any, factor: Any, axes: list[int]) -> Any:
    low, high = (
        reduction(image, axes=axes, keep_dims=True)
        for reduction in (fn.reductions.min, fn.reductions.max)
    )
    mean = fn.reductions.mean(image, axes=axes, keep_dims=True)
    return dali_math.clamp(image + (image - mean) * (factor - 1), low, high)


def _under_gamma(image: Any, exponent: Any, axes: list[int]) -> Any:
    mean, deviation = _statistics(image, axes)
    low = fn.reductions.min(image, axes=axes, keep_dims=True)
    span = fn.reductions.max(image, axes=axes, keep_dims=True) - low
    changed = dali_math.pow((image - low) / (span + 1e-7), exponent) * span
    changed_mean, changed_deviation = _statistics(changed, axes)
    return (changed - changed_mean) * (deviation / (changed_deviation + 1e-8)) + mean


def _statistics(image: Any, axes: list[int]) -> tuple[Any, Any]:
    """Return mean and standard deviation of each channel."""
    mean = fn.reductions.mean(image, axes=axes, keep_dims=True)
    return mean, fn.reductions.std_dev(image, mean, axes=axes, keep_dims=True)
