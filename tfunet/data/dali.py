"""Training samples made by NVIDIA DALI, on a GPU or on the cores of this process.

TensorFlow draws the order, the crops and the amounts, as it does for every pipeline. DALI decodes
the files of a batch, normalises, crops and changes them. Nothing is decoded before it is needed, or
kept. The pixels are those of `augment` to 1e-5, but where they are resampled.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np
import tensorflow as tf
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali import math as dali_math

from tfunet.config.augmentation import KINDS, Augmentation
from tfunet.data.augmentation import spatial
from tfunet.data.augmentation.augment import SampleDraws, draw_affine, draw_orientation
from tfunet.data.augmentation.random_streams import normal
from tfunet.data.cached_cases import CachedCases
from tfunet.data.case_log import CaseLog
from tfunet.data.dali_limits import AFFINE, AT_ONCE, GREY, MOST_LENGTHS, farthest
from tfunet.data.encoded import UNKNOWN, EncodedCases, EncodedMask
from tfunet.data.image_files import LUMA
from tfunet.data.no_data import IGNORED
from tfunet.data.preprocess import Intensity, share_inside
from tfunet.data.read_failure import noting_failures
from tfunet.data.stored_case import BadCaseError, CaseFacts
from tfunet.files.regular import read_bytes
from tfunet.machine.cores import usable_cores

# DALI takes a sigma of 0 as not given. With this one only the middle weight is not 0.
SMALLEST_SIGMA = 1e-3
# A standard deviation below this share of the mean is the rounding of a constant channel.
ROUNDING = 1e-6
TYPES = {"uint8": types.UINT8, "uint16": types.UINT16, "float32": types.FLOAT}
AXES = [0, 1]
DIRECTIONS = ("vertical", "horizontal")
# An image and what is around it, to the patch of it.
Crop = Callable[[Any, float], Any]


class _BadBatchError(Exception):
    """A batch has pixels or labels that training cannot use."""


@final
class DaliSamples:
    """Makes samples: `place` and `draw` say what one is, and `__call__` makes a batch.

    Args:
        encoded: The files of the cases.
        cases: Their shapes, and what is known of them.
        train: The cases to train on. Where `cases.skip_bad` says so, the next of these takes the
            place of one that cannot be used.
        augmentation: Random changes.
        batch: Samples in a batch.
        seed: Seed of the run.
    """

    def __init__(
        self,
        encoded: EncodedCases,
        cases: CachedCases,
        train: Sequence[int],
        augmentation: Augmentation,
        *,
        batch: int,
        seed: int,
    ) -> None:
        self._encoded, self._cases = encoded, cases
        self._augmentation = augmentation
        self._seed = seed
        self._image_shape = (batch, *cases.patch, cases.channels)
        self._next = dict(zip(train, (*train[1:], train[0]), strict=True))
        # Cases that cannot be used, to those in their places.
        self._replaced: dict[int, int] = {}
        self._looking = threading.Lock()
        is_padded = any(np.less(cases.extents[case], cases.patch).any() for case in train)
        factors = [np.max(np.divide(encoded.shapes[case], cases.extents[case])) for case in train]
        is_resampled = any(encoded.shapes[case] != cases.extents[case] for case in train)
        # Pixels of the widest filter beyond the image.
        self._reach = math.ceil(max(1.0, *factors)) + 1 if is_resampled else 0
        self._make = partial(
            pipeline_def(_sample),
            encoded,
            augmentation,
            cases.patch,
            cases.channels,
            is_padded=is_padded,
            reach=self._reach,
            batch_size=batch,
            num_threads=len(usable_cores()),
            device_id=_gpu(),
            # Each run handles its own batch; meanwhile another pipeline works on the next one.
            prefetch_queue_depth=1,
        )
        # None is one that is not built yet.
        self._idle: queue.SimpleQueue[Pipeline | None] = queue.SimpleQueue()
        for _ in range(AT_ONCE):
            self._idle.put(self._built())

    def place(
        self, case: tf.Tensor, start: tf.Tensor, begin: tf.Tensor | Sequence[int] = ()
    ) -> dict[str, tf.Tensor]:
        """Return which patch a sample shows, in the place of a reader that gives its pixels.

        Patches are whole: `begin` is 0 along each axis.
        """
        return {"case": case, "place": tf.concat([[case], tf.cast(start, tf.int64)], axis=0)}

    @tf.autograph.experimental.do_not_convert
    def draw(
        self, place: dict[str, tf.Tensor], *, epoch: tf.Tensor, sample: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return all values of a sample that `__call__` needs.

        Args:
            place: What `place` returned, without the case.
            epoch: Scalar int64.
            sample: Scalar int64.
        """
        draws = SampleDraws(seed=self._seed, epoch=epoch, sample=sample)
        *shape, channels = self._image_shape[1:]
        row = {**place, **_moves(self._augmentation, shape, draws)}
        for name in GREY:
            amount = getattr(self._augmentation, name)
            if amount is not None:
                is_on, values = draws.amounts(name, amount, channels)
                row[name] = tf.where(is_on, values, KINDS[name].neutral)
        if "noise" in row:
            row["noise"] *= normal([*shape, channels], draws.seed_of("noise_field"))
        if "blur" in row:
            row["blur"] = tf.maximum(row["blur"], SMALLEST_SIGMA)
        return row

    @tf.autograph.experimental.do_not_convert
    def __call__(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return image (batch, *patch, channels), mask (batch, *patch), and the rest unchanged.

        A file that cannot be used is a BadCaseError.
        """
        rest = {name: rows[name] for name in ("sample", "epoch")}
        names = sorted(rows.keys() - rest.keys())
        image, mask = tf.numpy_function(
            partial(noting_failures(self._run), names),
            [rows[name] for name in names],
            [tf.float32, tf.uint8],
        )
        return {
            "image": tf.ensure_shape(image, self._image_shape),
            "mask": tf.reshape(mask, self._image_shape[:-1]),
            **rest,
        }

    def _run(self, names: Sequence[str], *arrays: np.ndarray) -> list[np.ndarray]:
        given = dict(zip(names, arrays, strict=True))
        places = given.pop("place")
        while True:
            cases = [self._in_place_of(case) for case in places[:, 0].tolist()]
            start = self._starts(places[:, 1:], cases)
            try:
                files = {**self._files(cases), **self._sizes(cases)}
                return self._made({**given, "start": start, **files})
            except (RuntimeError, OSError, _BadBatchError) as error:
                with self._looking:
                    bad = [case for case in dict.fromkeys(cases) if self._is_bad(case)]
                if not bad:
                    reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
                    raise ValueError(
                        f"DALI cannot read what tfunet's own readers can ({reason}). Leave out "
                        "pipeline = 'dali'."
                    ) from error

    def _in_place_of(self, case: int) -> int:
        while case in self._replaced:
            case = self._replaced[case]
        return case

    def _starts(self, starts: np.ndarray, cases: Sequence[int]) -> np.ndarray:
        """Return the first pixel of each patch in its image; what lies outside is padded."""
        room = np.array([self._cases.shapes[case] for case in cases]) - self._cases.patch
        origins = np.array([self._cases.origins[case] for case in cases])
        return (np.minimum(starts, room) - origins).astype(np.int32)

    def _files(self, cases: Sequence[int]) -> dict[str, list[np.ndarray]]:
        """Return the bytes of the files of each case."""
        encoded = self._encoded
        columns = {"image_file": [encoded.images[case] for case in cases]}
        for slot in range(len(encoded.labels)):
            columns[f"mask_file_{slot}"] = [encoded.masks[case][slot] for case in cases]
        return {
            name: [np.frombuffer(read_bytes(path), np.uint8) for path in paths]
            for name, paths in columns.items()
        }

    def _sizes(self, cases: Sequence[int]) -> dict[str, Any]:
        """Return what resampling needs to know of each case."""
        if not self._reach:
            return {}
        before = [self._encoded.shapes[case] for case in cases]
        after = [self._cases.extents[case] for case in cases]
        rows, columns = (
            [share_inside(old[axis], new[axis]) for old, new in zip(before, after, strict=True)]
            for axis in AXES
        )
        return {
            "before": np.array(before, np.int32),
            "after": np.array(after, np.float32),
            "rows_inside": [row[:, np.newaxis, np.newaxis] for row in rows],
            "columns_inside": [column[np.newaxis, :, np.newaxis] for column in columns],
        }

    def _made(self, given: dict[str, Any]) -> list[np.ndarray]:
        with self._pipeline() as pipeline:
            image, mask, flag = (
                # Copied: DALI may use the memory again in the next run.
                np.array(output.as_cpu().as_tensor())
                for output in pipeline.run(**given)
            )
        if flag.any() or not np.isfinite(image).all():
            raise _BadBatchError
        return [image, mask]

    @contextmanager
    def _pipeline(self) -> Iterator[Pipeline]:
        """Lend a pipeline that nobody uses. One that failed cannot run again."""
        pipeline = self._idle.get()
        try:
            pipeline = pipeline or self._built()
            yield pipeline
        except RuntimeError:
            pipeline = None
            raise
        finally:
            self._idle.put(pipeline)

    def _built(self) -> Pipeline:
        pipeline = self._make()
        pipeline.build()
        return pipeline

    def _is_bad(self, case: int) -> bool:
        """Whether a case cannot be used; another takes its place then, or the run ends."""
        if case in self._replaced:
            return True
        try:
            self._encoded.read(case)
        except (ValueError, OSError) as error:
            if not self._cases.skip_bad or len(self._replaced) + 1 == len(self._next):
                raise BadCaseError(error) from error
            self._note(case, str(error))
            self._replaced[case] = self._next[case]
            return True
        return False

    def _note(self, case: int, defect: str) -> None:
        """Let the run name a case at its end. What else is known of it stays: crops follow it."""
        log = None if self._cases.store is None else self._cases.store.log
        if isinstance(log, CaseLog):
            facts = log.facts[case] or CaseFacts(extent=self._cases.extents[case])
            log.facts[case] = replace(facts, defect=defect)


def _gpu() -> int | None:
    """Return the number of this process's first GPU, as CUDA counts them; None without one."""
    gpus = tf.config.get_visible_devices("GPU")
    return int(gpus[0].name.rpartition(":")[2]) if gpus else None


def _is_affine(augmentation: Augmentation) -> bool:
    return any(getattr(augmentation, name) for name in AFFINE)


def _moves(
    augmentation: Augmentation, shape: list[int], draws: SampleDraws
) -> dict[str, tf.Tensor]:
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


def _given(name: str) -> Any:
    return fn.external_source(name=name, batch=True)


def _placed(array: Any) -> Any:
    return array if Pipeline.current().device_id is None else array.gpu()


def _sample(
    encoded: EncodedCases,
    augmentation: Augmentation,
    patch: tuple[int, ...],
    channels: int,
    *,
    is_padded: bool,
    reach: int,
) -> tuple[Any, Any, Any]:
    """Define the pipeline: image, mask, and whether it must not be used.

    Its inputs are what `DaliSamples.draw` returns, and the bytes of the files.
    """
    start = _given("start")

    def cropped(image: Any, around: float) -> Any:
        options: dict[str, Any] = {}
        if is_padded:
            options = {"out_of_bounds_policy": "pad", "fill_values": around}
        return fn.slice(image, start, list(patch), axes=AXES, **options)

    stored = _image(encoded)
    labels, flag = _labels(encoded.labels)
    if reach:
        stored, labels = _resized(stored, labels, reach)
    image = _normalised(encoded, stored, cropped, is_padded=is_padded)
    mask = _placed(cropped(labels, encoded.around))
    image, mask = _moved(image, mask, augmentation, patch)
    return _recoloured(image, augmentation, patch, channels), mask, flag


def _image(encoded: EncodedCases) -> Any:
    """Return the stored pixels."""
    on_gpu = Pipeline.current().device_id is not None
    image = fn.decoders.image(
        _given("image_file"),
        device="mixed" if on_gpu else "cpu",
        output_type=types.RGB if encoded.in_colour else types.GRAY,
        dtype=TYPES[encoded.image_dtype],
        # As libjpeg's default, which Pillow takes.
        jpeg_fancy_upsampling=True,
    )
    if not encoded.grey:
        return image
    image = fn.cast(image, dtype=types.FLOAT)
    red, green, blue = (
        image[:, :, channel : channel + 1] * float(share) for channel, share in enumerate(LUMA)
    )
    return fn.reinterpret(red + green + blue, layout="HWC")


def _resized(image: Any, labels: Any, reach: int) -> tuple[Any, Any]:
    """Return image and labels as `resize_linear` and `resize_nearest` resample them.

    Beyond the image, where DALI would repeat its border, lie `reach` zeros: the sums without them
    are divided by the weights without them.
    """
    before, after = _given("before"), _given("after")
    # Less than any distance from the middle between two pixels: then DALI rounds as we do.
    shift = 0.25 / after
    labels = fn.resize(
        labels,
        size=after,
        roi_start=shift,
        roi_end=before + shift,
        interp_type=types.INTERP_NN,
    )
    image = fn.slice(
        image, [-reach, -reach], before + 2 * reach, axes=AXES, out_of_bounds_policy="pad"
    )
    image = fn.resize(
        image,
        size=after,
        roi_start=[float(reach)] * len(AXES),
        roi_end=fn.cast(before + reach, dtype=types.FLOAT),
        interp_type=types.INTERP_LINEAR,
        antialias=True,
        dtype=types.FLOAT,
    )
    return image / _placed(_given("rows_inside")) / _placed(_given("columns_inside")), labels


def _normalised(encoded: EncodedCases, image: Any, cropped: Crop, *, is_padded: bool) -> Any:
    """Return the patch of an image, normalised as `tfunet.data.preprocess.normalise` does."""
    change = _normalising(encoded.intensity, image)
    # What lies around a normalised image is 0.
    return cropped(change(image), 0.0) if is_padded else change(cropped(image, 0.0))


def _normalising(scale: Intensity, image: Any) -> Callable[[Any], Any]:
    """Return what normalises a part of the image."""
    if isinstance(scale, tuple):
        low, high = scale
        return lambda pixels: dali_math.clamp((pixels - low) / (high - low), 0.0, 1.0)
    if isinstance(scale, Mapping):
        given = {name: _constant(values) for name, values in scale.items()}
        ends = [given[name] for name in ("low", "high") if name in given]

        def standardised(pixels: Any) -> Any:
            within = dali_math.clamp(pixels, *ends) if ends else pixels
            return (within - given["mean"]) / given["deviation"]

        return standardised
    if scale == "zscore":
        mean, deviation = _statistics(image)
        varies = fn.cast(deviation > ROUNDING * dali_math.abs(mean), dtype=types.FLOAT)
        return lambda pixels: (pixels - mean) * (varies / (deviation + (1 - varies)))
    return partial(fn.cast, dtype=types.FLOAT)


def _constant(values: Sequence[float]) -> Any:
    return _placed(types.Constant(np.array(values, np.float32).reshape(1, 1, -1), device="cpu"))


def _labels(masks: Sequence[EncodedMask]) -> tuple[Any, Any]:
    """Return the labels of whole masks, and whether one holds what no class has."""
    labels, flags = None, types.Constant(np.uint8(0), device="cpu")
    for slot, mask in enumerate(masks):
        stored = fn.decoders.image(
            _given(f"mask_file_{slot}"),
            output_type=types.GRAY,
            dtype=types.UINT8 if len(mask.codes) == 256 else types.UINT16,
        )
        usual = int(np.bincount(mask.codes).argmax())
        keys = np.flatnonzero(mask.codes != usual)
        codes = fn.lookup_table(
            stored,
            keys=keys.tolist(),
            values=mask.codes[keys].tolist(),
            default_value=usual,
            dtype=types.UINT8,
        )
        if (mask.codes == UNKNOWN).any():
            flags |= _any(codes == UNKNOWN)
        is_class = (codes != 0) & (codes != IGNORED)
        if mask.holds_one_value:
            highest = fn.reductions.max(stored * fn.cast_like(is_class, stored))
            flags |= _any(is_class & (stored != highest))
        if labels is None:
            labels = codes
            continue
        marked = dali_math.max(labels, codes) == IGNORED
        labels = codes * fn.cast_like(is_class, codes) + labels * fn.cast_like(
            is_class ^ True, codes
        )
        labels = fn.cast(dali_math.max(labels, IGNORED * marked), dtype=types.UINT8)
    return fn.reinterpret(labels, layout="HWC"), flags


def _any(places: Any) -> Any:
    return fn.reductions.max(fn.cast(places, dtype=types.UINT8))


def _moved(
    image: Any, mask: Any, augmentation: Augmentation, patch: Sequence[int]
) -> tuple[Any, Any]:
    """Return image and mask turned, flipped and resampled."""
    if augmentation.rotation90 or _is_affine(augmentation):
        mirrors = _num_mirrors(augmentation, patch)
        matrix, reach = _given("matrix"), _given("reach") if any(mirrors) else None
        moved = partial(_warped, matrix=matrix, reach=reach, patch=patch, mirrors=mirrors)
        return (
            moved(image, interp_type=types.INTERP_LINEAR),
            moved(mask, interp_type=types.INTERP_NN),
        )
    if augmentation.flips:
        reverse = _given("reverse")
        for axis in AXES:
            image, mask = (_flipped(array, reverse[axis], axis) for array in (image, mask))
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
            image = _mirrored(image, pixels, axis, length)
            length = length + 2 * pixels
    return fn.warp_affine(
        image, matrix=matrix, size=list(patch), interp_type=interp_type, inverse_map=True
    )


def _mirrored(image: Any, pixels: Any, axis: int, length: Any) -> Any:
    """Return the image with so many pixels of its mirror image at both ends of an axis."""
    before, after = (
        _flipped(fn.slice(image, start, pixels, axes=[axis]), 1, axis)
        for start in (1, length - 1 - pixels)
    )
    return fn.cat(before, image, after, axis=axis)


def _flipped(image: Any, is_on: Any, axis: int) -> Any:
    on: dict[str, Any] = dict.fromkeys(DIRECTIONS, 0)
    on[DIRECTIONS[axis]] = is_on
    return fn.flip(image, **on)


def _recoloured(image: Any, augmentation: Augmentation, patch: Sequence[int], channels: int) -> Any:
    """Return the image with changed grey values."""
    if augmentation.blur is not None:
        widest = math.ceil(3 * augmentation.blur.high)
        windows = [2 * min(widest, length - 1) + 1 for length in patch]
        image = _blurred(image, _given("blur"), windows, channels)
    if augmentation.brightness is not None:
        image = image + _placed(_given("brightness"))
    if augmentation.contrast is not None:
        image = _contrasted(image, _placed(_given("contrast")))
    if augmentation.gamma is not None:
        image = _under_gamma(image, _placed(_given("gamma")))
    if augmentation.noise is not None:
        image = image + _placed(_given("noise"))
    return image


def _blurred(image: Any, sigma: Any, windows: list[int], channels: int) -> Any:
    parts = [
        fn.gaussian_blur(image[:, :, n : n + 1], sigma=sigma[n], window_size=windows)
        for n in range(channels)
    ]
    return parts[0] if channels == 1 else fn.cat(*parts, axis=len(windows))


def _contrasted(image: Any, factor: Any) -> Any:
    low, high = (
        reduction(image, axes=AXES, keep_dims=True)
        for reduction in (fn.reductions.min, fn.reductions.max)
    )
    mean = fn.reductions.mean(image, axes=AXES, keep_dims=True)
    return dali_math.clamp(image + (image - mean) * (factor - 1), low, high)


def _under_gamma(image: Any, exponent: Any) -> Any:
    mean, deviation = _statistics(image)
    low = fn.reductions.min(image, axes=AXES, keep_dims=True)
    span = fn.reductions.max(image, axes=AXES, keep_dims=True) - low
    changed = dali_math.pow((image - low) / (span + 1e-7), exponent) * span
    changed_mean, changed_deviation = _statistics(changed)
    return (changed - changed_mean) * (deviation / (changed_deviation + 1e-8)) + mean


def _statistics(image: Any) -> tuple[Any, Any]:
    """Return mean and standard deviation of each channel."""
    mean = fn.reductions.mean(image, axes=AXES, keep_dims=True)
    return mean, fn.reductions.std_dev(image, mean, axes=AXES, keep_dims=True)
