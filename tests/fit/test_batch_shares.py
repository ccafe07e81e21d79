"""Which rows of a global batch each replica takes, and what tells batches apart."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfunet.fit.shares import (
    Rows,
    fingerprint,
    joined_batches,
    part_of,
    rows_of,
    share_of,
    shared_out,
)

RAGGED = tf.ragged.constant([[1, 2], [], [3], [4, 5, 6], [7]])
SPARSE = tf.sparse.from_dense([[0, 1], [2, 0], [0, 0], [3, 4], [5, 0]])


def rows(index, num_replicas, num_rows):
    return Rows(index=index, num_replicas=num_replicas, num_rows=num_rows)


@pytest.mark.parametrize(
    ("num_rows", "counts", "taken"),
    [
        (8, [2, 2, 2, 2], [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (10, [3, 3, 2, 2], [(0, 3), (3, 6), (6, 8), (8, 10)]),
        # Whoever has no row takes the last one, which then counts for nothing.
        (2, [1, 1, 0, 0], [(0, 1), (1, 2), (1, 2), (1, 2)]),
        (1, [1, 0, 0, 0], [(0, 1)] * 4),
    ],
)
def test_first_replicas_have_a_row_more(num_rows, counts, taken):
    of_all = [rows(index, 4, num_rows) for index in range(4)]
    assert [each.count for each in of_all] == counts
    assert [each.taken for each in of_all] == taken
    assert {each.is_even for each in of_all} == {num_rows % 4 == 0}
    weights = [float(each.weight(tf.float32)) for each in of_all]
    np.testing.assert_allclose(weights, [4 * count / num_rows for count in counts])
    # The same where the number of rows comes with the data.
    unknown = tf.constant(num_rows, tf.int64)
    late = [rows(index, 4, unknown) for index in range(4)]
    assert [int(each.count) for each in late] == counts
    assert [tuple(map(int, each.taken)) for each in late] == taken
    assert [float(each.weight(tf.float32)) for each in late] == weights


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_row_is_taken_once(num_rows, num_replicas):
    of_all = [rows(index, num_replicas, num_rows) for index in range(num_replicas)]
    counted = [row for each in of_all for row in range(each.begin, each.begin + each.count)]
    assert counted == list(range(num_rows))
    for each in of_all:
        begin, end = each.taken
        assert 0 <= begin < end <= num_rows


@pytest.mark.parametrize(
    "batch",
    [
        tf.range(5),
        (tf.ones((5, 2)), {"y": tf.range(5), "weight": None}),
        tf.constant(["a", "b", "c", "d", "e"]),
        RAGGED,
        SPARSE,
    ],
    ids=["numbers", "structure", "strings", "ragged", "sparse"],
)
def test_shares_of_all_processes_are_the_batch(batch):
    shares = [share_of(batch, local, 3) for local in (range(2), range(2, 3))]
    assert [int(share.num_rows) for share in shares] == [5, 5]
    assert len({float(share.fingerprint) for share in shares}) == 1
    first, last = (tf.nest.flatten(share.data) for share in shares)
    for one, other, whole in zip(first, last, tf.nest.flatten(batch), strict=True):
        if whole is None:
            assert one is None
            assert other is None
            continue
        parts = [dense(one), dense(other)]
        assert [len(part) for part in parts] == [4, 1]
        assert [*parts[0], *parts[1]] == dense(whole)


def dense(value):
    value = tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (tf.constant(1.0), "gives single numbers, not batches"),
        ((), "gives single numbers, not batches"),
        ((tf.ones(3), tf.ones(2)), "The parts of a batch have 2 and 3 rows"),
    ],
)
def test_what_is_no_batch_is_refused(batch, error):
    with pytest.raises(ValueError, match=error):
        rows_of(batch)


def test_data_that_are_not_batched_are_refused_before_the_first_step():
    with pytest.raises(ValueError, match=r"Batch it, as with dataset\.batch"):
        shared_out(tf.data.Dataset.range(3), range(1), 2)


@pytest.mark.parametrize("kind", ["float16", "float64", "complex64", "int8", "uint64", "bool"])
def test_fingerprints_tell_numbers_and_their_order_apart(kind):
    one, other, turned = ([1, 0, 0], [1, 1, 0], [0, 1, 0])
    found = [float(fingerprint(tf.cast(each, kind))) for each in (one, other, turned, one)]
    assert len(set(found)) == 3
    assert found[0] == found[3]
    assert all(0 <= each < 2**31 and each == int(each) for each in found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tf.constant(["a", "b"]), tf.constant(["b", "a"])),
        (RAGGED, RAGGED + 1),
        (SPARSE, SPARSE * 2),
        ((tf.ones(2), tf.zeros(2)), (tf.zeros(2), tf.ones(2))),
        ({"x": tf.ones((0, 2)), "y": tf.ones(2)}, {"x": tf.ones((0, 2)), "y": tf.zeros(2)}),
    ],
)
def test_fingerprints_tell_batches_apart(one, other):
    assert float(fingerprint(one)) != float(fingerprint(other))
    assert float(fingerprint(one)) == float(fingerprint(one))


def test_data_set_keeps_its_order_and_what_is_known_of_it():
    data = tf.data.Dataset.range(11).batch(4).map(lambda row: {"x": row})
    shares = list(shared_out(data, range(1, 2), 2))
    assert [share.data["x"].numpy().tolist() for share in shares] == [[2, 3], [6, 7], [10]]
    assert [int(share.num_rows) for share in shares] == [4, 4, 3]
    assert int(shared_out(data, range(1), 2).cardinality()) == 3
    assert int(shared_out(data.repeat(), range(1), 2).cardinality()) == -1
    even = shared_out(tf.data.Dataset.range(11).batch(4, drop_remainder=True), range(1), 2)
    assert even.element_spec.data.shape == (2,)
    assert even.element_spec.rows.shape == (4, 0)


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_batches_in_a_row_are_joined(drop_remainder):
    data = tf.data.Dataset.range(7).map(lambda row: (row, -row)).batch(2, drop_remainder)
    joined = [one.numpy().tolist() for one, _ in joined_batches(data, 2)]
    assert joined == [[0, 1, 2, 3], [4, 5] if drop_remainder else [4, 5, 6]]


def test_no_data_cannot_be_joined():
    with pytest.raises(ValueError, match="The data set is empty"):
        joined_batches(tf.data.Dataset.range(0).batch(2), 2)


def test_parts_that_have_no_rows_stay():
    empty = tf.experimental.Optional.empty(tf.TensorSpec([]))
    assert part_of((tf.range(3), empty, None), 1, 2)[1:] == (empty, None)
