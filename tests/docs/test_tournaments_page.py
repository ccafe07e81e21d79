"""The commands of docs/tournaments.md, in their order, with real trainers; one is killed."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib

import pytest
from paths import ROOT

from tfunet.bench.records.run_tables import read_rounds
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.config.run import RunConfig
from tfunet.config.tournament import HYPERPARAMETERS, read_tournament
from tfunet.files.typed import read_json
from tfunet.population.pairing import partner

PAGE = (ROOT / "docs/tournaments.md").read_text()


def kill_a_trainer(folder):
    """Kill trainer 1 as soon as it has written its first round; return when it is done."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        found = [
            path
            for path in folder.glob("*-r2-*/rounds.csv")
            if len(path.read_text().splitlines()) > 1
        ]
        if found:
            holder = (found[0].parent / ".lock").read_text()
            os.kill(int(re.match(r"process (\d+) on", holder)[1]), signal.SIGKILL)
            return
        time.sleep(0.01)  # It has some seconds to live.


def test_the_hyperparameters_of_the_page_are_those_that_can_change():
    (block,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    table = tomllib.loads(block)["tournament"]
    config = RunConfig(
        tournament={"trainers": 2, "round_steps": 1, **table},
        optimizer_options={"weight_decay": 1e-4},
        augmentation={"noise": 0.1},
    )
    assert list(read_tournament(config.tournament).mutate) == [
        *("learning_rate", "optimizer_options.weight_decay", "augmentation.noise"),
    ]
    named = []
    for cell in re.findall(r"^\| (`(?:learn|optim|augm).*?) \|", PAGE, re.MULTILINE):
        first, *others = re.findall(r"`(.*?)`", cell)
        named += [first, *(f"{first.partition('.')[0]}.{name}" for name in others)]
    assert named == list(HYPERPARAMETERS)


@pytest.mark.multiprocess
def test_commands_work_and_a_trainer_that_is_killed_goes_on(tmp_path):
    (block,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    name = re.match(r"# (\S+)\n", block)[1]
    (tmp_path / name).write_text(block)
    (commands,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    environment = {
        **os.environ,
        "TFUNET_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    killer = threading.Thread(target=kill_a_trainer, args=(tmp_path / "logs/meet",))
    killer.start()
    said = {}
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        ended = subprocess.run(
            [sys.executable, "-m", "tfunet", *words[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        said[words[2]] = ended.stdout
    killer.join()

    assert "2 trials (1 cell, 1 repeat" in said["plan"]
    assert "died; it goes on from its checkpoint (restart 1)" in said["run"]
    assert "2 trials: 2 done" in said["status"]
    trials = read_sweep(tmp_path / "logs/meet").trials
    for trainer, trial in enumerate(trials):
        rows = read_rounds(trial.folder)
        # Every round was played once, and none after the last step.
        assert [(row.round, row.step) for row in rows] == [(1, 3), (2, 6), (3, 9)]
        assert {row.partner for row in rows} == {partner(trainer, 2, seed=0, round=1)}
        for row in rows:
            took = row.model_of != trainer
            assert took == (row.partner_score is not None and row.partner_score > row.own_score)
            assert row.partner_score is not None or "missing or late" in row.reason
        # A record of one run, which began twice if it was killed.
        result = read_json(trial.folder / "result.json", dict)
        assert len(result["began_unix_seconds"]) == 1 + trainer
    cases = [read_json(trial.folder / "tournament.json", dict) for trial in trials]
    trained = [case for table in cases for side in ("train", "deciding") for case in table[side]]
    assert len(trained) == len(set(trained)) == 13
    assert (tmp_path / "logs/meet/report/figures/pedigree-1.svg").is_file()
