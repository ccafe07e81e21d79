"""Planted delays are found in the part of the lost efficiency where they belong, in a real run."""

import functools
from dataclasses import replace

import pytest
import runs

from tfunet.bench.collect import read_sweep
from tfunet.bench.lost import lost

DELAYS = {"input_seconds": 0.1, "average_seconds": 0.15, "straggler_seconds": 0.2}
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]


def test_planted_delays_are_found_in_their_part(contract_folder):
    run = runs.train(
        contract_folder / "delayed",
        backend=f"{runs.HERE / 'delayed.py'}:Delayed",
        backend_options=DELAYS,
        # Synchronised normalisation would have the replicas wait for each other in it.
        model_options={"filters": 4, "levels": 1},
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
    # The machine's own share of each on loaded cores; on a quiet machine 10 % is enough.
    near = functools.partial(pytest.approx, rel=0.1, abs=0.04)
    assert parts.input * seconds == near(DELAYS["input_seconds"])
    assert parts.communication * seconds == near(DELAYS["average_seconds"])
    assert parts.stragglers * seconds == near(DELAYS["straggler_seconds"])
    assert parts.rest * seconds == near(0)
    assert parts.computation == 0
    assert parts.whole == pytest.approx(1 - undelayed / seconds)
    assert result.average_seconds == near(DELAYS["average_seconds"])
