"""Runs that tell what a step of theirs took, as a user starts them."""

import json

import numpy as np
import pytest
from supported_runs import RUN, train, weights

from tfunet import exit_codes
from tfunet.swap.report.text import read_measured, read_plans

pytestmark = pytest.mark.multiprocess

ARENA = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "256"}
# A checkpoint is smaller than the limit on files. What a step swaps is larger: it may save memory
# in no other way.
AT_THE_END = """
import resource
import keras

from tfunet.swap import LargeModelSupport


class Limiting(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 2**19, resource.RLIM_INFINITY))


def support(disk):
    return LargeModelSupport("18MiB", host=0, disk=disk, allowed=["swap"])
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def test_run_in_a_capped_arena_tells_the_memory_of_its_steps(tmp_path, cache):
    folder = tmp_path / "run"
    code, output = train(folder, cache, (), ARENA, **RUN, swap="18MiB")
    assert code == exit_codes.OK, output
    plan, measured = read_plans(folder)[-1], read_measured(folder)
    assert (measured.why_not, measured.num_replicas) == ("", 1)
    assert measured.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.15)
    assert max(num_bytes for _, num_bytes in measured.curve) == measured.peak_bytes
    assert sum(measured.peak_tensors.values()) <= measured.peak_bytes
    names = {name.partition("/")[0] for name in plan.peak_tensors}
    assert names & {name.partition("/")[0] for name in measured.peak_tensors}
    result = json.loads((folder / "result.json").read_text())
    assert measured.step_seconds == result["median_step_seconds"]
    # The checkpoint was written before that step, the model after it.
    with np.load(folder / "checkpoint.npz") as saved:
        before = [saved[name] for name in saved.files]
    for array in weights(folder):
        assert any(
            array.shape == saved_array.shape and np.array_equal(array, saved_array)
            for saved_array in before
        )


def test_disk_that_fails_after_the_last_epoch_ends_no_run(tmp_path, cache):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "limiting_late.py").write_text(AT_THE_END)
    callbacks = [
        {"name": "limiting_late:Limiting"},
        {"name": "limiting_late:support", "disk": str(disk)},
    ]
    code, output = train(tmp_path / "run", cache, **RUN, callbacks=callbacks)
    assert code == exit_codes.OK, output
    assert "Left out, what more steps would have told: Swapped tensors could not be" in output
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["synthetic_share"] is None
    assert result["images_per_second"] > 0
