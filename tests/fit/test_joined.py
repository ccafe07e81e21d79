"""A script's process joins the others, whoever started them."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

MOST_SECONDS = 240
JOIN_HOROVOD = '{"backend": "horovod"}'
# Each process says what it knows, once all have been here.
JOINS = """
import json, os, sys
import numpy as np
from tfunet.fit.joined import is_joined, join, leave
assert not is_joined()
arguments = json.loads(os.environ.get("JOIN", "{}"))
joined = join(**arguments)
assert is_joined() and join() is joined
topology = joined.backend.start()
joined.begin("step 1", 1)
total = joined.backend.sum(np.array([topology.process_index + 1.0]))[0]
leave()
leave()
said = [joined.backend.name, topology.process_index, topology.num_replicas, total, joined.is_alone]
os.write(1, (json.dumps(said) + "\\n").encode())  # At once: lines of processes do not mix.
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The file of such a script, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "joins.py"
    path.write_text(JOINS)
    return path


def said_by(*processes):
    """What each process says, by index; where one fails, its error."""
    ends = [process.communicate(timeout=MOST_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), ends
    lines = [line for out, _ in ends for line in out.splitlines() if line.startswith("[")]
    return sorted((json.loads(line) for line in lines), key=lambda said: said[1])


def started(command, **variables):
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.multiprocess
def test_python_alone_has_one_device_whatever_the_backend(script):
    one = started([sys.executable, str(script)], JOIN=JOIN_HOROVOD)
    assert said_by(one) == [["single", 0, 1, 1.0, True]]


@pytest.mark.multiprocess
def test_processes_of_a_launcher_join_with_the_backend_that_the_script_names(script):
    pair = [
        started(
            [sys.executable, str(script)],
            TFUNET_HOSTS="127.0.0.1,127.0.0.1",
            TFUNET_PROCESS=str(index),
            JOIN=JOIN_HOROVOD,
        )
        for index in range(2)
    ]
    assert said_by(*pair) == [["horovod", index, 2, 3.0, False] for index in range(2)]
    assert list((script.parent / "logs/scripts").iterdir()) == []  # No secret stays.


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        # Nobody says what connects the processes.
        (
            {},
            'tfunet run --backend horovod script.py`, or write tfunet.distribute(backend="horovod"',
        ),
        ({"JOIN": '{"backend": "single"}'}, "The backend 'single' trains one replica"),
        (
            {"JOIN": '{"backend": "mirrored"}'},
            "The run takes 1 process, and its launcher started 2",
        ),
        (
            {"JOIN": JOIN_HOROVOD, "TFUNET_SCRIPT": '{"backend": "multiworker"}'},
            "tfunet run --backend multiworker started this script, which asks for the backend",
        ),
        ({"TFUNET_SCRIPT": '{"epochs": 3}'}, "TFUNET_SCRIPT is set by `tfunet run`"),
    ],
)
def test_what_does_not_fit_together_is_one_error(script, variables, words):
    place = {"TFUNET_HOSTS": "127.0.0.1,127.0.0.1", "TFUNET_PROCESS": "1"}
    one = started([sys.executable, str(script)], **place, **variables)
    _, errors = one.communicate(timeout=MOST_SECONDS)
    assert one.returncode == 1
    assert words in errors.splitlines()[-1], errors
