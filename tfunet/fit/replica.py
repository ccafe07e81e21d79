"""A step of one replica: it computes its rows of a batch as one device computes all of them.

What one device takes over the whole batch, replicas take over their rows, and add up:

    random numbers   drawn for all rows, of which a replica takes its own
    masked losses    their mean is over the valid elements of all replicas
    moments          those of `synchronized=True` leave out rows that count for nothing
    losses           weighted by rows before their gradients are taken, which are then averaged
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, final

import keras
import tensorflow as tf
from keras import ops

from tfunet.fit.shares import Rows
from tfunet.inside.of_fit import drawing_by, reducing_by, synchronized_moments_of

# A part of a batch in draws of several parts.
LEAST_ROWS = 3
MEANS = ("mean", "sum_over_batch_size")
VARIABLES = (tf.Variable, keras.Variable)


@final
class _Current(threading.local):
    """The rows of the replica that this thread traces: MirroredStrategy traces each in a thread."""

    rows: Rows | None = None
    is_eager: bool = False


_current = _Current()


@contextlib.contextmanager
def computing(rows: Rows) -> Iterator[None]:
    """Compute these rows in the block, on the device of their replica."""
    before = _current.rows, _current.is_eager
    _current.rows, _current.is_eager = rows, tf.executing_eagerly()
    try:
        yield
    finally:
        _current.rows, _current.is_eager = before


def current_rows() -> Rows | None:
    """Return the rows of the replica that this thread traces; None outside of a step."""
    return _current.rows


@contextlib.contextmanager
def as_one_device() -> Iterator[None]:
    """Let all replicas that are traced in the block compute as one device."""
    with (
        drawing_by(_drawn, _dropout, _categorical),
        reducing_by(_apply_mask, _reduce_values),
        synchronized_moments_of(_counting),
        _weighing_losses(),
    ):
        yield


def summed(value: tf.Tensor) -> tf.Tensor:
    """Return the sum over all replicas; called on each of them."""
    context = tf.distribute.get_replica_context()
    # A tensor of its own on each replica: MirroredStrategy takes one that all share for none.
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))


@contextlib.contextmanager
def _weighing_losses() -> Iterator[None]:
    """Weigh a loss by the rows of its replica in the block, where gradients of weights are taken.

    Not the gradients: those that came through synchronized moments are of other replicas' losses.
    """
    original = tf.GradientTape.gradient

    def gradient(
        tape: tf.GradientTape, target: Any, sources: Any, output_gradients: Any = None, **how: Any
    ) -> Any:
        rows = _current.rows
        of_weights = any(isinstance(source, VARIABLES) for source in tf.nest.flatten(sources))
        if rows is None or not of_weights:  # A penalty takes gradients of images within its loss.
            return original(tape, target, sources, output_gradients, **how)
        given = [None] if output_gradients is None else tf.nest.flatten(output_gradients)
        targets = tf.nest.flatten(target)
        weighted = [
            _weight(rows, value) * (tf.ones_like(value) if seed is None else seed)
            for value, seed in zip(targets, given * (len(targets) // len(given)), strict=True)
        ]
        return original(tape, targets, sources, weighted, **how)

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = original


def _weight(rows: Rows, loss: tf.Tensor) -> tf.Tensor:
    """Return what a loss of a replica weighs in the mean over replicas.

    One number is a mean over rows; of several, TensorFlow takes the gradient of their sum.
    """
    if loss.shape.rank == 0:
        return rows.weight(loss.dtype)
    return _counts(rows, loss.dtype) * rows.num_replicas


def _drawn(draw: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw for the rows of all replicas, where a shape begins with the rows of one."""
    rows = _current.rows
    has_rows = tf.is_tensor(shape) or len(shape) > 0
    of_values = [value for value in (*args, *kwargs.values()) if tf.is_tensor(value)]
    if rows is None or not has_rows or any(value.shape.rank != 0 for value in of_values):
        return draw(shape, *args, **kwargs)
    first, rest = shape[0], shape[1:]
    return _own_rows(rows, first, lambda of_all: draw(_joined(of_all, rest), *args, **kwargs))


