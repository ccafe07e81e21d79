"""What tf.distribute's backends feed, without a strategy."""

import tensorflow as tf

from tf_native import replicas


def pipeline(local):
    options = tf.data.Options()
    options.autotune.enabled = False
    # The batch of a replica, for each local replica in turn, then those of the next step.
    batches = [[step, replica] for step in range(3) for replica in local]
    return tf.data.Dataset.from_tensor_slices(batches).with_options(options)


def test_element_holds_a_batch_for_each_local_replica():
    fed = replicas.feed(pipeline, range(2, 4))
    assert [batch.tolist() for batch in fed.as_numpy_iterator()] == [
        [[step, 2], [step, 3]] for step in range(3)
    ]


def test_single_replica_gets_its_batches_as_they_are():
    fed = replicas.feed(pipeline, range(1, 2))
    assert [batch.tolist() for batch in fed.as_numpy_iterator()] == [[0, 1], [1, 1], [2, 1]]


def test_nothing_tunes_a_feed():
    # Its thread sleeps for up to a minute, and an iterator that is dropped waits for it.
    for local in (range(1), range(2)):
        fed = replicas.feed(pipeline, local)
        assert isinstance(fed, tf.data.Dataset)
        assert fed.options().autotune.enabled is False
