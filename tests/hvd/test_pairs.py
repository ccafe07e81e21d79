"""Two processes of Horovod exchange while the others do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from tfunet.bench.launch.processes_to_start import free_ports


@pytest.mark.multiprocess
@pytest.mark.parametrize("lost", ["none", "3"])
def test_processes_exchange_in_pairs_until_the_first_is_lost(lost):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    started = [
        subprocess.Popen(
            [sys.executable, Path(__file__).parent / "in_pairs.py", str(index), lost, *addresses],
            env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(4)
    ]
    try:
        # None waits for ever.
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    words = [out.split() for out, _ in said]
    if lost == "none":
        assert words == [["0", "4"]] * 4, said
    else:
        assert words == [["0"]] * 4, said
        assert all(process.returncode != 0 for process in started)
