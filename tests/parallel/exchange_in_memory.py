"""A process that exchanges through shared memory: `RANK COUNT PORT WHAT`; prints what came.

The sums by which processes meet go through the first one.
"""

import json
import os
import sys
import time
from multiprocessing.connection import Client, Listener

import numpy as np
import tensorflow as tf

from tfunet.backend import Topology
from tfunet.parallel import host_exchange

SECRET = b"of a test"


class Meeting:
    """Sums over processes, as a backend has them."""

    def __init__(self, rank, count, port):
        self.rank = rank
        if rank == 0:
            with Listener(("127.0.0.1", port), authkey=SECRET) as listener:
                self.lines = [listener.accept() for _ in range(count - 1)]
        else:
            end = time.monotonic() + 60
            while True:
                try:
                    self.lines = [Client(("127.0.0.1", port), authkey=SECRET)]
                    return
                except ConnectionRefusedError:
                    assert time.monotonic() < end
                    time.sleep(0.05)

    def sum(self, values):
        if self.rank:
            self.lines[0].send(values)
            return self.lines[0].recv()
        total = values + sum(line.recv() for line in self.lines)
        for line in self.lines:
            line.send(total)
        return total


def steps(exchange, rank, count):
    """What crosses in three steps of three exchanges: both ways, one way, and of another size."""
    others = [other for other in range(count) if other != rank]

    @tf.function(autograph=False)
    def step(number):
        given = tf.fill([2, 3], number + 10.0 * rank)
        first = exchange(
            dict.fromkeys(others, given), {other: [2, 3] for other in others}, tf.float32
        )
        # A line: each sends to the next one.
        to = {rank + 1: tf.cast(given[0] * 2, tf.bfloat16)} if rank + 1 < count else {}
        of = {rank - 1: [3]} if rank else {}
        second = exchange(to, of, tf.bfloat16)
        large = tf.fill([1000 * (1 + rank)], tf.cast(number, tf.int64))
        third = exchange(
            dict.fromkeys(others, large),
            {other: [1000 * (1 + other)] for other in others},
            tf.int64,
        )
        return (
            {str(other): value[1, 2] for other, value in first.items()},
            {str(other): tf.cast(value[2], tf.float32) for other, value in second.items()},
            {str(other): tf.reduce_sum(value) for other, value in third.items()},
        )

    return [
        [
            {other: float(value) for other, value in part.items()}
            for part in step(tf.constant(float(number)))
        ]
        for number in range(1, 4)
    ]


def refused(*_):
    raise PermissionError("as where /proc hides other processes")


def main(rank, count, port, what):
    backend = Meeting(rank, count, port)
    topology = Topology(
        process_index=rank,
        process_count=count,
        num_replicas=count,
        local_replicas=range(rank, rank + 1),
    )
    if what == "elsewhere" and rank == 1:
        host_exchange._host = lambda: 1.0
    if what == "closed" and rank == 1:
        host_exchange._Peer = refused
    exchange = host_exchange.connected(backend, topology, is_cpu=what != "gpu" or rank == 0)
    if exchange is None:
        print(json.dumps(None))
        return
    if what == "dies" and rank == 1:
        backend.sum(np.zeros(1))
        os._exit(9)
    if what == "dies":
        backend.sum(np.zeros(1))
        try:
            print(json.dumps(steps(exchange, rank, count)))
        except tf.errors.OpError as error:
            print(json.dumps(str(error)))
        return
    print(json.dumps(steps(exchange, rank, count)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])
