"""The same tournament on two cores, in turns, and on two nodes of a real SLURM.

`make check-tournaments` runs it. Not part of `make test`: it takes a minute.
"""

import csv
import json

import numpy as np
import pytest

from tfunet.bench.records.run_tables import read_rounds
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.cli import main

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(1200)]
STUDY = """
name = "meet"

[base]
data = "cells"
data_options = {num_cases = 14, size = 32}
model_options = {filters = 4, levels = 1}
cores_per_replica = 1
replica_batch = 2
steps = 10
learning_rate = 1e-2

[tournament]
trainers = 4
round_steps = 3
wait_seconds = 300

[tournament.mutate]
learning_rate = {factors = [0.8, 1.25], low = 1e-4, high = 1e-1}

[slurm]
partition = "low"
time = "30"
"""


def test_two_cores_and_two_nodes_give_the_same_pedigree_and_the_same_weights(
    on_cluster, cluster, capsys
):
    (on_cluster / "meet.toml").write_text(STUDY)
    assert main(["sweep", "run", "meet.toml", "--out", "logs/here"]) == 0, capsys.readouterr()
    assert "take turns" in capsys.readouterr().out
    # Half of each node is taken, so that two trainers run on each.
    fillers = [
        cluster.run("sbatch", "--parsable", f"-w{node}", "-c2", "--wrap", "exec sleep 1000").strip()
        for node in cluster.addresses
    ]
    try:
        assert main(["sweep", "run", "meet.toml", "--slurm", "--out", "logs/there"]) == 0
        assert main(["sweep", "wait", "logs/there"]) == 0, capsys.readouterr()
    finally:
        cluster.run("scancel", *fillers)
    here, there = (read_sweep(f"logs/{name}").trials for name in ("here", "there"))
    assert len(here) == len(there) == 4
    hosts = [json.loads((trial.folder / "env.json").read_text())["host"] for trial in there]
    assert sorted(hosts) == sorted([*cluster.addresses] * 2)
    changed = 0
    for one, other in zip(here, there, strict=True):
        pedigrees = [[decided(row) for row in read_rounds(trial.folder)] for trial in (one, other)]
        assert pedigrees[0] == pedigrees[1]
        assert len(pedigrees[0]) == 3
        changed += sum(row["model_of"] != trainer_of(one) for row in pedigrees[0])
        assert weights(one) == weights(other)
        assert losses(one) == losses(other)
    assert changed


def decided(row):
    """What a round decided, without times."""
    clocks = ("training_seconds", "round_seconds", "waited_seconds")
    return {key: value for key, value in vars(row).items() if key not in clocks}


def trainer_of(trial):
    return trial.config.seed % 4


def weights(trial):
    with np.load(trial.folder / "checkpoint.npz") as file:
        return {name: file[name].tobytes() for name in file.files if name.startswith("variable")}


def losses(trial):
    with (trial.folder / "steps.csv").open(newline="") as file:
        return [row["loss"] for row in csv.DictReader(file)]
