"""Weak scaling from 1 to 2 replicas with one core each, against what a user would do instead.

Ours: every backend, with our own loop and with Keras's `fit` in a script that calls
tfunet.distribute(). The peers, in the same rounds: tf_keras `fit` under
MultiWorkerMirroredStrategy, and tf_keras with horovod.tensorflow.keras.DistributedOptimizer.
The bound: two independent single-device runs at once. Every way trains the same U-Net on the
same images in fresh processes that the same supervisor pins to a core each; the order within a
round is drawn anew, between two single-device runs whose mean is the reference of that round.
A run whose replicas end with different weights ends the benchmark.

    python benchmarks/scaling.py [--quick] [--only multiworker,"tf_keras multiworker"]
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measure

from tfunet.bench.launch.launch_run import launch
from tfunet.bench.records.run_tables import read_steps
from tfunet.bench.study.toml_writer import config_toml
from tfunet.config.run import RunConfig
from tfunet.fit.placement import VARIABLE, to_text

SETTINGS = {
    "model_options": {"filters": 8, "levels": 3, "normalization": "none"},
    "data": "cells",
    "data_options": {"num_cases": 60, "size": 128},
    "loss": "SparseCategoricalCrossentropy",
    "loss_options": {"from_logits": True},
    "replica_batch": 4,
    "augmentation": {"flips": False},
    "steps": 150,
    "evaluate_every": 10_000,
    "cores_per_replica": 1,
}
OURS = ("mirrored", "multiworker", "horovod")
FITS = tuple(f"fit {backend}" for backend in OURS)
PEERS = ("tf_keras multiworker", "tf_keras horovod")
WARM_UP_STEPS = 10


def run_ours(backend, folder, cache):
    """Return the steady step times of one of our backends."""
    num_replicas = 1 if backend == "single" else 2
    config = RunConfig(**SETTINGS, backend=backend, num_replicas=num_replicas, cache_dir=cache)
    finish(launch(config, folder), backend)
    return ours_times(folder)


def ours_times(folder):
    return read_steps(folder)["seconds"][WARM_UP_STEPS:]


def run_script(way, folder, parameters):
    """Return the steady step times of a script with `fit`: those of its first process, as of ours.

    `way` is "fit BACKEND", ours, or "tf_keras KIND", a peer.
    """
    whose, backend = way.split()
    config = RunConfig(**SETTINGS, backend=backend, num_replicas=2)
    here = Path(__file__).parent
    scripts = {"fit": ["fit_way.py"], "tf_keras": ["tf_keras_peer.py", backend]}
    file, *options = scripts[whose]
    if whose == "fit":
        os.environ[VARIABLE] = to_text({"backend": backend, "num_replicas": 2})
    command = [sys.executable, str(here / file), *options, str(folder)]
    try:
        finish(launch(config, folder, command=command), way)
    finally:
        os.environ.pop(VARIABLE, None)
    facts = [json.loads(path.read_text()) for path in sorted(folder.glob("peer-*.json"))]
    if any(fact["weights"] != facts[0]["weights"] for fact in facts):
        raise SystemExit(f"{way}: the processes end with different weights.")
    if facts[0]["parameters"] != parameters:
        raise SystemExit(f"{way}: {facts[0]['parameters']} parameters, not {parameters}.")
    return facts[0]["seconds"][WARM_UP_STEPS:]


def run_independent(folder, cache):
    """Return the steady step times of two runs at once that know nothing of each other."""
    folder.mkdir()
    config = folder / "run.toml"
    alone = {**SETTINGS, "cores_per_replica": None, "cache_dir": cache}
    config.write_text(config_toml(RunConfig(**alone)))
    cores = sorted(os.sched_getaffinity(0))[:2]
    train = [sys.executable, "-m", "tfunet", "train", "--config", str(config), "--out"]
    started = [
        subprocess.Popen(
            ["taskset", "-c", str(core), *train, str(folder / str(core))],
            stdout=subprocess.DEVNULL,
        )
        for core in cores
    ]
    exit_codes = [process.wait() for process in started]
    if any(exit_codes):
        raise SystemExit("An independent run failed.")
    both = zip(*(ours_times(folder / str(core)) for core in cores), strict=True)
    return [max(pair) for pair in both]


def finish(outcome, name):
    if outcome.exit_code:
        raise SystemExit(f"{name}: {outcome.reason}")


def one_round(folder, cache, order):
    """Return each way's median step time."""
    times = {}
    before = statistics.median(run_ours("single", folder / "before", cache))
    parameters = json.loads((folder / "before/result.json").read_text())["parameters"]
    for way in order:
        target = folder / way.replace(" ", "-")
        if way in OURS:
            seconds = run_ours(way, target, cache)
        elif way in (*FITS, *PEERS):
            seconds = run_script(way, target, parameters)
        else:
            seconds = run_independent(target, cache)
        times[way] = statistics.median(seconds)
    after = statistics.median(run_ours("single", folder / "after", cache))
    return {"single": (before + after) / 2, **times}


def main():
    ways = (*OURS, *FITS, *PEERS, "independent")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    parser.add_argument("--only", default=",".join(ways), help="these ways, with commas between")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if not set(chosen) <= set(ways):
        raise SystemExit(f"--only takes {', '.join(ways)}, got {options.only!r}.")
    num_rounds = 1 if options.quick else 5
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("Two replicas with a core each need two cores.")
    drawn = random.Random(0)
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_rounds):
            order = list(chosen)
            drawn.shuffle(order)
            path = Path(folder) / str(number)
            path.mkdir()
            rounds.append(one_round(path, f"{folder}/cache", order))
            print({way: round(seconds, 4) for way, seconds in rounds[-1].items()}, flush=True)
    measure.show(claims(rounds))


def claims(rounds):
    """Return the claims that the rounds support or refute."""
    samples = {way: [row[way] for row in rounds] for way in rounds[0]}
    peers = ["tensorflow", "keras", "tf_keras", "horovod"]
    verdicts = []
    pairs = [
        (way, peer, 1.0) for peer in PEERS for way in (peer.split()[1], f"fit {peer.split()[1]}")
    ]
    pairs += [(way, way.split()[1], 1.02) for way in FITS]
    for ours, peer, bound in pairs:
        if {ours, peer} <= set(samples):
            ratios = [row[ours] / row[peer] for row in rounds]
            name = f"step of our {ours} / step of {peer}"
            verdicts.append(
                measure.verdict(name, ratios, bound=bound, most=True, samples=samples, peers=peers)
            )
    for way in [name for name in samples if name != "single"]:
        ratios = [row["single"] / row[way] for row in rounds]
        name = f"weak-scaling efficiency of {way}, 2 replicas"
        verdicts.append(
            measure.verdict(name, ratios, bound=0.9, most=False, samples={}, peers=peers)
        )
    bounded = [name for name in samples if name not in ("single", "independent")]
    for way in bounded if "independent" in samples else ():
        ratios = [row["independent"] / row[way] for row in rounds]
        name = f"step of two independent runs / step of {way}"
        verdicts.append(
            measure.verdict(name, ratios, bound=0.9, most=False, samples={}, peers=peers)
        )
    return verdicts


if __name__ == "__main__":
    main()
