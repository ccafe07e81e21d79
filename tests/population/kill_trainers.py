"""Kills a trainer of a tournament at a random moment, many times over: `make check-tournaments`.

`python tests/population/kill_trainers.py --times 20`. Each time a population of three trainers runs
in two places of a core each (so they take turns), and SIGKILL hits a random trainer, its supervisor
or the process that trains, at a moment that is uniform over the life of an undisturbed sweep. The
others must end within their limit, the killed one must go on, nothing may be lost, and the report
must say what happened. Prints a line a time, and at the end the counts as JSON; exit code 1 if one
did not hold.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tfunet.bench.records.run_tables import read_rounds, read_steps
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.sweep_report import summary_json, summary_table
from tfunet.population.pairing import partner
from tfunet.record import RunFolder

ROOT = Path(__file__).parents[2]
TRAINERS, STEPS, ROUND_STEPS, WAIT_SECONDS = 3, 25, 3, 120
ROUNDS = (STEPS - 1) // ROUND_STEPS
STUDY = f"""
name = "killed"

[base]
data = "cells"
data_options = {{num_cases = 12, size = 32}}
model = "{ROOT / "tests/contract/kill.py"}:build"
cores_per_replica = 1
replica_batch = 2
steps = {STEPS}
learning_rate = 1e-2

[tournament]
trainers = {TRAINERS}
round_steps = {ROUND_STEPS}
wait_seconds = {WAIT_SECONDS}

