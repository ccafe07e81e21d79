"""LBANN's own test of its tournaments, with real processes: `make check-tournaments`.

Not part of `make test`: it takes some minutes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from tfunet.bench.records.run_tables import read_rounds
from tfunet.bench.records.sweep_record import read_sweep

IDLE = Path(__file__).with_name("idle_weight.py")
STUDY = """
name = "meet"

[base]
backend = "{backend}"
num_replicas = {num_replicas}
data = "cells"
data_options = {{num_cases = 14, size = 32}}
model = "{idle}:build"
replica_batch = 2
steps = 13
learning_rate = 2e-2
callbacks = [{{name = "{idle}:TellIdle", folder = "{folder}"}}]

[tournament]
trainers = 2
round_steps = 3
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("backend", "num_replicas"),
    [("single", 1), ("mirrored", 2), ("multiworker", 2), ("horovod", 2)],
)
def test_the_untrained_weight_follows_the_winner_into_every_process(
    backend, num_replicas, tmp_path
):
    idle = tmp_path / "idle"
    idle.mkdir()
    study = STUDY.format(backend=backend, num_replicas=num_replicas, idle=IDLE, folder=idle)
    (tmp_path / "meet.toml").write_text(study)
    ended = subprocess.run(
        [sys.executable, "-m", "tfunet", "sweep", "run", "meet.toml"],
        cwd=tmp_path,
        env={**os.environ, "TFUNET_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    trials = read_sweep(tmp_path / "logs/meet").trials
    rows = [read_rounds(trial.folder) for trial in trials]
    assert [[row.step for row in played] for played in rows] == [[3, 6, 9, 12]] * 2
    processes = 2 if backend in ("multiworker", "horovod") else 1
    # After each step, in each process.
    values = [
        [
            [float(line) for line in (idle / f"{trial.id}-{process}.txt").read_text().split()]
            for process in range(processes)
        ]
        for trial in trials
    ]
    assert all(len(noted) == 13 for own in values for noted in own)
    assert values[0][0][0] != values[1][0][0]
    for first, second in zip(*rows, strict=True):
        # Both decide on the same cases: each sees the score that the other one has seen.
        assert first.own_score == second.partner_score
        assert second.own_score == first.partner_score
        step = first.step
        for trainer, row in enumerate((first, second)):
            winner = values[row.model_of][0][step - 1]
            assert [noted[step] for noted in values[trainer]] == [winner] * processes
            assert (row.model_of != trainer) == (row.partner_score > row.own_score)
    assert any(row.model_of != trainer for trainer, played in enumerate(rows) for row in played)
    assert all(trial.result.checks["weights"] for trial in trials)
