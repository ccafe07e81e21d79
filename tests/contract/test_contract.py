"""One suite for every backend, over real runs: what makes them interchangeable."""

import re
import shutil

import checks
import pytest
import runs
from paths import SUPPORT
from runs import KILL_STEP, kill_at

from tfunet.export.perfetto import trace
from tfunet.timing.xplane import read_ops

BACKENDS = ["single", "mirrored", "multiworker", "horovod"]
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


def replicas(backend):
    return 1 if backend == "single" else 2


@pytest.fixture(scope="module")
def whole(backend, single, contract_folder):
    """An uninterrupted run of the backend, whose writes are noted.

    That two runs of one device are alike is seen under mpirun, and when one is resumed.
    """
    if backend == "single":
        return single
    return runs.audited(
        contract_folder / f"{backend}-whole", backend=backend, num_replicas=2, **kill_at(KILL_STEP)
    )


@pytest.fixture(scope="module")
def killed(backend, contract_folder):
    """A run whose last process is killed at a step, in the middle of the second epoch."""
    last = 0 if backend in ("single", "mirrored") else 1
    run = runs.train(
        contract_folder / f"{backend}-killed",
        environment={"TFUNET_TEST_KILL": str(last)},
        backend=backend,
        num_replicas=replicas(backend),
        trace=True,
        **kill_at(KILL_STEP),
    )
    shutil.copytree(run.folder, contract_folder / f"{backend}-moved")
    return run, last


@pytest.fixture(scope="module")
def resumed(backend, killed):
    """The same run, gone on to its end."""
    run, _ = killed
    assert not (run.folder / "result.json").exists()
    return runs.train(
        run.folder,
        backend=backend,
        num_replicas=replicas(backend),
        trace=True,
        **kill_at(KILL_STEP),
    )


def supported(folder, backend, allowed, threshold_bytes=1024, name="tfunet.swap:LargeModelSupport"):
    """Return a run that gives up all tensors that it can, but those that are smaller."""
    support = {
        "name": name,
        "budget": 0,
        "threshold_bytes": threshold_bytes,
        "allowed": allowed,
        "weights": "none",
    }
    return runs.train(
        folder,
        backend=backend,
        num_replicas=replicas(backend),
        callbacks=[*kill_at(KILL_STEP)["callbacks"], support],
    )


def mpirun():
    """Its path; where `make test` could not install it, the test that needs it is skipped."""
    found = shutil.which("mpirun")
    if found is None:
        pytest.skip("No mpirun here: sudo apt-get install libopenmpi-dev openmpi-bin; make test")
    return found


