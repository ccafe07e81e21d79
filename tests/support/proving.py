"""Proofs of steps on several logical CPUs, in a process that keeps them: they are set only once."""

import contextlib
import io
import multiprocessing
import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

# Small networks, of which a proof takes a second or two.
SETTINGS = {
    "data": "cells",
    "data_options": {"num_cases": 10, "size": 32},
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "patch": [32, 32],
    "global_batch": 2,
    "epochs": 1,
    "deterministic": True,
}
SECONDS = 300


class Processes:
    """A process for each number of devices, which runs what it is given."""

    def __init__(self):
        self._pools = {}

    def call(self, function, *arguments, devices=2):
        """Return `function(*arguments)`, computed where there are so many logical CPUs."""
        if devices not in self._pools:
            context = multiprocessing.get_context("spawn")
            self._pools[devices] = ProcessPoolExecutor(
                1, context, initializer=_take_cpus, initargs=(devices,)
            )
        return self._pools[devices].submit(function, *arguments).result(SECONDS)

    def close(self):
        """End the processes."""
        for pool in self._pools.values():
            pool.shutdown()


def _take_cpus(count):
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    each = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(cpu, each)


def config_of(settings):
    """Return a run of SETTINGS with these changes; it runs on the devices that they need."""
    from tfunet.arguments import from_dict

    config = from_dict({**SETTINGS, **settings, "cache_dir": str(_folder() / "cache")})
    backend = "single" if config.num_devices == 1 else "mirrored"
    return from_dict({**SETTINGS, "backend": backend, **settings, "cache_dir": config.cache_dir})


def proof(settings, fault=None):
    """Return what the proof of a run says: what result.json has of it, or why the run ends.

    `fault` puts something wrong into the package by a pytest.MonkeyPatch.
    """
    from tfunet.exit_codes import CheckFailedError
    from tfunet.performance.layer_costs import layer_times
    from tfunet.proof.prove import prove
    from tfunet.training.attempt import start
    from tfunet.training.network import build, placing_of
    from tfunet.training.run_data import open_data

    config = config_of(settings)
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            fault(patch)
        attempt = start(config, _backend(config), tempfile.mkdtemp(dir=_folder()), lambda *_: None)
        data = open_data(attempt)
        network = build(attempt, data, placing_of(attempt, data, layer_times))
        try:
            return prove(attempt, data, network)
        except CheckFailedError as error:
            return str(error)


def built(settings):
    """Return what a run says while its network is made, or why it cannot be made.

    No layer is measured: a run in stages needs `balance`.
    """
    from tfunet.training.attempt import start
    from tfunet.training.network import build, placing_of
    from tfunet.training.run_data import open_data

    config, said = config_of(settings), io.StringIO()
    attempt = start(config, _backend(config), tempfile.mkdtemp(dir=_folder()), lambda *_: None)
    data = open_data(attempt)
    try:
        with contextlib.redirect_stdout(said):
            build(attempt, data, placing_of(attempt, data, None))
    except ValueError as error:
        return str(error)
    return said.getvalue()


def trained(settings):
    """Return what result.json has of a whole run, in a process that has drawn no numbers."""
    import keras

    from tfunet.loop import run

    keras.utils.clear_session()
    config = config_of(settings)
    return run(config, _backend(config), tempfile.mkdtemp(dir=_folder()))


def _backend(config):
    import tensorflow as tf

    from tf_native.mirrored import MirroredBackend
    from tfunet.backend import Launch
    from tfunet.single_device import SingleDevice

    # A strategy numbers what it exchanges from here on: two must not give the same numbers.
    tf.distribute.MirroredStrategy._collective_key_base += 1000
    launch = Launch(num_replicas=config.num_devices)
    return (SingleDevice if config.backend == "single" else MirroredBackend)(launch)


def _folder():
    return Path(os.environ["TFUNET_TEST_PROOFS"])


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proofs")
    before = os.environ.get("TFUNET_TEST_PROOFS")
    os.environ["TFUNET_TEST_PROOFS"] = str(folder)
    made = Processes()
    yield made
    made.close()
    shutil.rmtree(folder)
    if before is None:
        del os.environ["TFUNET_TEST_PROOFS"]
