"""Two trainers of a tournament as jobs of a real SLURM, each on a node of its own."""

import pytest

from tfunet.bench.records.run_tables import read_rounds
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.cli import main

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(1200)]
STUDY = """
name = "meet"

[base]
data = "cells"
data_options = {num_cases = 12, size = 32}
model_options = {filters = 4, levels = 2}
cores_per_replica = 1
replica_batch = 2
steps = 7

[tournament]
trainers = 2
round_steps = 3
wait_seconds = 200

[slurm]
partition = "low"
time = "30"
"""


def test_trainers_on_two_nodes_meet_in_every_round(on_cluster, capsys):
    (on_cluster / "meet.toml").write_text(STUDY)
    assert main(["sweep", "run", "meet.toml", "--slurm"]) == 0
    assert main(["sweep", "wait", "logs/meet"]) == 0, capsys.readouterr()
    first, second = (read_rounds(trial.folder) for trial in read_sweep("logs/meet").trials)
    assert [row.step for row in first] == [row.step for row in second] == [3, 6]
    for one, other in zip(first, second, strict=True):
        # Both decide on the same cases, so each has seen the score that the other one saw.
        assert one.own_score == other.partner_score
        assert other.own_score == one.partner_score
        assert one.model_of == other.model_of
