"""Devices that are threads of this process: they exchange eager tensors at a barrier."""

import threading

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

    def run(self, function):
        """Return `function(group)` of each device, in order."""
        results, errors = {}, []

        def work(device):
            group = SampleGroup(mesh=self.mesh, device=device, exchange=self._exchange(device))
            try:
                results[device] = function(group)
            except Exception as error:  # raised below
                errors.append(error)
                self._barrier.abort()

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
