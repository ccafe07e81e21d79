"""A network in stages, in processes of their own or in one: the run of one device."""

import re
from concurrent.futures import ThreadPoolExecutor

import checks
import pytest
import runs
from runs import KILL_STEP, kill_at

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
MODEL = {"model": f"{runs.HERE / 'staged.py'}:build", "model_options": {}}
# Either backend has a schedule, and a way to cut.
STAGES = {
    "multiworker": {
        "stages": 2,
        "micro_batches": 2,
        "schedule": "1f1b",
        "balance": ["second"],
        "recompute": True,
        "batch_norm": "deferred",
    },
    "horovod": {
        "stages": 2,
        "micro_batches": 4,
        "schedule": "v",
        "balance": "time",
        "batch_norm": "deferred",
    },
}
ZEROS_CROSS = ["rescaling", "add", "late"]
IN_PARTS = {"split": [2, 1], "share_cores": True}
# Each part adds up its own rows, which rounds otherwise than one sum over all.
TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def alone(contract_folder):
    """The same network on one device."""
    run = runs.train(contract_folder / "alone", **MODEL, **kill_at(KILL_STEP))
    assert run.exit_code == 0, run.output
    return run


@pytest.mark.parametrize("backend", list(STAGES))
def test_a_killed_run_goes_on_to_the_result_of_one_device(backend, alone, contract_folder):
    settings = {**MODEL, "backend": backend, **STAGES[backend], **kill_at(KILL_STEP)}
    if backend == "multiworker":
        settings["time_parts"] = True
    folder = contract_folder / f"{backend}-stages"
    # Before it is killed, a stage sends back nothing but zeros: TensorFlow knows that already
    # while it optimizes the step, in which nobody may wait for others.
    # It is in parts, each sample on two devices of each stage, before it is killed or after.
    before = {**IN_PARTS, "balance": ZEROS_CROSS} if backend == "horovod" else {}
    first = {**settings, **before}
    killed = runs.train(folder, environment={"TFUNET_TEST_KILL": "1"}, **first)
    checks.ended_at_once(killed, 1)
    parts = IN_PARTS if backend == "multiworker" else {}
    run = runs.train(folder, **settings, **parts)
    assert run.exit_code == 0, run.output
    assert "Going on from step 6 of 10" in run.output
    checks.same_samples(run, alone)
    checks.same_losses(run, alone)
    checks.same_weights(run, alone, TOLERANCE)
    checks.same_scores(run, alone)
    assert run.result["checks"] == {"weights": True, "scores": True, "samples": True}
    pipeline = run.result["pipeline"]
    assert {key: pipeline[key] for key in ("stages", "micro_batches", "schedule")} == {
        key: STAGES[backend][key] for key in ("stages", "micro_batches", "schedule")
    }
    assert pipeline["batch_normalization"] == "deferred"
    assert run.result["exchange"] == ("backend" if parts else "shared memory")
    assert 0 < pipeline["bubble"] < 1
    is_timed = STAGES[backend]["balance"] == "time"
    assert (pipeline["predicted_stage_seconds"] is not None) == is_timed
    # Also where the cut was given.
    assert min(pipeline["predicted_stage_bytes"]) > max(pipeline["variable_bytes"])
    # Each process has the variables of its stage only; both count steps and have a rate.
    whole = sum(value.nbytes for value in alone.weights)
    assert max(pipeline["variable_bytes"]) < whole
    num_parts = 2 if parts else 1
    shared = sum(pipeline["variable_bytes"]) - num_parts * whole
    assert 0 < shared < 200
    checks.same_network(run, alone, TOLERANCE)
    checks.shown_cases_have_their_scores(run)
    if parts:
        assert "Split: each sample over 2 devices of each stage (2 x 1)" in run.output
        assert run.result["process_count"] == len(pipeline["variable_bytes"]) == 4
        assert run.result["exchanged_bytes"] > 0 <= run.result["bubble_seconds"]
        kinds = ("exchanging", "crossing", "alone")
        assert [len(run.result[f"{kind}_seconds"]) for kind in kinds] == [4, 4, 4]


def test_plans_of_stages_change_no_bit(contract_folder):
    settings = {
        **MODEL,
        "backend": "horovod",
        "stages": 2,
        "micro_batches": 2,
        "schedule": "v",
        "balance": ["add", "second", "late"],
        "steps": 8,
    }
    support = {
        "name": "tfunet.swap:LargeModelSupport",
        "budget": 0,
        "threshold_bytes": 1024,
        "verbose": 0,
    }
    with_support = {"callbacks": [*kill_at(KILL_STEP)["callbacks"], support]}
    folder = contract_folder / "horovod-stages-swapped"
    plain = runs.train(contract_folder / "horovod-stages-kept", **settings)
    assert plain.exit_code == 0, plain.output
    killed = runs.train(folder, {"TFUNET_TEST_KILL": "1"}, **settings, **with_support)
    checks.ended_at_once(killed, 1)
    run = runs.train(folder, **settings, **with_support)
    assert run.exit_code == 0, run.output
    assert "Going on from step 6 of 8" in run.output
    checks.bit_identical(run, plain)
    checks.same_losses(run, plain)
    pipeline = run.result["pipeline"]
    assert min(pipeline["swapped_tensors"]) > 0
    assert plain.result["pipeline"]["swapped_tensors"] == [0, 0]
    for planned, kept in zip(
        pipeline["predicted_stage_bytes"],
        plain.result["pipeline"]["predicted_stage_bytes"],
        strict=True,
    ):
        assert planned < kept


