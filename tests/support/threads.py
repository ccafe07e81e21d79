"""Devices that are threads of this process: they exchange eager tensors, together or in pairs."""

import queue
import threading
from itertools import permutations

import tensorflow as tf

from tfunet.parallel.group import SampleGroup

# Far more than the slowest device takes to build its model on a loaded machine.
SECONDS = 400


class Threads:
    """Runs a function on every device of a mesh; devices exchange what `Backend.exchange` would."""

    def __init__(self, mesh):
        self.mesh = mesh
        self._barrier = threading.Barrier(mesh.num_devices)
        self._sent = {}

    def _exchange(self, device):
        def exchange(sent, received, dtype):
            assert all(value.dtype == dtype for value in sent.values())
            self._sent[device] = dict(sent)
            self._barrier.wait(SECONDS)
            came = {other: tf.identity(self._sent[other][device]) for other in received}
            for other, shape in received.items():
                assert came[other].shape.as_list() == list(shape)
            assert {o for o, sent in self._sent.items() if device in sent} == set(received)
            self._barrier.wait(SECONDS)
            return came

        return exchange

    def _abort(self):
        self._barrier.abort()

    def run(self, function):
        """Return `function(group)` of each device, in order."""
        results, errors = {}, []

        def work(device):
            group = SampleGroup(mesh=self.mesh, device=device, exchange=self._exchange(device))
            try:
                results[device] = function(group)
            except Exception as error:  # raised below
                errors.append(error)
                self._abort()

        threads = [
            threading.Thread(target=work, args=(device,)) for device in range(self.mesh.num_devices)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        broken = threading.BrokenBarrierError
        first = [error for error in errors if not isinstance(error, broken)] or errors
        if first:
            raise first[0]
        return [results[device] for device in range(self.mesh.num_devices)]


class Pairs(Threads):
    """Two devices may exchange while others do not; what one sends, the other must take."""

    def __init__(self, mesh):
        super().__init__(mesh)
        self._ways = {way: queue.Queue() for way in permutations(range(mesh.num_devices), 2)}

    def _exchange(self, device):
        def exchange(sent, received, dtype):
            assert all(value.dtype == dtype for value in sent.values())
            for other, value in sent.items():
                self._ways[device, other].put(tf.identity(value))
            came = {other: self._ways[other, device].get(timeout=SECONDS) for other in received}
            if any(value is None for value in came.values()):
                raise threading.BrokenBarrierError
            for other, shape in received.items():
                assert came[other].shape.as_list() == list(shape)
                assert came[other].dtype == dtype
            return came

        return exchange

    def _abort(self):
        for way in self._ways.values():
            way.put(None)

    def run(self, function):
        results = super().run(function)
        assert all(way.empty() for way in self._ways.values())
        return results
