"""Any Keras model on arrays: several devices give the run of one device."""

import checks
import pytest
import runs
from paths import ROOT

from tfunet import exit_codes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
ARRAYS = {
    "model": f"{ROOT}/tests/support/tagged_tokens.py:tagger",
    "model_options": {},
    "data": f"{ROOT}/tests/support/tagged_tokens.py:sequences",
    "data_options": {},
    "validation_share": 0.2,
    "loss": "SparseCategoricalCrossentropy",
    "loss_options": {"from_logits": True},
    "metrics": ["accuracy"],
}


@pytest.fixture(scope="module")
def one_device(contract_folder):
    return runs.train(contract_folder / "arrays", **ARRAYS)


@pytest.mark.parametrize("backend", ["mirrored", "horovod"])
def test_two_replicas_give_the_run_of_one_device(backend, one_device, contract_folder):
    assert one_device.exit_code == 0, one_device.output
    run = runs.train(
        contract_folder / f"arrays-{backend}", backend=backend, num_replicas=2, **ARRAYS
    )
    assert run.exit_code == 0, run.output
    assert run.result["proved"]["is_proved"]
    checks.same_samples(run, one_device)
    checks.same_losses(run, one_device)
    checks.same_weights(run, one_device)
    for name, value in one_device.result["metrics"].items():
        assert run.result["metrics"][name] == pytest.approx(value, rel=1e-6), name
    assert run.result["val_loss"] == pytest.approx(one_device.result["val_loss"], rel=1e-6)


def test_arrays_that_differ_between_processes_are_refused(contract_folder):
    drawn = {**ARRAYS, "data": ARRAYS["data"].replace("sequences", "drawn_anew")}
    folder = contract_folder / "arrays-drawn"
    run = runs.train(folder, backend="multiworker", num_replicas=2, **drawn)
    assert run.exit_code == exit_codes.BAD_INPUT
    assert "has other arrays in this process than in the first one. Give" in run.output
