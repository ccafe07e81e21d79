"""Runs whose weights and states are off the device, as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT
from supported_runs import RUN, hash_of, plain_hashes, train

from tfunet import exit_codes

pytestmark = pytest.mark.multiprocess

SUPPORT = """
from tfunet.swap import LargeModelSupport


def support(weights, host=None, disk=None):
    return LargeModelSupport("1GiB", weights=weights, host=host, disk=disk, threshold_bytes=256)
"""
# The disk that the weights lie on fails after the second step.
LIMITING = """
import os
import resource
import keras


class Limiting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and os.environ.get("TFUNET_TEST_LIMIT"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, resource.RLIM_INFINITY))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def supported(folder, weights, **options):
    """Return the callbacks of a run in this folder with its weights off the device."""
    (folder / "off.py").write_text(SUPPORT)
    return [{"name": "off:support", "weights": weights, **options}]


@pytest.fixture(scope="module")
def plain(tmp_path_factory, cache):
    """Return the hash of the weights of a plain run, by backend."""
    return plain_hashes(tmp_path_factory.mktemp, cache, RUN)


@pytest.mark.parametrize(
    ("weights", "settings"),
    [
        ("weights", {"backend": "single", "replica_batch": 2, "accumulation": 2}),
        ("weights", {"backend": "multiworker", "num_replicas": 2}),
        ("weights", {"backend": "horovod", "split": [2, 1, 1]}),
    ],
    ids=["accumulation", "multiworker", "split"],
)
def test_weights_are_those_of_a_run_with_all_on_the_device(
    tmp_path, cache, plain, weights, settings
):
    callbacks = supported(tmp_path, weights)
    code, output = train(tmp_path / "run", cache, **RUN | settings, callbacks=callbacks)
    assert code == exit_codes.OK, output
    assert "off the device" in output
    assert hash_of(tmp_path / "run") == plain(**settings)


def test_key_makes_a_model_that_would_not_fit(tmp_path, cache, plain):
    # 107 MiB for weights, gradients and states; less than a half of this is for them.
    settings = {"backend": "single", "model_options": {"filters": 64, "levels": 3}}
    swap = {"cpu_memory": "130MiB", "swap": "110MiB"}
    code, output = train(tmp_path / "run", cache, **RUN | settings, **swap)
    assert code == exit_codes.OK, output
    assert "weights (" in output
    assert hash_of(tmp_path / "run") == plain(**settings)


def test_killed_run_goes_on_to_the_same_bits_and_leaves_nothing_on_the_disk(tmp_path, cache, plain):
    disk, folder = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    callbacks = supported(tmp_path, "weights", host=0, disk=str(disk))
    settings = {"backend": "single", "steps": 8, "checkpoint_steps": 2}
    options = {**RUN | settings, "callbacks": callbacks}
    words = [word for key, value in options.items() for word in (f"--{key}", json.dumps(value))]
    command = [sys.executable, "-m", "tfunet", "train", "--out", str(folder)]
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    process = subprocess.Popen(
        [*command, *(word.strip('"') for word in words)],
        env={**os.environ, "TFUNET_CACHE": str(cache), "PYTHONPATH": paths},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 200
        while not (folder / "checkpoint.npz").exists() and time.monotonic() < end:
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not list(disk.iterdir())
    assert not (folder / "result.json").exists()
    code, output = train(folder, cache, **options)
    assert code == exit_codes.OK, output
    assert "Going on from step" in output
    assert hash_of(folder) == plain(backend="single", steps=8)


def test_disk_that_fails_in_a_step_ends_the_run_and_another_goes_on(tmp_path, cache, plain):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "limiting.py").write_text(LIMITING)
    callbacks = supported(tmp_path, "weights", host=0, disk=str(disk))
    callbacks.append({"name": "limiting:Limiting"})
    options = {**RUN, "backend": "single", "checkpoint_steps": 2, "callbacks": callbacks}
    limit = {"TFUNET_TEST_LIMIT": "yes"}
    code, output = train(tmp_path / "run", cache, (), limit, **options)
    assert code == exit_codes.NOT_WRITTEN, output
    assert "limit on file sizes" in output
    code, output = train(tmp_path / "run", cache, **options)
    assert code == exit_codes.OK, output
    assert hash_of(tmp_path / "run") == plain(backend="single")


def test_too_little_host_memory_is_told_before_the_first_step(tmp_path, cache):
    callbacks = supported(tmp_path, "weights", host="100KiB")
    code, output = train(tmp_path / "run", cache, **RUN, backend="single", callbacks=callbacks)
    assert code == exit_codes.NOT_WRITTEN, output
    assert "have no room" in output
    assert "swap_host" in output
    assert "step 1" not in output


def test_replicas_of_one_process_keep_all_on_the_device(tmp_path, cache):
    callbacks = supported(tmp_path, "weights")
    code, output = train(
        tmp_path / "run", cache, **RUN, backend="mirrored", num_replicas=2, callbacks=callbacks
    )
    assert code == exit_codes.BAD_INPUT, output
    assert "multiworker or horovod" in output
