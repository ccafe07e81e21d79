"""benchmarks/state.py proves the bits, and times three ways in turn."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.mark.multiprocess
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_ways_are_timed_side_by_side(optimizer):
    num_processes = min(2, len(os.sched_getaffinity(0)))
    asked = {"million_parameters": 1, "rounds": 2, "optimizer": optimizer}
    run = subprocess.run(
        [sys.executable, "benchmarks/state.py", json.dumps(asked | {"processes": num_processes})],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert {name: len(each) for name, each in found["seconds"].items()} == dict.fromkeys(
        ("copy", "keras", "host"), 2
    )
    assert found["times_the_first"]["copy"] == 1
    # Weights, gradients and states.
    assert found["host_bytes"] == 10**6 * {"adam": 16, "sgd": 12}[optimizer]
