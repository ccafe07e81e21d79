"""The facts of env.json."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tfunet
from tfunet.machine.environment import environment, git_state, gpus, launcher


def test_facts_of_this_machine():
    facts = environment(
        {
            "SLURM_JOB_ID": "7",
            "SLURM_PROCID": "0",
            "TF_ENABLE_ONEDNN_OPTS": "1",
            "HOME": "/secret",
        }
    )
    assert facts["python"] == platform.python_version()
    assert facts["packages"]["keras"] == metadata.version("keras")
    assert facts["packages"]["numpy"] == metadata.version("numpy")
    assert facts["cores"] == sorted(os.sched_getaffinity(0))
    assert facts["memory_bytes"] > 2**28
    assert facts["slurm"] == {"SLURM_JOB_ID": "7"}
    assert facts["switches"] == {"TF_ENABLE_ONEDNN_OPTS": "1"}
    assert facts["launcher"] == "slurm"
    assert facts["cpu"]
    # Only what is named above leaves the machine with a record.
    assert "/secret" not in json.dumps(facts)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "none"),
        # A local run inside an allocation.
        ({"TFUNET_LAUNCH": "{}", "SLURM_PROCID": "0"}, "local"),
        ({"SLURM_PROCID": "0"}, "slurm"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "mpi"),
        ({"PMI_RANK": "1"}, "mpi"),
        ({"PALS_RANKID": "1", "PMI_RANK": "1"}, "pals"),
        ({"MV2_COMM_WORLD_RANK": "0"}, "mpi"),
        ({"FLUX_TASK_RANK": "0"}, "flux"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "horovodrun"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"}, "torchrun"),
        ({"RANK": "1"}, "none"),  # It may mean something else.
        ({"TF_CONFIG": "{}"}, "TF_CONFIG"),
        ({"TFUNET_PROCESS": "0", "TFUNET_HOSTS": "a,b", "SLURM_PROCID": "0"}, "by hand"),
        ({"TFUNET_HOSTS": "a,b", "RANK": "0", "WORLD_SIZE": "2"}, "torchrun"),
    ],
)
def test_launcher(variables, name):
    assert launcher(variables) == name


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_gpus_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = "NVIDIA H100 80GB HBM3, 81559 MiB, 550.54.15, 00000000:19:00.0"
    program(tmp_path, "nvidia-smi", f'echo "0, {line}"; echo "1, {line}"')
    found = gpus()
    assert [gpu["index"] for gpu in found] == ["0", "1"]
    assert found[0]["name"] == "NVIDIA H100 80GB HBM3"
    assert found[0]["driver_version"] == "550.54.15"
    # It prints this to standard output, and fails.
    program(tmp_path, "nvidia-smi", "echo NVIDIA-SMI has failed; exit 9")
    assert gpus() == []


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_commit_of_the_tree_that_holds_the_file(tmp_path):
    ours, foreign = tmp_path / "ours.py", tmp_path / "foreign.py"
    ours.write_text("1")
    assert git_state(ours) is None
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "ours.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    state = git_state(ours)
    assert len(state["commit"]) == 40
    assert state["modified"] is False
    ours.write_text("2")
    assert git_state(ours) == {"commit": state["commit"], "modified": True}
    # An installed package inside somebody's tree is not of that tree's commit.
    foreign.write_text("1")
    assert git_state(foreign) is None


def test_facts_and_supervisor_import_no_tensorflow():
    code = (
        "import sys, tfunet.bench.launch.launch_run, tfunet.machine.environment, tfunet.exit_codes;"
        "tfunet.machine.environment.environment();"
        "print([one for one in ('tensorflow', 'keras', 'horovod', 'numpy') if one in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(tfunet.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
