"""A host whose name has no address, on which Horovod would die by a signal."""

import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

# A host name of its own.
ROOT_ONLY = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
UNKNOWN = [
    *("unshare", *ROOT_ONLY, "--uts", "sh", "-c"),
    *('hostname nowhere-to-be-found; exec "$@"', "sh"),
]
# What `tfunet doctor` says of Horovod.
DOCTOR = """
from tfunet.machine import doctor, probes
answer = probes.ask(probes.HOROVOD_PROBE, {**probes.HIDE_GPUS, **probes.OVER_GLOO})
for row in doctor.horovod_checks(answer, has_compiler=True, num_gpus=0):
    print(*doctor.row_lines(row), sep="\\n")
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (
            [
                *("-m", "tfunet", "train", "--backend", "horovod", "--steps", "1", "--out", "run"),
                *("--cores_per_replica", "1", "--replica_batch", "1"),
                *("--model_options.filters", "4", "--model_options.levels", "1"),
                *("--data_options.size", "32", "--data_options.num_cases", "4"),
            ],
            2,
        ),
        (["-m", "hvd.build", "--wheels", "wheels", "--log", "log"], 3),
        (["-c", DOCTOR], 0),
    ],
    ids=["training", "building", "the doctor"],
)
def test_the_line_for_etc_hosts_is_said(command, status, tmp_path):
    ended = subprocess.run(
        [*UNKNOWN, "env", f"PYTHONPATH={ROOT}", sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    said = " ".join((ended.stdout + ended.stderr).split())
    assert ended.returncode == status, said
    assert re.search(r"nowhere-to-be-found,? has no address", said)
    assert re.search("/etc/hosts: 127.0.0.1 (type:.*)?nowhere-to-be-found", said)
