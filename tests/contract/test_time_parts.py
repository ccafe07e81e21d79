"""The parts of a step are timed in a real run, and sum to what it lost."""

from dataclasses import replace

import pytest
import runs

from tfunet.bench.analysis.lost_efficiency import lost
from tfunet.bench.records.sweep_record import read_sweep

DELAYS = {"input_seconds": 0.05, "average_seconds": 0.08, "straggler_seconds": 0.1}
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]


def test_parts_hold_what_was_planted_and_sum_to_the_whole(contract_folder):
    run = runs.train(
        contract_folder / "delayed",
        backend=f"{runs.ROOT / 'benchmarks/delayed.py'}:Delayed",
        backend_options=DELAYS,
        # Synchronised normalisation would have the replicas wait for each other in it.
        model_options={"filters": 4, "levels": 1, "convolutions": 1},
        num_replicas=2,
        time_parts=True,
        epochs=1,
        steps=6,
        evaluate_every=9,
    )
    assert run.exit_code == 0, run.output
    result = read_sweep(run.folder).trials[0].result
    seconds, undelayed = result.median_step_seconds, result.fastest_alone_seconds
    names = ("median_step_seconds", "real_seconds", "synthetic_seconds")
    alone = dict.fromkeys(("slowest_alone_seconds", "fastest_alone_seconds"))
    one_replica = replace(result, num_replicas=1, **dict.fromkeys(names, undelayed), **alone)
    parts = lost(result, one_replica, "weak")
    # A delay is no shorter than planted; how much longer, only a quiet machine could say.
    assert result.average_seconds >= DELAYS["average_seconds"]
    assert result.slowest_alone_seconds >= DELAYS["straggler_seconds"]
    assert seconds >= DELAYS["average_seconds"] + DELAYS["straggler_seconds"]
    parts_sum = (
        parts.computation + parts.input + parts.communication + parts.stragglers + parts.rest
    )
    assert parts_sum == pytest.approx(parts.total) == pytest.approx(1 - undelayed / seconds)
