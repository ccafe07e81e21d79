"""Two processes of Horovod exchange while the others do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from tfunet.bench.launch.processes_to_start import free_ports


@pytest.mark.multiprocess
def test_processes_exchange_in_pairs_until_the_first_is_lost():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    started = [
        subprocess.Popen(
            [sys.executable, Path(__file__).parent / "in_pairs.py", str(index), *addresses],
            # After a loss, one may wait for another that has not ended: not for long.
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CUDA_VISIBLE_DEVICES": "",
                "HOROVOD_GLOO_TIMEOUT_SECONDS": "30",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(4)
    ]
    try:
        said = [[process.stdout.readline().strip() for _ in range(3)] for process in started]
        # The last one first: it is lost, and then none waits for ever.
        errors = [process.communicate(timeout=300)[1] for process in reversed(started)]
    finally:
        for process in started:
            process.kill()
    # The gradient on a device: its own sum, and the sum of what the others multiply theirs by.
    assert said == [["0", "4", "1.5 6.0 12.0"]] * 4, "\n".join(errors)
    assert all(process.returncode != 0 for process in started)
