"""Every check of the contract goes red for a backend that breaks it."""

import re

import checks
import pytest
import runs
from runs import KILL_STEP, kill_at

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]


def broken(name, folder, *, num_replicas=2, environment=None, prove=False):
    """Run a broken backend; without the proof of its step, so that later checks see it."""
    return runs.train(
        folder / f"broken-{name}{'-proved' if prove else ''}",
        environment=environment,
        backend=f"{runs.HERE / 'broken.py'}:{name}",
        num_replicas=num_replicas,
        prove=prove,
        **kill_at(KILL_STEP),
    )


def test_sum_of_gradients_instead_of_the_mean_is_found(single, contract_folder):
    run = broken("SumsGradients", contract_folder)
    assert run.exit_code == 0, run.output
    with pytest.raises(AssertionError):
        checks.same_weights(run, single)
    with pytest.raises(AssertionError):
        checks.same_losses(run, single)
    with pytest.raises(AssertionError):
        checks.same_scores(run, single)


@pytest.mark.parametrize("name", ["SumsGradients", "AveragesNothing"])
def test_proof_finds_a_wrong_average_before_the_first_step(name, contract_folder):
    run = broken(name, contract_folder, prove=True)
    assert run.exit_code == 4, run.output
    assert "a step is not that of one device" in run.failure["reason"]
    assert "the gradient of" in run.failure["reason"]
    assert not (run.folder / "steps.csv").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("AveragesNothing", "weights of replicas .1. differ"),
        ("FeedsEveryReplicaTheSame", "used more than once"),
        ("EvaluatesTheSameEverywhere", "cases were not counted exactly once"),
    ],
)
def test_run_that_computes_the_wrong_thing_ends_as_failed(name, reason, contract_folder):
    run = broken(name, contract_folder)
    assert run.exit_code == 4, run.output
    assert re.search(reason, run.failure["reason"])
    assert not (run.folder / "result.json").exists()


def test_data_that_is_a_step_ahead_is_found(single, contract_folder):
    run = broken("SkipsSamples", contract_folder)
    # The epoch's first step is lost, so that its last one takes a sample of the next epoch: the
    # run finds that itself, or the contract does.
    if run.exit_code == 0:
        with pytest.raises(AssertionError):
            checks.same_samples(run, single)
    else:
        assert run.exit_code == 4, run.output


def test_second_process_that_writes_is_found(contract_folder):
    audit = contract_folder / "broken-audit.txt"
    run = broken(
        "EveryProcessIsChief",
        contract_folder,
        environment={
            "PYTHONPATH": f"{runs.HERE / 'audit'}",
            "TFUNET_TEST_AUDIT": str(audit),
            "TFUNET_TEST_AUDITED": str(contract_folder),
        },
    )
    with pytest.raises(AssertionError):
        checks.only_the_chief_wrote(audit, run.folder)


def test_resume_that_starts_the_data_anew_is_found(single, contract_folder):
    name = "StartsTheDataAnew"
    killed = broken(name, contract_folder, num_replicas=1, environment={"TFUNET_TEST_KILL": "0"})
    assert killed.exit_code == 3, killed.output
    resumed = broken(name, contract_folder, num_replicas=1)
    if resumed.exit_code == 0:
        with pytest.raises(AssertionError):
            checks.bit_identical(resumed, single)
    else:
        assert resumed.exit_code == 4, resumed.output
