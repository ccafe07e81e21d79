"""The order in which one thread of TensorFlow runs the ops of a step."""

import tensorflow as tf

from tfunet.graph.run_order import run_order


def names_in_order(build):
    with tf.Graph().as_default() as graph:
        build()
        ops = graph.get_operations()
    ordered = [op.name for op in run_order(ops)]
    assert sorted(ordered) == sorted(op.name for op in ops)
    return ordered


def test_what_is_ready_does_not_wait_for_what_was_traced_before_it():
    def build():
        output = tf.exp(tf.compat.v1.placeholder(tf.float32, [4]), name="output")
        with tf.control_dependencies([output]):
            stamp = tf.cos(output, name="stamp")
        with tf.control_dependencies([stamp]):
            tf.sin(tf.sin(output, name="later"), name="latest")
        # Traced last, as the metrics of a step are.
        tf.square(output, name="metric")

    ordered = names_in_order(build)
    assert ordered.index("metric") < ordered.index("later") < ordered.index("latest")


def test_of_costly_ops_it_follows_the_one_that_was_traced_last():
    def build():
        weights = tf.compat.v1.placeholder(tf.float32, [3, 3, 2, 2])
        image = tf.compat.v1.placeholder(tf.float32, [1, 8, 8, 2])
        image_shape, weights_shape = tf.constant([1, 8, 8, 2]), tf.constant([3, 3, 2, 2])
        upstream = tf.exp(tf.compat.v1.placeholder(tf.float32, [1, 8, 8, 2]), name="upstream")
        same = {"strides": [1] * 4, "padding": "SAME"}
        # In the order of TensorFlow's gradient of a convolution.
        of_image = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=image_shape, filter=weights, out_backprop=upstream, **same, name="image"
        )
        of_weights = tf.raw_ops.Conv2DBackpropFilter(
            input=image, filter_sizes=weights_shape, out_backprop=upstream, **same, name="weights"
        )
        tf.sin(of_image, name="further")
        tf.negative(of_weights, name="used")

    ordered = names_in_order(build)
    places = [ordered.index(name) for name in ("weights", "used", "image", "further")]
    assert places == sorted(places)


def test_what_others_send_comes_when_nothing_else_is_left_to_do():
    def build():
        sent = tf.exp(tf.compat.v1.placeholder(tf.float32, [4]), name="sent")
        keys = {"group_size": 2, "group_key": 1, "instance_key": 1, "ordering_token": []}
        came = tf.raw_ops.CollectiveGatherV2(input=sent, **keys, name="exchange")
        tf.sin(came, name="received")
        # It needs nothing of the exchange, so that it runs meanwhile.
        tf.cos(tf.cos(sent, name="work"), name="more_work")

    ordered = names_in_order(build)
    assert ordered.index("exchange") < ordered.index("received")
    assert ordered.index("more_work") < ordered.index("received")
