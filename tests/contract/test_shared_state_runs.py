"""States of optimizers shared out among replicas: the runs of replicas that have all of them."""

import re

import checks
import pytest
import runs
import supported_runs
from runs import KILL_STEP, kill_at

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
# As the weights of one device after as many steps.
TOLERANCE = 1e-6
AVERAGED = {
    "optimizer": "nadam",
    "optimizer_options": {"use_ema": True, "clipnorm": 1.0},
    "learning_rate": 0.01,
}


def trained(folder, environment=None, **settings):
    run = runs.train(folder, environment, **settings, **kill_at(KILL_STEP))
    if environment is None:
        assert run.exit_code == 0, run.output
    return run


def swapped(folder, **settings):
    """Return the same run with large-model support, which gives up all tensors that it can."""
    support = {
        "name": "tfunet.swap:LargeModelSupport",
        "budget": 0,
        "threshold_bytes": 1024,
        "allowed": ["swap", "recompute"],
    }
    run = runs.train(folder, **settings, callbacks=[*kill_at(KILL_STEP)["callbacks"], support])
    assert run.exit_code == 0, run.output
    assert re.search(r"support: [1-9]\d* tensors swapped", run.output), run.output
    return run


@pytest.mark.parametrize("backend", ["horovod", "multiworker", "mirrored"])
def test_run_is_that_of_replicas_with_all_states(backend, contract_folder):
    settings = {"backend": backend, "num_replicas": 2, **AVERAGED}
    whole = trained(contract_folder / f"{backend}-all", **settings)
    shared = trained(contract_folder / f"{backend}-shared", **settings, zero=1)
    checks.bit_identical(shared, whole)
    gradients = trained(contract_folder / f"{backend}-gradients", **settings, zero=2)
    checks.same_weights(gradients, whole, TOLERANCE)
    # What the run keeps is the network of averages, and knows nothing of parts.
    checks.same_network(shared, whole, 0)
    without = {1: shared, 2: gradients}
    zero = 1 if backend == "multiworker" else 2
    moved = swapped(contract_folder / f"{backend}-moved", **settings, zero=zero)
    if backend == "mirrored":  # Two threads, see test_contract.
        checks.same_weights(moved, without[zero])
    else:
        checks.bit_identical(moved, without[zero])


def test_killed_run_goes_on_with_all_states_to_the_same_bits(contract_folder):
    settings = {"backend": "horovod", "num_replicas": 2, **AVERAGED}
    whole = trained(contract_folder / "never-killed", **settings)
    killed = trained(
        contract_folder / "killed-shared", {"TFUNET_TEST_KILL": "1"}, **settings, zero=1
    )
    checks.ended_at_once(killed, 1)
    assert killed.weights  # It left a checkpoint.
    resumed = trained(killed.folder, **settings, zero=0)
    checks.bit_identical(resumed, whole)


def test_killed_run_goes_on_with_more_replicas(contract_folder):
    settings = {"global_batch": 6, "epochs": 4, "share_cores": True}
    single = trained(contract_folder / "six-single", **settings)
    settings["backend"] = "mirrored"
    killed = trained(
        contract_folder / "six-shared",
        {"TFUNET_TEST_KILL": "0"},
        **settings,
        num_replicas=2,
        zero=1,
    )
    assert killed.weights
    resumed = trained(killed.folder, **settings, num_replicas=3, zero=2)
    checks.same_weights(resumed, single, TOLERANCE)


def test_stages_share_out_their_states(contract_folder):
    settings = {
        "backend": "horovod",
        "num_replicas": 2,
        "stages": 2,
        "micro_batches": 2,
        "share_cores": True,
        "optimizer": "adam",
        "optimizer_options": {},
        "model_options": {**runs.BASE["model_options"], "normalization": "batch"},
    }
    whole = trained(contract_folder / "stages-all", **settings)
    shared = trained(contract_folder / "stages-shared", **settings, zero=1)
    checks.bit_identical(shared, whole)
    moved = swapped(contract_folder / "stages-moved", **settings, zero=1)
    checks.bit_identical(moved, whole)
    assert min(moved.result["pipeline"]["swapped_tensors"]) > 0


def test_parts_of_samples_share_out_their_states(contract_folder):
    settings = {"backend": "horovod", "split": [2, 1], **AVERAGED}
    whole = trained(contract_folder / "split-all", **settings)
    moved = swapped(contract_folder / "split-moved", **settings, zero=1)
    checks.bit_identical(moved, whole)


def test_key_swaps_beside_states_that_are_shared_out(contract_folder):
    settings = {
        **supported_runs.RUN,
        "backend": "horovod",
        "num_replicas": 2,
        "replica_batch": 2,
        "accumulation": 2,
        "optimizer": "adam",
    }
    hashes = []
    # In slabs sums would be rounded otherwise. A pass takes 20 MiB beside weights and states.
    for more in ({}, {"zero": 2, "swap": "18MiB"}):
        folder = contract_folder / f"key-{len(hashes)}"
        code, output = supported_runs.train(folder, contract_folder / "cache", **settings, **more)
        assert code == 0, output
        hashes.append(runs.Run(folder, code, output).result["weights_hash"])
    assert re.search(r"support: [1-9]\d* tensors swapped", output), output
    assert hashes[0] == hashes[1]
