"""The memory that a step is predicted to hold, for steps whose bytes can be added up by hand."""

import tensorflow as tf

from tfunet.training.stage_forecast import forecast_bytes

KIB = 2**10
# A tensor of 64 x 16 numbers.
SHAPE, ROWS = (64, 16), 4 * KIB
KEYS = {"group_size": 2, "group_key": 1, "instance_key": 1, "ordering_token": []}


def forecast(step):
    """Return the prediction for a step of one tensor, which is there before it."""
    found = []

    @tf.function(autograph=False)
    def traced(batch):
        results = step(batch)
        found.append(forecast_bytes(results, []))
        return results

    traced.get_concrete_function(tf.TensorSpec(SHAPE))
    return found[0]


def test_micro_batches_are_rows_of_the_batch():
    def step(batch):
        return [tf.reduce_sum(part) for part in tf.split(tf.exp(batch), 4)]

    assert forecast(step) == ROWS


def test_what_is_kept_for_the_gradient_counts_until_then():
    def step(batch):
        with tf.GradientTape() as tape:
            tape.watch(batch)
            output = tf.exp(tf.sin(tf.exp(batch)))
        return [tf.reduce_sum(tape.gradient(output, batch))]

    # Both exponentials keep the output, the sine the input; the last gradient takes over one.
    assert forecast(step) == 3 * ROWS


def received(batch, own):
    """What another process sends for it, in the buffer of both."""
    both = tf.raw_ops.CollectiveGatherV2(input=own, **KEYS)
    theirs = tf.gather(tf.ensure_shape(both, [2 * SHAPE[0], SHAPE[1]]), tf.range(SHAPE[0]))
    return tf.ensure_shape(theirs, SHAPE)


def test_an_exchange_takes_what_is_sent_and_a_buffer_for_both():
    def step(batch):
        return [tf.reduce_sum(received(batch, tf.exp(batch)))]

    # What is sent is free when the buffer is read.
    assert forecast(step) == 3 * ROWS


def test_where_nothing_is_sent_zeros_are_there_before_the_step():
    def step(_):
        filled_up = tf.pad(tf.zeros([0, SHAPE[1]]), [(0, SHAPE[0]), (0, 0)])
        both = tf.raw_ops.CollectiveGatherV2(input=filled_up, **KEYS)
        return [tf.reduce_sum(tf.ensure_shape(both, [2 * SHAPE[0], SHAPE[1]]))]

    assert forecast(step) == 2 * ROWS


def test_work_that_needs_no_exchange_is_done_while_one_is_under_way():
    def step(batch):
        came = received(batch, tf.exp(batch))
        return [tf.reduce_sum(came), tf.reduce_sum(tf.sin(batch) ** 2.0)]

    assert forecast(step) == 4 * ROWS


def test_what_is_ready_early_counts_where_most_is_kept():
    def step(batch):
        kept = tf.exp(batch)
        output = tf.exp(kept)
        with tf.control_dependencies([tf.cos(output)]):
            later = tf.reduce_sum(tf.sin(kept))
        # As the metrics of a step, traced last, and ready with the output.
        return [later, tf.reduce_max(tf.concat([output, output], 0))]

    assert forecast(step) == 4 * ROWS