def _own_rows(rows: Rows, first: Any, draw: Callable[[Any], Any]) -> Any:
    """Return `first` rows of what `draw` makes of a number of rows: of all, if it is a batch's.

    Several parts of a batch may follow each other, such as false and true images: rows of all
    replicas are then drawn for each part.
    """
    if tf.executing_eagerly() != _current.is_eager:
        return draw(first)  # Not in the step: the first values of a variable.
    begin, end = rows.taken
    own, of_all = end - begin, rows.num_rows
    if isinstance(first, int):
        # The size of a batch that is not known is no number. One that is known may be another
        # number by chance, such as the 2 of a point: so few rows are no two parts.
        is_one, is_two = first == own, first == 2 * own and first >= 2 * LEAST_ROWS
        if not isinstance(own, int) or not (is_one or is_two):
            return draw(first)
        num_parts = 1 if is_one else 2
    else:
        first, own, begin, of_all = (
            tf.cast(each, tf.int32) for each in (first, own, begin, of_all)
        )
        is_batch = first % own == 0
        num_parts = tf.where(is_batch, first // own, 1)
        of_all = tf.where(is_batch, of_all, first)
        begin = tf.where(is_batch, begin, 0)
        own = tf.where(is_batch, own, first)
    drawn = draw(num_parts * of_all)
    rest = tf.shape(drawn)[1:]
    parts = tf.reshape(drawn, tf.concat([[num_parts, of_all], rest], 0))
    taken = tf.reshape(parts[:, begin : begin + own], tf.concat([[first], rest], 0))
    return tf.ensure_shape(taken, [first if isinstance(first, int) else None, *drawn.shape[1:]])


def _joined(first: Any, rest: Any) -> Any:
    sizes = (first,) if tf.is_tensor(rest) else (first, *rest)
    if not tf.is_tensor(rest) and all(isinstance(size, int) for size in sizes):
        return sizes
    if tf.is_tensor(rest):
        return tf.concat([[tf.cast(first, tf.int32)], tf.cast(rest, tf.int32)], 0)
    return tf.stack([tf.cast(size, tf.int32) for size in sizes])


def _dropout(drop: Any, inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    rows = _current.rows
    if rows is None or not 0 < rate < 1:
        return drop(inputs, rate, noise_shape, seed)
    actual = tf.shape(inputs, out_type=tf.int64)
    sizes = [
        actual[axis] if size is None else tf.cast(size, tf.int64)
        for axis, size in enumerate(noise_shape or [None] * inputs.shape.rank)
    ]

    def kept(num_rows: Any) -> Any:
        return drop(tf.ones(_joined(num_rows, sizes[1:]), inputs.dtype), rate, None, seed)

    noise = _own_rows(rows, sizes[0], kept)
    dropped = tf.where(noise != 0, inputs * tf.cast(1 / (1 - rate), inputs.dtype), 0)
    return tf.ensure_shape(dropped, inputs.shape)


def _categorical(draw: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw for rows of logits.

    What is drawn for a row depends on its place in the batch: zeros stand for other replicas' rows.
    """
    rows = _current.rows
    if rows is None:
        return draw(logits, *args, **kwargs)
    begin, end = rows.taken
    after = rows.num_rows - end
    filled = tf.pad(logits, [[begin, after], [0, 0]])
    return draw(filled, *args, **kwargs)[begin:end]


def _apply_mask(original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: str) -> Any:
    rows = _current.rows
    if rows is None or mask is None or reduction not in MEANS:
        return original(sample_weight, mask, dtype, reduction)
    # As Keras does, with the elements of all replicas.
    float_mask = tf.cast(mask, tf.float64) * _counts(rows, tf.float64)
    of_all = _counts(rows, tf.float64) * tf.cast(tf.size(float_mask), tf.float64)
    total, valid = tf.unstack(summed(tf.stack([of_all, tf.reduce_sum(float_mask)])))
    weight = tf.cast(tf.math.divide_no_nan(total, valid), dtype)
    # With these weights, a sum over the batch needs no mask any more.
    weights = tf.where(tf.cast(mask, tf.bool), weight, tf.zeros((), dtype))
    return original(sample_weight, weights, dtype, "sum")


def _reduce_values(
    original: Any, values: Any, sample_weight: Any = None, reduction: str = "sum_over_batch_size"
) -> Any:
    rows = _current.rows
    if rows is None or values.shape.rank == 0:
        return original(values, sample_weight, reduction)
    if reduction == "sum":
        # The loss is weighed as a mean: by its share of all rows.
        return tf.math.divide_no_nan(ops.sum(values), _share(rows, values.dtype))
    if reduction != "mean_with_sample_weight" or sample_weight is None:
        return original(values, sample_weight, reduction)
    weights = tf.reduce_sum(tf.cast(sample_weight, tf.float64)) * _counts(rows, tf.float64)
    of_all = tf.cast(summed(weights) / rows.num_devices, values.dtype)
    return tf.math.divide_no_nan(ops.sum(values), of_all * _share(rows, values.dtype))


def _share(rows: Rows, dtype: Any) -> tf.Tensor:
    """Return the share of a replica in the rows of all; 0 if its rows count for nothing."""
    return rows.weight(dtype) / rows.num_replicas


def _counts(rows: Rows, dtype: Any) -> tf.Tensor:
    """Return 1, or 0 for a replica whose rows count for nothing."""
    return tf.cast(tf.convert_to_tensor(rows.count) > 0, dtype)


def _counting(value: Any) -> Any:
    rows = _current.rows
    return value if rows is None or rows.is_even else value[: rows.count]
