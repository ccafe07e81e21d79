"""One sample over two devices, on every backend: the run of one device."""

import re
from concurrent.futures import ThreadPoolExecutor

import checks
import pytest
import runs
from runs import KILL_STEP, kill_at

from tfunet.parallel.exchange import SPAN
from tfunet.timing.recorded import read_spans
from tfunet.training.input_bound import BLOCK_STEPS, PARTS_TURNS

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
BACKENDS = ["mirrored", "multiworker", "horovod"]
# Each part adds up its own rows, which rounds otherwise than one sum over all.
TOLERANCE = 5e-6


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def killed(backend, contract_folder):
    """A run whose last process is killed at a step, in the middle of the second epoch."""
    last = 0 if backend == "mirrored" else 1
    run = runs.train(
        contract_folder / f"{backend}-over-two",
        environment={"TFUNET_TEST_KILL": str(last)},
        backend=backend,
        split=[2, 1],
        **timed(backend),
        **kill_at(KILL_STEP),
    )
    return run, last


def timed(backend):
    """Settings that have the exchange timed, in all ways on one backend."""
    return {"trace": True, "time_parts": backend == "multiworker"}


@pytest.fixture(scope="module")
def resumed(backend, killed):
    """The same run, gone on to its end along the other axis, by the backend's own exchange."""
    run, _ = killed
    settings = {**timed(backend), **kill_at(KILL_STEP), "shared_memory": False}
    return runs.train(run.folder, backend=backend, split=[1, 2], **settings)


def test_killed_process_ends_the_run_and_is_named(killed):
    run, process = killed
    assert "Split: each sample over 2 devices (2 x 1)." in run.output
    checks.ended_at_once(run, process)


def test_weights_samples_losses_and_scores_are_those_of_one_device(resumed, single):
    assert resumed.exit_code == 0, resumed.output
    assert "Going on from step 6 of 10" in resumed.output
    assert "Split: each sample over 2 devices (1 x 2)." in resumed.output
    assert resumed.result["split"] == [1, 2]
    assert resumed.result["num_replicas"] == 1
    assert resumed.result["exchanges"] > 0 < resumed.result["exchanged_bytes"]
    assert resumed.result["exchange"] == "backend"
    checks.same_samples(resumed, single)
    checks.same_losses(resumed, single)
    checks.same_scores(resumed, single)
    checks.same_weights(resumed, single, TOLERANCE)
    checks.same_network(resumed, single, TOLERANCE)


def test_exchanges_are_timed(backend, resumed):
    has_parts = timed(backend)["time_parts"]
    for process, spans in read_spans(resumed.folder).items():
        # Only spans since the run went on.
        spans = spans[max(at for at, span in enumerate(spans) if span.name == "start") :]
        exchanges = sorted(
            (span for span in spans if span.name == SPAN), key=lambda one: one.begin_seconds
        )
        assert all(exchange.seconds >= 0 for exchange in exchanges)
        steps = [span for span in spans if span.name in ("first step", "step")]
        assert [span.step for span in steps] == [7, 8, 9, 10]
        (each,) = {len(begun_in(step, exchanges)) for step in steps}
        assert each > 0
        (timing,) = (span for span in spans if span.name == "timing steps")
        found = begun_in(timing, exchanges)
        # Blocks of steps on real and on synthetic data take turns; with the parts of a step, those
        # that exchange only come third, and those that exchange nothing fourth.
        if not has_parts:
            assert len(found) == each * 2 * BLOCK_STEPS
            continue
        of_turn = each * 3 * BLOCK_STEPS
        assert len(found) == each + PARTS_TURNS * of_turn  # And the step that is traced.
        alone, exchanging = (resumed.result[f"{what}_seconds"] for what in ("alone", "exchanging"))
        assert len(alone[process]) == len(exchanging[process]) == PARTS_TURNS
        for turn in range(1, PARTS_TURNS):
            before, after = found[: each + turn * of_turn], found[each + turn * of_turn]
            pause = after.begin_seconds - max(span.begin_seconds + span.seconds for span in before)
            # Half of the steps alone in between take their median or more.
            assert pause > 2 * alone[process][turn - 1]


def begun_in(span, others):
    """Return those that begin within a span."""
    end = span.begin_seconds + span.seconds
    return [other for other in others if span.begin_seconds <= other.begin_seconds < end]


def test_large_model_support_changes_no_result(single, contract_folder):
    support = {
        "name": "tfunet.swap:LargeModelSupport",
        "budget": 0,
        "threshold_bytes": 1024,
        "allowed": ["swap", "recompute"],
    }
    callbacks = [*kill_at(KILL_STEP)["callbacks"], support]
    folder = contract_folder / "mirrored-split-swapped"
    run = runs.train(folder, backend="mirrored", split=[2, 1], callbacks=callbacks)
    assert run.exit_code == 0, run.output
    assert "tensors swapped" in run.output
    checks.same_samples(run, single)
    checks.same_losses(run, single)
    checks.same_weights(run, single, TOLERANCE)


@pytest.mark.parametrize("name", ["DropsARow", "ForgetsTheBackwardPass"])
def test_a_broken_exchange_is_found(name, single, contract_folder):
    run = runs.train(
        contract_folder / f"broken-{name}",
        backend=f"{runs.HERE / 'broken.py'}:{name}",
        split=[2, 1],
        prove=False,  # It would find that before the first step.
        steps=3,
        evaluate_every=9,
        **kill_at(KILL_STEP),
    )
    assert run.exit_code == 0, run.output
    losses = [
        [float(row["loss"]) for row in finished.rows("steps.csv")[:3]] for finished in (run, single)
    ]
    assert max(abs(ours - theirs) for ours, theirs in zip(*losses, strict=True)) > 100 * TOLERANCE


def test_a_volume_that_no_device_holds_trains_on_two(contract_folder):
    settings = {
        "model_options": {"filters": 8, "levels": 2},
        "data": "tumours",
        "data_options": {"num_cases": 5, "size": 48},
        "global_batch": 1,
        "steps": 2,
        "augmentation": {},
        "deterministic": False,
        "cpu_memory": "70MiB",
    }
    over_two = {"backend": "multiworker", "split": [2, 1, 1]}
    shared = runs.train(contract_folder / "volume-shared", **settings, **over_two)
    assert shared.exit_code == 0, shared.output
    # By times that were measured beside other work the cut may be one that does not fit.
    cut = {"stages": 2, "balance": ["up0_upsampling"]}
    in_stages = {"backend": "multiworker", "steps": 4, **cut}
    with ThreadPoolExecutor() as pool:
        # TensorFlow waits for ten seconds before it refuses memory.
        refused = pool.submit(runs.train, contract_folder / "volume-alone", **settings)
        staged = runs.train(contract_folder / "volume-staged", **{**settings, **in_stages})
    alone = refused.result()
    assert alone.exit_code == 3
    # oneDNN may end the process where TensorFlow has no memory for it.
    assert re.search("out of memory.* shares each sample|SIGSEGV", alone.failure["reason"])
    assert not (alone.folder / "result.json").exists()
    assert staged.exit_code == 0, staged.output
    pipeline = staged.result["pipeline"]
    pairs = zip(pipeline["stage_bytes"], pipeline["predicted_stage_bytes"], strict=True)
    assert [predicted / measured for measured, predicted in pairs] == [
        pytest.approx(1, abs=0.2)
    ] * 2
