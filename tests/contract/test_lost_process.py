"""A process that dies where another launcher started the processes."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

KILL = ROOT / "tests/contract/kill.py"
KEYS = {
    "data_options.num_cases": 10,
    "data_options.size": 32,
    "patch": "32,32",
    "model": f"{KILL}:build",
    "global_batch": 4,
    "num_replicas": 2,
    "steps": 100,
    "share_cores": "true",
    "callbacks": json.dumps([{"name": f"{KILL}:KillAt", "step": 3}]),
}


@pytest.mark.multiprocess
def test_it_is_named_in_one_line_and_in_the_record(tmp_path):
    words = [word for key, value in KEYS.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "tfunet", "train", "--backend", "multiworker", *words]
    own = {
        "TFUNET_HOSTS": "127.0.0.1,127.0.0.1",
        "TFUNET_TEST_KILL": "1",
        "TFUNET_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    started = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "run")],
            env={**os.environ, **own, "TFUNET_PROCESS": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [process.communicate(timeout=200)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [3, -9], said
    reason = json.loads((tmp_path / "run/failure.json").read_text())["reason"]
    assert reason.startswith("process 1 of 2 on 127.0.0.1 has ended, and a step needs all")
    assert said[0].splitlines()[-1] == f"error: {reason}"
    assert "Traceback" not in said[0]