def test_a_volume_that_two_stages_cannot_hold_trains_with_swap(contract_folder):
    settings = {
        "model_options": {"filters": 16, "levels": 2},
        "data": "tumours",
        "data_options": {"num_cases": 5, "size": 48},
        "global_batch": 2,
        "steps": 4,
        "augmentation": {},
        "deterministic": False,
        "metrics": [],
        "backend": "multiworker",
        "stages": 2,
        "balance": ["up0_upsampling"],
        "micro_batches": 2,
        "schedule": "gpipe",
        "cpu_memory": "150MiB",
    }
    with ThreadPoolExecutor() as pool:
        # TensorFlow waits for ten seconds before it refuses memory.
        refused = pool.submit(runs.train, contract_folder / "two-stages", **settings)
        swapped = runs.train(contract_folder / "two-stages-swap", **settings, swap="auto")
    without = refused.result()
    assert without.exit_code == 3
    # oneDNN may end the process where TensorFlow has no memory for it.
    reason = without.failure["reason"]
    expected = "out of memory.* in stage [12] of 2 .*swap = 'auto'|SIGSEGV|SIGABRT"
    assert re.search(expected, reason), reason
    assert swapped.exit_code == 0, swapped.output
    pipeline = swapped.result["pipeline"]
    pairs = zip(pipeline["stage_bytes"], pipeline["predicted_stage_bytes"], strict=True)
    assert [predicted / measured for measured, predicted in pairs] == [
        pytest.approx(1, abs=0.1)
    ] * 2
    # Beside a step there are variables and batches, and none of the messages, of 9 MB each.
    peaks = zip(swapped.result["peak_device_bytes"], pipeline["stage_bytes"], strict=True)
    assert max(peak - of_step for peak, of_step in peaks) < 25e6
    assert min(pipeline["swapped_tensors"]) > 0


def test_an_evaluation_fits_where_a_step_does(contract_folder):
    """It ended out of memory when all stages got the output of a whole batch."""
    run = runs.train(
        contract_folder / "evaluated-in-stages",
        model_options={"filters": 4, "levels": 1, "convolutions": 1, "normalization": "none"},
        data="cells",
        data_options={"num_cases": 40, "size": 256},
        validation_share=0.6,
        global_batch=16,
        epochs=1,
        augmentation={},
        deterministic=False,
        metrics=[],
        backend="multiworker",
        stages=2,
        balance=["up0_upsampling"],
        micro_batches=16,
        cpu_memory="80MiB",
    )
    assert run.exit_code == 0, run.output
    assert [row["step"] for row in run.rows("steps.csv")] == ["1"]
    assert len(run.rows("cases.csv")) == 24


def test_what_large_model_support_cannot_plan_in_stages_is_refused(contract_folder):
    run = runs.train(
        contract_folder / "mirrored-stages-swap",
        backend="mirrored",
        stages=2,
        micro_batches=2,
        swap="1GiB",
        **MODEL,
    )
    assert run.exit_code == 2
    assert "'mirrored' has all stages in one process" in run.output


def test_stages_of_one_process_run_each_on_its_device(alone, contract_folder):
    run = runs.train(
        contract_folder / "mirrored-stages",
        environment={"TFUNET_TEST_PLACES": "1"},
        backend="mirrored",
        stages=2,
        micro_batches=2,
        schedule="gpipe",
        balance=["second"],
        batch_norm="deferred",
        **MODEL,
        prove=False,  # Its step of one device has all layers there.
        **kill_at(KILL_STEP),
    )
    assert run.exit_code == 0, run.output
    checks.same_samples(run, alone)
    checks.same_losses(run, alone)
    checks.same_weights(run, alone)
    checks.same_scores(run, alone)
    places = {line for line in run.output.splitlines() if " on CPU:" in line}
    assert places == {
        f"{name} {kind} on CPU:{device}"
        for name, device in (("early", 0), ("late", 1))
        for kind in ("forward", "backward")
    }
    assert len(run.result["pipeline"]["stage_seconds"]) == 2


def test_an_error_in_a_stage_ends_the_run_and_names_stage_and_part(contract_folder):
    run = runs.train(
        contract_folder / "failing",
        environment={"TFUNET_TEST_FAIL": "1"},
        backend="multiworker",
        **MODEL,
        **STAGES["multiworker"],
        **IN_PARTS,
    )
    assert run.exit_code == 3
    found = re.search(
        r"process (\d) of 4 .* stage 2 of 2 \(second to conv2d.*\) with part (\d) of 2 of a sample "
        "failed: .*too warm",
        run.failure["reason"],
    )
    assert found is not None, run.failure["reason"]
    assert found.groups() in (("2", "1"), ("3", "2"))


def test_an_error_in_a_stage_ends_all_processes_of_horovod(contract_folder):
    run = runs.train(
        contract_folder / "failing-horovod",
        environment={"TFUNET_TEST_FAIL": "1"},
        backend="horovod",
        **MODEL,
        **STAGES["multiworker"],
        **IN_PARTS,
    )
    assert run.exit_code == 3
    # Horovod may abort another process before the one that failed is seen to end.
    logs = [path.read_text() for path in sorted(run.folder.glob("log-*.txt"))]
    named = re.compile("stage 2 of 2 .* with part [12] of 2 of a sample failed: .*too warm")
    assert [bool(named.search(log)) for log in logs[:2]] == [False, False]
    assert any(named.search(log) for log in logs[2:])
