"""A host whose name has no address, on which Horovod would die by a signal."""

import shutil
import subprocess
import sys

import pytest
from paths import ROOT

# A host name of its own needs root, or a kernel that lets users have namespaces.
UNKNOWN = ["unshare", "--uts", "sh", "-c", 'hostname nowhere-to-be-found; exec "$@"', "sh"]


def can_be_renamed():
    return bool(shutil.which("unshare")) and not subprocess.run([*UNKNOWN, "true"]).returncode


@pytest.mark.multiprocess
@pytest.mark.skipif(not can_be_renamed(), reason="a host name of its own needs root")
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
    ],
    ids=["training", "building"],
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
    said = ended.stdout + ended.stderr
    assert ended.returncode == status, said
    assert "nowhere-to-be-found has no address" in said
    assert "/etc/hosts: 127.0.0.1 nowhere-to-be-found" in said
