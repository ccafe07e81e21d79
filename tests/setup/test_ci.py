"""What .ci/run makes of the outcomes of its two parts, with a stand-in for make."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

FAKE_MAKE = """#!/usr/bin/env bash
echo "$* CI=$CI" >>calls
status=$TEST_STATUS
case "$*" in *contract*) status=$CONTRACT_STATUS;; esac
echo "===== closing line of $2 ====="
[ $status = 0 ] || { echo "make: *** [Makefile:1: $2] Error $status" >&2; exit $status; }
"""


@pytest.mark.parametrize(
    ("test_status", "contract_status", "passes", "last"),
    [(0, 0, True, "contract"), (2, 0, False, "test"), (0, 2, False, "contract")],
)
def test_ci_fails_when_a_part_fails_and_ends_with_pytests_line(
    tmp_path: Path, test_status: int, contract_status: int, passes: bool, last: str
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin/make"
    fake.write_text(FAKE_MAKE)
    fake.chmod(0o755)
    variables = {
        "PATH": f"{fake.parent}:{os.environ['PATH']}",
        "TEST_STATUS": str(test_status),
        "CONTRACT_STATUS": str(contract_status),
    }
    done = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == passes
    assert done.stdout.splitlines()[-1] == f"===== closing line of {last} ====="
    calls = (tmp_path / "calls").read_text()
    assert "TF=2.21" in calls or last == "test"
    assert all(line.endswith("CI=1") for line in calls.splitlines())


LEFT_OUT = """
import pytest

def test_in_its_body():
    pytest.skip("No browser here: apt-get install chromium")

@pytest.mark.skipif(True, reason="no mpirun: apt-get install openmpi-bin")
def test_by_its_mark():
    pass

def test_what_the_kernel_refuses():
    pytest.skip("this kernel refuses namespaces")

@pytest.fixture
def cluster():
    pytest.skip("No SLURM here")

def test_by_its_fixture(cluster):
    pass
"""


@pytest.mark.parametrize(
    ("ci", "options", "closing"),
    [
        ({}, (), "4 skipped"),
        ({"CI": "1"}, (), "1 failed, 1 skipped, 2 errors"),
        ({"CI": "1"}, ("-n2",), "err"),
    ],
)
def test_what_is_left_out_fails_a_ci_and_is_named(
    tmp_path: Path, ci: dict[str, str], options: tuple[str, ...], closing: str
) -> None:
    (tmp_path / "test_left_out.py").write_text(LEFT_OUT)
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-ra", *options, "test_left_out.py"],
        cwd=tmp_path,
        env={**variables, "PYTHONPATH": str(ROOT / "tests"), **ci},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (not ci), done.stdout
    assert closing in done.stdout.splitlines()[-1]
    for what in ("chromium", "openmpi-bin", "No SLURM here"):
        assert what in done.stdout
