"""Runs that swap to a disk, as a user starts them."""

import re

import numpy as np
import pytest
from supported_runs import RUN, namespace, train, weights

from tfunet import exit_codes
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.text import read_plans

pytestmark = pytest.mark.multiprocess

DISK = {"swap": "18MiB", "swap_host": "0"}
PLANNED = """
from pathlib import Path

from tfunet.swap import LargeModelSupport
from tfunet.swap.report.text import read_plans


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def support(run, disk):
    return LargeModelSupport("18MiB", host_budget=0, disk=disk, plan=read_plans(Path(run))[0])
"""
# However busy the disk is, nothing is cheaper to compute again.
DEAR = """
from dataclasses import replace

import keras
from tfunet.swap.measure import profile

measured = profile.measure


def measure(*args):
    costs, scratch = measured(*args)
    return replace(costs, op_seconds=[1.0] * len(costs.op_seconds)), scratch


profile.measure = measure
Callback = keras.callbacks.Callback
"""
CALLBACK = """
import os
import resource
import keras


class Limiting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and os.environ.get("TFUNET_TEST_LIMIT"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, resource.RLIM_INFINITY))
"""


def dear(folder):
    """Return the callback of DEAR, for runs in this folder."""
    (folder / "dear.py").write_text(DEAR)
    return {"name": "dear:Callback"}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory, cache):
    """A run that swapped to a disk, and that disk."""
    folder, disk = tmp_path_factory.mktemp("on_disk") / "run", tmp_path_factory.mktemp("disk")
    callbacks = [dear(folder.parent)]
    code, output = train(folder, cache, **RUN, **DISK, swap_disk=str(disk), callbacks=callbacks)
    assert code == exit_codes.OK, output
    assert "MiB on disk" in output
    return folder, disk


def test_run_with_a_disk_has_the_weights_of_one_without(tmp_path, cache, on_disk):
    folder, disk = on_disk
    code, output = train(tmp_path / "plain", cache, **RUN)
    assert code == exit_codes.OK, output
    (plan,) = read_plans(folder)
    assert plan.on_disk
    assert plan.host_bytes == 0
    assert Plan.from_json(plan.to_json()) == plan
    for on_disk_weights, plain_weights in zip(
        weights(folder), weights(tmp_path / "plain"), strict=True
    ):
        np.testing.assert_array_equal(on_disk_weights, plain_weights)
    assert not list(disk.iterdir())


def test_disk_that_holds_the_share_of_one_process_is_too_small_for_two(tmp_path, cache, on_disk):
    disk = tmp_path / "disk"
    disk.mkdir()
    # What is swapped depends on how long ops took: both processes follow a plan that was made.
    wanted_bytes = read_plans(on_disk[0])[0].disk_bytes
    (tmp_path / "planned.py").write_text(PLANNED)
    options = {"run": str(on_disk[0]), "disk": str(disk)}
    shell = f"mount -t tmpfs -o size={wanted_bytes * 3 // 2} none {disk} && exec " + '"$@"'
    code, output = train(
        tmp_path / "run",
        cache,
        [*namespace(), "sh", "-c", shell, "sh"],
        **RUN,
        callbacks=[{"name": "planned:support", **options}],
        backend="multiworker",
        num_replicas=2,
    )
    assert code == exit_codes.NOT_WRITTEN, output
    log = "".join(path.read_text() for path in (tmp_path / "run").glob("log-*.txt"))
    sizes, *_ = re.findall(rf"([\d.]+) MiB for swapped .* in {disk}, where ([\d.]+) MiB are", log)
    wanted, free = (float(size) * 2**20 for size in sizes)
    assert wanted == pytest.approx(wanted_bytes, abs=2**20 / 10)
    # What the other one has is taken off.
    assert free == pytest.approx(wanted_bytes / 2, abs=2**20 / 10)
    assert "epoch 1" not in output


def test_replicas_of_a_process_share_what_the_host_has(tmp_path, cache):
    folder = tmp_path / "run"
    swap = {"swap": "18MiB", "swap_host": "4MiB", "callbacks": [dear(tmp_path)]}
    code, output = train(folder, cache, **RUN, **swap, backend="mirrored", num_replicas=2)
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
    callbacks = [{"name": "limiting:Limiting"}, dear(tmp_path)]
    settings = {**RUN, **DISK, "callbacks": callbacks, "checkpoint_steps": 2}
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
