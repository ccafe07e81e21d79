"""Shares out global batches: each process takes the rows of its replicas.

Every process reads the same global batches, in the order of one device. So each sample is used
once, whatever the number of replicas, and at an uneven end the first replicas have a row more:

    10 rows, 4 replicas:   0 1 2 | 3 4 5 | 6 7 | 8 9
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import tensorflow as tf

# Elements of each part of a batch from which its fingerprint is made, at most.
NUM_LOOKED_AT = 4096
# Sums of fingerprints of all replicas are exact in float64 below 2^53.
FINGERPRINTS = 1 << 31


class Share(NamedTuple):
    """What a process takes of a global batch.

    Args:
        data: The rows of its replicas, at least one, in the structure of the batch.
        rows: Without elements, of shape (rows of the global batch, 0): it carries this number,
            which is known while a graph is traced if that of the batch is.
        fingerprint: A number that tells global batches apart; float64.
    """

    data: Any
    rows: Any
    fingerprint: Any

    @property
    def num_rows(self) -> Any:
        """Rows of the global batch: a number, or a tensor where it is not known."""
        return rows_of(self.rows)


@final
@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that a replica takes of a global batch.

    A replica without a row of its own computes one of another replica, with weight 0: a mean over
    no rows is no number.

    Args:
        index: The replica.
        num_replicas: Over all processes.
        num_rows: Rows of the global batch: a number, or a tensor where it is not known.
        num_devices: Devices that compute the same rows, each a part of them.
    """

    index: int
    num_replicas: int
    num_rows: Any
    num_devices: int = 1

    @property
    def begin(self) -> Any:
        """The first of its rows."""
        return first_row(self.num_rows, self.num_replicas, self.index)

    @property
    def count(self) -> Any:
        """How many rows count; 0 at the end of uneven data."""
        return first_row(self.num_rows, self.num_replicas, self.index + 1) - self.begin

    @property
    def taken(self) -> tuple[Any, Any]:
        """Begin and end of the rows that it computes; at least one."""
        begin = _least(self.begin, self.num_rows - 1)
        return begin, begin + _most(self.count, 1)

    @property
    def is_even(self) -> bool:
        """Whether all replicas are known to have as many rows."""
        return isinstance(self.num_rows, int) and self.num_rows % self.num_replicas == 0

    def weight(self, dtype: Any) -> tf.Tensor:
        """Return what its mean over rows weighs in a mean over replicas; 1 if all are alike."""
        share = tf.cast(self.count * self.num_replicas, tf.float64)
        return tf.cast(share / tf.cast(self.num_rows, tf.float64), dtype)


def first_row(num_rows: Any, num_replicas: int, index: int) -> Any:
    """Return the first row of a replica; of numbers or tensors."""
    each, left = num_rows // num_replicas, num_rows % num_replicas
    return index * each + _least(left, index)


def share_of(batch: Any, local: range, num_replicas: int) -> Share:
    """Return what a process with the replicas `local` takes of a global batch.

    Raises ValueError for a batch whose parts have no rows.
    """
    num_rows = rows_of(batch)
    begin, _ = Rows(index=local.start, num_replicas=num_replicas, num_rows=num_rows).taken
    _, end = Rows(index=local[-1], num_replicas=num_replicas, num_rows=num_rows).taken
    is_all = len(local) == num_replicas
    return Share(
        data=batch if is_all else part_of(batch, begin, end),
        rows=tf.zeros([num_rows, 0], tf.bool),
        fingerprint=fingerprint(batch),
    )


def rows_of(batch: Any) -> Any:
    """Return the rows of a batch: a number where it is known, else a tensor.

    Raises ValueError where its parts have no rows, or not as many.
    """
    parts = leaves(batch)
    ranks = [part.shape.rank for part in parts]
    if not parts or 0 in ranks:
        raise ValueError(
            "The data set gives single numbers, not batches. Batch it, as with "
            "dataset.batch(32), or give fit arrays of samples."
        )
    known = {part.shape[0] for part in parts if part.shape[0] is not None}
    if len(known) > 1:
        raise ValueError(
            f"The parts of a batch have {' and '.join(map(str, sorted(known)))} rows: each needs a "
            "row for each sample."
        )
    if known:
        return int(known.pop())
    first = parts[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first, out_type=tf.int64)[0]


