"""Stages whose weights and states are off the device: what leaves, and runs as a user starts
them."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers
from supported_runs import RUN, hash_of, plain_hashes, train

from tfunet import exit_codes
from tfunet.backend import Topology
from tfunet.models.symbolic import build_symbolic
from tfunet.parallel.mesh import Mesh
from tfunet.state.home import home_of
from tfunet.swap import LargeModelSupport
from tfunet.training.own_variables import own_variables

SUPPORT = """
import os
from tfunet.swap import LargeModelSupport


def support(weights, budget="1GiB", host=None, disk=None, first_only=False):
    if first_only and os.environ["HOROVOD_RANK"] != "0":
        weights = "none"
    return LargeModelSupport(
        budget, weights=weights, allowed=["swap"], host=host, disk=disk, threshold_bytes=256
    )
"""
# The processes of a run end in the middle of it, where they are told to.
ENDING = """
import os
import keras


class Ending(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 3 and os.environ.get("TFUNET_TEST_END"):
            os._exit(1)
"""
SETTINGS = RUN | {
    "stages": 2,
    "balance": ["up0_upsampling"],
    "micro_batches": 2,
    "replica_batch": 2,
    "shared_memory": False,
    "schedule": "1f1b",
}
BY_TENSORFLOW = {
    "backend": "multiworker",
    "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9, "global_clipnorm": 0.1},
}
BY_HOROVOD = {"backend": "horovod", "recompute": True}


def small():
    image = keras.Input((8, 8, 16))
    x = image
    for name in ("first", "last_but_one", "last"):
        x = layers.Conv2D(16, 3, name=name)(x)
    return keras.Model(image, x)


# The last stage has weights of 18.1 KiB, as much for all its gradients, and twice that for states.
@pytest.mark.parametrize(
    ("budget", "weights", "states"),
    [("100KiB", False, False), ("60KiB", False, True), ("42KiB", True, True)],
)
def test_budget_decides_what_of_a_stage_leaves(budget, weights, states):
    model = build_symbolic(small, precision="float32")
    model.compile("adam", "mse")
    support = LargeModelSupport(budget, threshold_bytes=256, verbose=0)
    stage = own_variables(
        model,
        {id(variable): int("last" in variable.path) for variable in model.variables},
        # Another process has the same variables.
        backend=SimpleNamespace(sum=lambda table: table + table[::-1]),
        topology=Topology(
            process_index=1, process_count=2, num_replicas=2, local_replicas=range(1, 2)
        ),
        mesh=Mesh(stages=2),
        more=keras.optimizers.Adam,
        devices={},
        support=support,
    )
    off = [entry.variable for entry in stage.entries if home_of(entry.variable) is not None]
    kinds = [""] * 2 * weights + ["_momentum", "_velocity"] * 2 * states
    assert [variable.path.rpartition("kernel")[2] for variable in off] == kinds
    kernel_bytes, own_numbers = 4 * 9 * 16 * 16, 8 + 4
    of_all = 3 * 2 * (kernel_bytes + 4 * 16) + own_numbers
    assert stage.num_bytes(1) == of_all - kernel_bytes * len(off)
    assert all(variable._value is None for variable in model.variables[:2])
    assert 0 < np.abs(model.variables[2].numpy()).max() < 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def supported(folder, **options):
    """Return the callbacks of a run in this folder with what a stage has off the device."""
    (folder / "off.py").write_text(SUPPORT)
    return [{"name": "off:support", **options}]


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory, cache):
    """Return the hash of the weights of a run with all on the devices."""
    return plain_hashes(tmp_path_factory.mktemp, cache, SETTINGS)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"weights": "state"}, BY_TENSORFLOW),
        ({"weights": "weights", "first_only": True}, BY_HOROVOD),
    ],
    ids=["state", "recomputed"],
)
def test_weights_are_those_of_a_run_with_all_on_the_devices(
    tmp_path, cache, plain, options, settings
):
    callbacks = supported(tmp_path, **options)
    code, output = train(tmp_path / "run", cache, **SETTINGS | settings, callbacks=callbacks)
    assert code == exit_codes.OK, output
    assert "off the device" in output
    assert hash_of(tmp_path / "run") == plain(**settings)


@pytest.mark.multiprocess
def test_weights_are_the_same_where_what_a_stage_receives_leaves(tmp_path, cache):
    hashes = []
    # oneDNN rounds otherwise where it fuses ops.
    exact = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    for callbacks in ([], supported(tmp_path, weights="none", budget="1MiB")):
        folder = tmp_path / f"run{len(hashes)}"
        settings = SETTINGS | BY_TENSORFLOW | {"steps": 1, "callbacks": callbacks}
        code, output = train(folder, cache, (), exact, **settings)
        assert code == exit_codes.OK, output
        hashes.append(hash_of(folder))
    assert min(result_of(folder)["pipeline"]["swapped_tensors"]) > 0
    assert hashes[0] == hashes[1]


@pytest.mark.multiprocess
def test_run_with_weights_on_disk_goes_on_to_the_same_bits(tmp_path, cache, plain):
    (tmp_path / "ending.py").write_text(ENDING)
    callbacks = supported(tmp_path, weights="weights", host=0, disk=str(tmp_path))
    callbacks.append({"name": "ending:Ending"})
    options = {**SETTINGS, **BY_TENSORFLOW, "checkpoint_steps": 2, "callbacks": callbacks}
    code, output = train(tmp_path / "run", cache, (), {"TFUNET_TEST_END": "yes"}, **options)
    assert code != exit_codes.OK, output
    assert not (tmp_path / "run" / "result.json").exists()
    code, output = train(tmp_path / "run", cache, **options)
    assert code == exit_codes.OK, output
    assert "Going on from step 2" in output
    assert "on disk" in output
    assert hash_of(tmp_path / "run") == plain(**BY_TENSORFLOW)
