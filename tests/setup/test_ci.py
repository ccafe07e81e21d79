"""What .ci/run makes of the outcomes of its two parts, with a stand-in for make."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

FAKE_MAKE = """#!/usr/bin/env bash
echo "$*" >>calls
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
    assert "TF=2.21" in (tmp_path / "calls").read_text() or last == "test"
