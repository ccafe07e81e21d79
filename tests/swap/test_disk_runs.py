"""Runs that swap to a disk, as a user starts them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_faults import namespace

from tfunet import exit_codes
from tfunet.swap.plan import Plan
from tfunet.swap.show import read_plans

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[2]
RUN = {
    "data": "tumours",
    "data_options": {"num_cases": 6, "size": 32},
    "model_options": {"filters": 8, "levels": 2},
    "replica_batch": 1,
    "steps": 4,
    "cores_per_replica": 1,
}
DISK = {"swap": "18MiB", "swap_host": "0"}
CALLBACK = """
import os
import resource
import keras


class Limiting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and os.environ.get("TFUNET_TEST_LIMIT"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, resource.RLIM_INFINITY))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def train(folder, cache, prefix=(), variables=None, **values):
    options = [word for key, one in values.items() for word in (f"--{key}", json.dumps(one))]
    options = [one.strip('"') for one in options]
    command = [*prefix, sys.executable, "-m", "tfunet", "train", "--out", str(folder), *options]
    paths = os.pathsep.join([str(ROOT), str(folder.parent)])
    ended = subprocess.run(
        command,
        env={**os.environ, "TFUNET_CACHE": str(cache), "PYTHONPATH": paths, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=280,
    )
    return ended.returncode, ended.stdout + ended.stderr


def weights(folder):
    import keras

    return keras.saving.load_model(folder / "model.keras", compile=False).get_weights()


def test_run_with_a_disk_has_the_weights_of_one_without(tmp_path, cache):
    disk = tmp_path / "disk"
    disk.mkdir()
    code, output = train(tmp_path / "upper", cache, **RUN, **DISK, swap_disk=str(disk))
    assert code == exit_codes.OK, output
    assert "MiB on disk" in output
    code, output = train(tmp_path / "lower", cache, **RUN)
    assert code == exit_codes.OK, output
    (plan,) = read_plans(tmp_path / "upper")
    assert plan.on_disk
    assert plan.host_bytes == 0
    assert Plan.from_json(plan.to_json()) == plan
    for one, other in zip(weights(tmp_path / "upper"), weights(tmp_path / "lower"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not list(disk.iterdir())


def test_disk_that_holds_the_share_of_one_process_is_too_small_for_two(tmp_path, cache):
    disk = tmp_path / "disk"
    disk.mkdir()
    # Two to five tensors of 1 MiB each, as the ops' times have it.
    shell = f"mount -t tmpfs -o size=2900k none {disk} && exec " + '"$@"'
    code, output = train(
        tmp_path / "run",
        cache,
        [*namespace(), "sh", "-c", shell, "sh"],
        **RUN,
        **DISK,
        swap_disk=str(disk),
        backend="multiworker",
        num_replicas=2,
    )
    assert code == exit_codes.NOT_WRITTEN, output
    log = "".join(one.read_text() for one in (tmp_path / "run").glob("log-*.txt"))
    # What the other one has is taken off.
    found, *_ = re.findall(rf"(\d) MiB for swapped .* in {disk}, where (\d) MiB are free", log)
    wanted, free = map(int, found)
    assert free < wanted <= 5
    assert "epoch 1" not in output


def test_replicas_of_a_process_share_what_the_host_has(tmp_path, cache):
    folder = tmp_path / "run"
    code, output = train(
        folder, cache, **RUN, swap="18MiB", swap_host="4MiB", backend="mirrored", num_replicas=2
    )
    assert code == exit_codes.OK, output
    plans = read_plans(folder)
    assert len(plans) == 2
    # With all of it to each, each takes three tensors of 1 MiB or more.
    assert all(0 < plan.host_bytes <= 2 * 2**20 for plan in plans)


def test_disk_that_fails_in_the_middle_of_a_run_ends_it_and_another_goes_on(tmp_path, cache):
    disk, other = tmp_path / "disk", tmp_path / "other"
    disk.mkdir()
    other.mkdir()
    (tmp_path / "limiting.py").write_text(CALLBACK)
    settings = {**RUN, **DISK, "callbacks": [{"name": "limiting:Limiting"}], "checkpoint_steps": 2}
    limit = {"TFUNET_TEST_LIMIT": "yes"}
    code, output = train(tmp_path / "run", cache, (), limit, **settings, swap_disk=str(disk))
    assert code == exit_codes.NOT_WRITTEN, output
    assert f"could not be written to {disk}" in output
    assert "in the middle of a step: File too large" in output
    assert not list(disk.iterdir())
    code, output = train(tmp_path / "run", cache, **settings, swap_disk=str(other))
    assert code == exit_codes.OK, output
    assert "Going on from step 2 of 4" in output


def test_folder_that_cannot_be_used_ends_a_run_before_its_data_is_read(tmp_path):
    # Nothing is in this cache: it would be decoded into.
    missing = tmp_path / "missing"
    cache = tmp_path / "cache"
    code, output = train(tmp_path / "run", cache, **RUN, **DISK, swap_disk=str(missing))
    assert code == exit_codes.BAD_INPUT, output
    assert f"'{missing}', does not exist" in output
    assert not cache.exists()