[tournament.mutate]
learning_rate = {{factors = [0.8, 1.25], low = 1e-4, high = 1e-1}}
"""
CHECKS = ("ended", "in_time", "resumed", "nothing_lost", "same_pedigree", "reported")


class Sweep:
    """A sweep of one population in a folder of its own."""

    def __init__(self, folder, cache):
        self.folder, self.logs = folder, folder / "logs/killed"
        folder.mkdir()
        (folder / "killed.toml").write_text(STUDY)
        environment = {"TFUNET_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
        self.since = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfunet", "sweep", "run", "killed.toml"],
            cwd=folder,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
            stdout=(folder / "output").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, seconds):
        """Return the exit code; None, with all its processes ended, if it takes longer."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:  # Also where this script is ended. Trainers die with their sweep.
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    @property
    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    def trials(self):
        return read_sweep(self.logs).trials

    def processes(self, trainer):
        """The processes of a trainer: its supervisor, and what it started."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if re.search(rf"-r{trainer + 1}-[0-9a-f]+(\s|$)", " ".join(child.cmdline())):
                    found.append(child)
            except psutil.Error:
                continue
        return sorted(found, key=lambda child: child.pid)


def kill_once(sweep, trainer, after, dice):
    """Kill a process of a trainer so many seconds after the start; None if it had ended before."""
    time.sleep(max(0.0, after - (time.monotonic() - sweep.since)))
    while sweep.process.poll() is None:
        found = sweep.processes(trainer)
        if found:
            victim = dice.choice(found)
            folders = [trial.folder for trial in sweep.trials()]
            done = [RunFolder(folder).is_done() for folder in folders]
            had_checkpoint = (folders[trainer] / "checkpoint.npz").is_file()
            try:
                name = " ".join(victim.cmdline()[2:4])
                victim.kill()
            except psutil.Error:
                continue
            return {
                "trainer": trainer,
                "process": name.replace(str(sweep.logs), ""),
                "rounds_before": [len(read_rounds(folder)) for folder in folders],
                "had_checkpoint": had_checkpoint,
                "was_done": done[trainer],
                "at": time.time(),
            }
        is_planned = (sweep.logs / "plan.json").is_file()
        if is_planned and RunFolder(sweep.trials()[trainer].folder).is_done():
            return None
        time.sleep(0.05)
    return None


def shown(row):
    """What a trainer wrote of a round, without times."""
    times = ("training_seconds", "round_seconds", "waited_seconds")
    return {key: value for key, value in vars(row).items() if key not in times}


def judge(sweep, killed, expected, code, limit):
    """Return which checks hold of a sweep in which a trainer was killed."""
    trials = sweep.trials()
    done = [trial.result is not None for trial in trials]
    if not all(done):
        return {**dict.fromkeys(CHECKS, False), "ended": code == 0}
    rows = {trainer: read_rounds(trial.folder) for trainer, trial in enumerate(trials)}
    ends = {t: (trial.folder / "result.json").stat().st_mtime for t, trial in enumerate(trials)}
    victim = killed["trainer"]
    others = [ends[trainer] - killed["at"] for trainer in ends if trainer != victim]
    report = summary_json(sweep.logs)["tournaments"]["populations"][0]
    text = summary_table(sweep.logs)
    missed = [
        (trainer, row.round)
        for trainer, played in rows.items()
        for row in played
        if "missing or late" in row.reason
    ]
    in_report = [
        (row["trainer"], row["round"])
        for row in report["pedigree"]
        if "missing or late" in row["reason"]
    ]
    restarts = report["restarts"].get(str(victim), [])
    was_restarted = bool(restarts) or killed["was_done"]
    return {
        "ended": code == 0,
        "in_time": max(others) < limit,
        "resumed": was_restarted and set(report["restarts"]) <= {str(victim)},
        "nothing_lost": all(
            [row.round for row in rows[trainer]] == list(range(1, ROUNDS + 1))
            and read_steps(trial.folder)["step"] == list(range(1, STEPS + 1))
            for trainer, trial in enumerate(trials)
        ),
        "same_pedigree": same_pedigree(rows, expected, victim),
        "reported": in_report == missed
        and all(f"trainer {trainer} missed others" in text for trainer, _ in missed)
        and (not restarts or f"trainer {victim} was started again" in text),
        "others_seconds": round(max(others), 1),
        "missed": missed,
        "restarts": restarts,
    }


def same_pedigree(rows, expected, victim):
    """Whether rounds are as without the kill, until a trainer met or missed one that differs."""
    same = dict.fromkeys(rows, True)
    for index in range(ROUNDS):
        now = {}
        for trainer in rows:
            row, usual = shown(rows[trainer][index]), shown(expected[trainer][index])
            other = partner(trainer, TRAINERS, seed=0, round=index + 1)
            is_missed = "missing or late" in row["reason"]
            if is_missed and row["partner"] != victim:
                return False
            now[trainer] = row == usual
            must_be_same = same[trainer] and (other is None or same[other]) and not is_missed
            if must_be_same and not now[trainer]:
                return False
        # A score may be the same by chance after other weights: once off, it stays so.
        same = {trainer: same[trainer] and now[trainer] for trainer in rows}
    return True


def main():
    """Read the arguments, and kill so many trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of trainers and moments")
    options = parser.parse_args()
    dice, judged = random.Random(options.seed), []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        Sweep(root / "first", root / "cache").wait(600)  # Fills the cache of decoded cases.
        whole = Sweep(root / "whole", root / "cache")
        assert whole.wait(600) == 0, whole.output
        seconds = time.monotonic() - whole.since
        expected = {at: read_rounds(trial.folder) for at, trial in enumerate(whole.trials())}
        print(f"An undisturbed sweep takes {seconds:.0f} s.", flush=True)
        # A restart takes a start more; a partner waits at most for its limit.
        limit = 2 * seconds + WAIT_SECONDS
        while len(judged) < options.times:
            trainer, after = dice.randrange(TRAINERS), seconds * dice.random()
            sweep = Sweep(root / "killed", root / "cache")
            try:
                killed = kill_once(sweep, trainer, after, dice)
            finally:
                code = sweep.wait(limit + 60 if sys.exc_info()[0] is None else 0)
            if killed is not None:
                holds = judge(sweep, killed, expected, code, limit)
                judged.append(holds)
                killed.pop("at")
                print(f"{after:.1f} s: {json.dumps({**killed, **holds})}", flush=True)
                if not all(holds[check] for check in CHECKS):
                    print(sweep.output[-2000:], flush=True)
            shutil.rmtree(sweep.folder)
    counts = {check: sum(holds[check] for holds in judged) for check in CHECKS}
    slowest = max(holds.get("others_seconds", 0) for holds in judged)
    print(json.dumps({"killed": len(judged), **counts, "others_slowest_seconds": slowest}))
    sys.exit(any(count != options.times for count in counts.values()))


if __name__ == "__main__":
    main()
