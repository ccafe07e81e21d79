"""The cap on what TensorFlow takes of a CPU's memory."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from paths import ROOT

from tfunet.config.amount import whole_mib
from tfunet.config.run import RunConfig
from tfunet.machine.cpu_memory import cap_variables, check_cap
from tfunet.process.full_memory import noting, out_of_memory, weighing

CAPPED = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "400"}
TRY = "Try swap = 'auto', or with it a smaller share"
LARGE = ["--data_options.num_cases", "5", "--data_options.size", "32"]


@pytest.mark.parametrize(
    ("amount", "mib"), [("400MiB", 400), ("2GiB", 2048), (str(2**20), 1), ("0.5GiB", 512)]
)
def test_an_amount_is_told_in_whole_mib(amount, mib):
    assert whole_mib(amount) == mib
    assert RunConfig(cpu_memory=amount).cpu_memory == amount


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("1000KB", "must be a whole number of MiB, at least 1, got '1000KB'"),
        ("0", "must be a whole number of MiB"),
        ("0.5", "must be an amount such as"),  # A share, but of what?
        ("auto", "must be an amount such as"),
    ],
)
def test_what_tensorflow_cannot_be_told_is_refused(amount, words):
    with pytest.raises(ValueError, match=words):
        RunConfig(cpu_memory=amount)


def test_no_cap_changes_nothing():
    assert cap_variables(None) == {}
    assert cap_variables("400MiB") == CAPPED
    check_cap(None, {}, on_gpu=True)
    check_cap("400MiB", CAPPED, on_gpu=False)


@pytest.mark.parametrize(
    ("environment", "on_gpu", "words"),
    [
        (CAPPED, True, "this run trains on a GPU"),
        ({}, False, "must be set when the process starts"),
        ({**CAPPED, "TF_CPU_BFC_MEM_LIMIT_IN_MB": "300"}, False, "TF_CPU_BFC_MEM_LIMIT_IN_MB=400"),
    ],
)
def test_a_cap_that_a_process_does_not_have_is_refused(environment, on_gpu, words):
    with pytest.raises(ValueError, match=words):
        check_cap("400MiB", environment, on_gpu=on_gpu)


@pytest.mark.multiprocess
def test_a_run_that_is_too_large_for_its_cap_says_so(tmp_path):
    def failed(name, *keys):
        folder = tmp_path / name
        command = [sys.executable, "-m", "tfunet", "train", *LARGE, "--out", str(folder / "run")]
        own = {"PYTHONPATH": str(ROOT), "TFUNET_CACHE": str(folder / "cache")}
        ended = subprocess.run(
            # Less than the weights: no op of oneDNN is reached, which would end the process.
            [*command, "--cpu_memory", "2MiB", *keys],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ended.returncode == 3, ended.stdout + ended.stderr
        switches = json.loads((folder / "run/env.json").read_text())["switches"]
        assert switches["TF_CPU_BFC_MEM_LIMIT_IN_MB"] == "2"
        reason = json.loads((folder / "run/failure.json").read_text())["reason"]
        assert "error: out of memory: no room for a " in reason
        return reason

    # Side by side: TensorFlow waits for ten seconds before it refuses memory.
    with ThreadPoolExecutor() as pool:
        without = pool.submit(failed, "without")
        reason = failed("with", "--swap", "0.5")
    for words in (without.result(), reason):
        assert TRY not in words
        assert "The weights alone do not fit, whatever the patch and the batch. stages" in words


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's."""


FULL = "Graph execution error:\n\nOOM when allocating tensor with shape[1,72,32] and type float"


def test_only_full_memory_is_called_so():
    assert "tensor of [1,72,32], float. Try swap" in out_of_memory(ResourceExhaustedError(FULL))
    text = "Failed to allocate memory for the batch of component 3"
    assert "no room for a batch. Try swap" in out_of_memory(ResourceExhaustedError(text))
    assert out_of_memory(ResourceExhaustedError("message larger than max")) is None
    error = ResourceExhaustedError(FULL)
    error.add_note("error: stage 2 of 2 (up0 to logits) failed: OOM")
    assert "float in stage 2 of 2 (up0 to logits). Try swap" in out_of_memory(error)
    assert out_of_memory(ValueError(text)) is None
    error = ResourceExhaustedError(f"{FULL}\n [[{{{{node unet_1/up0/Relu}}}}]]")
    assert "float, at unet_1/up0/Relu. Try swap" in out_of_memory(error)


@pytest.mark.parametrize(("limit", "is_told"), [(None, False), (400, False), (399, True)])
def test_weights_that_do_not_fit_are_told(limit, is_told):
    with pytest.raises(ResourceExhaustedError) as raised, weighing(100, "adam", limit):
        raise ResourceExhaustedError(FULL)
    assert ("whatever the patch" in out_of_memory(raised.value)) == is_told
    assert (TRY in out_of_memory(raised.value)) != is_told


@pytest.mark.parametrize(
    ("swap", "error", "noted"),
    [
        (None, ResourceExhaustedError(FULL), 0),
        ("auto", ResourceExhaustedError(FULL), 1),
        ("auto", ResourceExhaustedError("message larger than max"), 0),
        ("auto", ValueError(FULL), 0),
    ],
)
def test_full_memory_with_support_is_not_told_to_try_it(swap, error, noted):
    with pytest.raises(type(error)), noting(swap):
        raise error
    assert len(getattr(error, "__notes__", ())) == noted
    if noted:
        assert TRY not in out_of_memory(error)
        assert "float. Large-model support: swap = 'auto' is on" in out_of_memory(error)
