"""Large-model support times no operation in which other processes take part."""

import horovod.tensorflow as horovod
import tensorflow as tf

from tfunet.graph.op_times import OpKind, take


def test_an_exchange_is_not_run_alone():
    with tf.Graph().as_default() as graph:
        numbers = tf.compat.v1.placeholder(tf.float32, [2**18])
        horovod.mpi_ops._allreduce(numbers, op=horovod.Sum)
        tf.sqrt(numbers)
        ops = graph.get_operations()
    exchange, root = (
        next(op for op in ops if op.type == kind) for kind in ("HorovodAllreduce", "Sqrt")
    )
    # Alone, the first would fail or wait: nobody else takes part.
    alone, taken = take([OpKind(exchange), OpKind(root)])
    assert alone is None
    assert taken is not None
