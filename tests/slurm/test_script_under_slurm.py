"""The processes of a script that srun starts on nodes n2 and n10 join each other."""

import sys

import pytest
from joining_script import JOINS
from paths import ROOT

pytestmark = pytest.mark.slurm


def test_processes_of_srun_join_from_their_nodes(cluster, tmp_path, monkeypatch):
    monkeypatch.setitem(cluster.environment, "PYTHONPATH", str(ROOT))
    (tmp_path / "joins.py").write_text(JOINS)
    command = [sys.executable, "-m", "tfunet", "run", "--backend", "horovod", "joins.py"]
    said = cluster.run("srun", "--quiet", "-N2", "-n2", *command, cwd=tmp_path)
    joined = sorted(line for line in said.splitlines() if line.startswith("horovod"))
    assert joined == ["horovod 0 of 2: 3.0", "horovod 1 of 2: 3.0"], said
    assert list((tmp_path / "logs/scripts").iterdir()) == []  # No secret stays.