def part_of(batch: Any, begin: Any, end: Any) -> Any:
    """Return some rows of a batch."""

    def part(value: Any) -> Any:
        if value is None or isinstance(value, tf.experimental.Optional):
            return value
        if isinstance(value, tf.SparseTensor):
            rest = value.dense_shape[1:]
            first = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(rest)], 0)
            size = tf.concat([[tf.cast(end - begin, tf.int64)], rest], 0)
            return tf.sparse.slice(value, first, size)
        return value[begin:end]

    return tf.nest.map_structure(part, batch)


def leaves(batch: Any) -> list[Any]:
    """Return the tensors of a batch."""
    parts = [part for part in tf.nest.flatten(batch) if part is not None]
    return [part for part in parts if not isinstance(part, tf.experimental.Optional)]


def fingerprint(batch: Any) -> tf.Tensor:
    """Return a number that tells batches apart, as a float64: made from some of their elements."""
    total = tf.constant(0, tf.int64)
    for place, part in enumerate(leaves(batch)):
        if isinstance(part, tf.RaggedTensor):
            part = part.flat_values
        elif isinstance(part, tf.SparseTensor):
            part = part.values
        words = _words(_some(tf.reshape(part, [-1])))
        factors = tf.range(1, tf.size(words, out_type=tf.int64) + 1) * (2 * place + 1)
        total = total * 31 + tf.reduce_sum(words * factors)
    return tf.cast(tf.math.floormod(total, FINGERPRINTS), tf.float64)


def shared_out(dataset: tf.data.Dataset, local: range, num_replicas: int) -> tf.data.Dataset:
    """Return a data set of global batches as the shares of a process, in the same order.

    Raises ValueError for elements that are no batches.
    """

    is_tuple = isinstance(dataset.element_spec, tuple)  # Which `map` hands over in parts.

    def share(*batch: Any) -> Share:
        return share_of(batch if is_tuple else batch[0], local, num_replicas)

    return dataset.map(share, tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def joined_batches(dataset: tf.data.Dataset, num_batches: int) -> tf.data.Dataset:
    """Return a data set whose batches are those of so many in a row, joined.

    Raises ValueError where the size of a batch is not known.
    """
    sizes = {part.shape[0] for part in tf.nest.flatten(dataset.element_spec) if part.shape.rank}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        size = _first_size(dataset)
    return dataset.rebatch(size * num_batches)


def _first_size(dataset: tf.data.Dataset) -> int:
    for batch in dataset.take(1):
        return int(rows_of(tf.nest.map_structure(tf.convert_to_tensor, batch)))
    raise ValueError("The data set is empty: fit needs at least one batch.")


def _some(flat: tf.Tensor) -> tf.Tensor:
    """Return some elements, from the first to the last."""
    size = flat.shape[0] if flat.shape[0] is not None else tf.size(flat)
    return flat[:: _most(size // NUM_LOOKED_AT, 1)]


def _words(flat: tf.Tensor) -> tf.Tensor:
    if flat.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(flat, FINGERPRINTS)
    if flat.dtype.is_complex:
        flat = tf.math.real(flat) + tf.math.imag(flat)
    if flat.dtype.is_floating:
        return tf.cast(tf.bitcast(tf.cast(flat, tf.float32), tf.int32), tf.int64)
    return tf.cast(flat, tf.int64)


def _least(first: Any, second: Any) -> Any:
    return _chosen(first, second, min, tf.minimum)


def _most(first: Any, second: Any) -> Any:
    return _chosen(first, second, max, tf.maximum)


def _chosen(first: Any, second: Any, of_numbers: Any, of_tensors: Any) -> Any:
    if isinstance(first, int) and isinstance(second, int):
        return of_numbers(first, second)
    dtype = next(value.dtype for value in (first, second) if tf.is_tensor(value))
    return of_tensors(tf.cast(first, dtype), tf.cast(second, dtype))
