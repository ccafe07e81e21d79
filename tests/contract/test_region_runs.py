"""Networks of regions on several devices: the run of one device."""

import checks
import pytest
import runs

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
# Regions that lie apart: cells, and the lines between them.
REGIONS = {
    "outputs": "regions",
    "metrics": ["hd95"],
    "loss_options": {},
    "data_options": {"num_cases": 26, "size": 32, "border": True},
}


@pytest.fixture(scope="module")
def one_device(contract_folder):
    return runs.train(contract_folder / "regions", **REGIONS)


@pytest.mark.parametrize("shape", [{"num_replicas": 2}, {"split": [2, 1]}], ids=str)
def test_two_processes_give_the_run_of_one_device(shape, one_device, contract_folder):
    assert one_device.exit_code == 0, one_device.output
    folder = contract_folder / f"regions-{next(iter(shape))}"
    run = runs.train(folder, backend="multiworker", **REGIONS, **shape)
    assert run.exit_code == 0, run.output
    assert list(run.result["dice"]) == ["cell", "border"]
    checks.same_samples(run, one_device)
    checks.same_losses(run, one_device)
    checks.same_scores(run, one_device)
    checks.same_weights(run, one_device, 5e-6)