@pytest.fixture(scope="module")
def under_mpirun(backend, contract_folder):
    """A run that mpirun started, some steps of which are profiled."""
    # Horovod over MPI, where the other run is over Gloo.
    options = {"backend_options": {"controller": "mpi"}} if backend == "horovod" else {}
    # One process shall have all cores, of which mpirun gives each only one.
    alone = backend in ("single", "mirrored")
    how = ["-np", "1", "--bind-to", "none"] if alone else ["-np", "2"]
    return runs.train(
        contract_folder / f"{backend}-mpirun",
        environment={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        launcher=[mpirun(), "--oversubscribe", *how],
        backend=backend,
        num_replicas=replicas(backend),
        profile=True,
        **options,
        **kill_at(KILL_STEP),
    )


def test_weights_equal_those_of_one_device(whole, single):
    checks.same_weights(whole, single)


@pytest.fixture(scope="module")
def short(contract_folder):
    """A function that trains three steps with other settings, once for each name of these."""

    def trained(backend, name, **settings):
        folder = contract_folder / f"{backend}-{name}"
        if not folder.exists():
            run = runs.train(
                folder, backend=backend, num_replicas=replicas(backend), steps=3, **settings
            )
            assert run.exit_code == 0, run.output
        return runs.Run(folder, 0, "")

    return trained


# Last bits grow here. Where gradients are summed, weights are off by 0.02 and more.
def test_every_optimizer_of_a_train_step_is_averaged(backend, short):
    settings = {
        "model": f"{SUPPORT / 'adversary.py'}:build",
        "model_options": {"hidden": True},
        "metrics": [],
    }
    run, single = (short(way, "adversarial", **settings) for way in (backend, "single"))
    checks.same_weights(run, single, tolerance=1e-5)


def test_an_optimizer_that_scales_the_loss_averages_once(backend, short):
    settings = {"precision": "mixed_float16", "optimizer_options": {}}
    run, single = (short(way, "scaled", **settings) for way in (backend, "single"))
    checks.same_weights(run, single, tolerance=5e-4)


def test_every_step_holds_the_samples_of_one_device(whole, single):
    checks.same_samples(whole, single)


def test_losses_and_metrics_are_those_of_one_device(whole, single):
    checks.same_losses(whole, single)


def test_weights_are_checked_over_all_replicas_after_every_epoch(whole):
    hashes = [row["weights_hash"] for row in whole.rows("epochs.csv")]
    assert len(set(hashes)) == len(hashes) == 2
    assert whole.result["checks"] == {"weights": True, "scores": True, "samples": True}


def test_scores_of_every_case_equal_those_of_one_device(whole, single):
    assert len(single.rows("cases.csv")) % 2 == 1  # Two processes cannot share them equally.
    checks.same_scores(whole, single)
    checks.shown_cases_have_their_scores(whole)


def test_only_the_chief_writes(whole):
    checks.only_the_chief_wrote(runs.writes_of(whole.folder), whole.folder)


def test_nothing_is_left_in_the_temporary_folder(whole):
    assert list(runs.temporary_of(whole.folder).iterdir()) == []


# tests/swap has those of one device.
def test_large_model_support_changes_no_result(backend, whole, contract_folder):
    if backend == "single":
        return
    run = supported(contract_folder / f"{backend}-swapped", backend, ["swap", "recompute"])
    assert run.exit_code == 0, run.output
    assert "tensors swapped" in run.output
    if backend == "mirrored":
        # Two replicas in one graph, each with a plan, and two threads: with those, oneDNN sums in
        # another order where the input of a convolution was moved.
        assert run.output.count("tensors swapped") == 2
        checks.same_weights(run, whole)
    else:
        checks.bit_identical(run, whole)


def test_ops_in_slabs_change_no_result(backend, whole, contract_folder):
    if backend == "single":
        return
    # Only tensors at the network's full resolution: each chain of ops is unrolled, slab by slab.
    threshold_bytes = 2**16 // replicas(backend)
    few_slabs = f"{runs.HERE / 'few_slabs.py'}:InFewSlabs"
    folder = contract_folder / f"{backend}-slabs"
    run = supported(folder, backend, ["split"], threshold_bytes, few_slabs)
    assert run.exit_code == 0, run.output
    assert re.search(r"swapped, [1-9]\d* split", run.output), run.output
    # The chief says its plan; two replicas of one process have one each.
    in_evaluation = re.findall(r"in evaluation, of the tensors [1-9]\d* split", run.output)
    assert len(in_evaluation) == (2 if backend == "mirrored" else 1), run.output
    checks.same_weights(run, whole)
    checks.same_scores(run, whole)


# All backends, as in every other test: where some are chosen, pytest 9.1 makes `whole` twice.
def test_mpirun_gives_the_bits_of_our_own_supervisor(under_mpirun, whole):
    assert under_mpirun.exit_code == 0, under_mpirun.output
    checks.bit_identical(under_mpirun, whole)
    checks.same_records(under_mpirun, whole)


def test_killed_process_ends_the_run_and_is_named(killed):
    run, process = killed
    checks.ended_at_once(run, process)


def test_resumed_run_has_the_bits_of_the_uninterrupted_one(resumed, whole):
    assert resumed.exit_code == 0, resumed.output
    assert "Going on from step 6 of 10" in resumed.output
    checks.bit_identical(resumed, whole)
    checks.same_records(resumed, whole)


def test_trace_tells_what_every_process_did_before_and_after_it_was_killed(backend, resumed):
    count = 2 if backend in ("multiworker", "horovod") else 1
    checks.whole_trace(resumed.folder, processes=count, steps=10, averages=replicas(backend) > 1)


def test_profiled_steps_are_in_the_trace(backend, under_mpirun):
    traced = trace(under_mpirun.folder, read_ops(under_mpirun.folder))
    ops = [event for event in traced["traceEvents"] if event.get("cat") == "op"]
    assert {op["pid"] for op in ops} == {0}
    # Ops are by the clock of TensorFlow's profiler, steps by ours.
    convolutions = [op for op in ops if "Conv2D" in op["name"]]
    steps = [event for event in traced["traceEvents"] if is_step(event, 0)]
    assert [event["args"]["step"] for event in steps] == list(range(1, 11))
    for step in steps[3:8]:
        assert any(during(convolution, step) for convolution in convolutions), step
    first, last = steps[2], steps[8]
    assert not any(during(op, first) or during(op, last) for op in ops)
    timeline = [
        event for event in traced["traceEvents"] if event.get("name") == "NEGOTIATE_ALLREDUCE"
    ]
    assert bool(timeline) == (backend == "horovod")
    (profile, *_) = [event for event in traced["traceEvents"] if event.get("name") == "profile"]
    assert all(during({"dur": 0, **event}, profile) for event in timeline)


def is_step(event, process):
    own = event["pid"] == process and event.get("cat") != "op"
    return own and event.get("name") in ("first step", "step")


def during(event, other):
    return other["ts"] <= event["ts"] and event["ts"] + event["dur"] <= other["ts"] + other["dur"]


@pytest.fixture(scope="module")
def moved(backend, killed, resumed, contract_folder):
    """A copy of the killed run, gone on to its end with one replica."""
    if backend == "single":
        return resumed
    return runs.train(
        contract_folder / f"{backend}-moved",
        backend=backend,
        num_replicas=1,
        trace=True,
        **kill_at(KILL_STEP),
    )


def test_run_that_was_stopped_goes_on_with_one_replica(backend, moved, single):
    assert moved.exit_code == 0, moved.output
    had_two = replicas(backend) == 2
    now = ", now with num_replicas=1" if had_two else "."
    assert f"Going on from step 6 of 10{now}" in moved.output
    checks.same_samples(moved, single)
    checks.same_weights(moved, single)
    assert moved.result["replicas_from_step"] == ([[1, 2], [7, 1]] if had_two else [[1, 1]])
    dropped = [row["dropped_samples"] for row in moved.rows("epochs.csv")]
    assert [len(line.split()) for line in dropped] == [1, 1]
    assert dropped == [row["dropped_samples"] for row in single.rows("epochs.csv")]
    assert len(set(dropped)) == 2


def test_elastic_run_goes_on_without_a_process_that_was_stopped(backend, single, contract_folder):
    # A limit beyond what tracing takes on a loaded machine.
    run = runs.train(
        contract_folder / f"{backend}-elastic",
        environment={"TFUNET_TEST_STOP": "1"},
        backend=backend,
        num_replicas=replicas(backend),
        elastic=True,
        hang_seconds=20,
        **kill_at(KILL_STEP),
    )
    if backend in ("single", "mirrored"):
        assert run.exit_code == 2
        assert "this run of the backend" in run.output
        return
    assert run.exit_code == 0, run.output
    assert "tfunet: process 1 of 2 hangs: " in run.output
    assert "tfunet: going on with num_replicas=1 of 2" in run.output
    assert "Going on from step 6 of 10, now with num_replicas=1" in run.output
    assert run.result["replicas_from_step"] == [[1, 2], [7, 1]]
    checks.same_samples(run, single)
    checks.same_weights(run, single)
