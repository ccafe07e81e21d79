"""Kills one process of a run at a random moment and resumes it, many times over.

`python tests/contract/kill_often.py horovod --times 20`. The moments are uniform over the life of
an uninterrupted run: start-up, tracing, steps, evaluations, checkpoints, end. Each time the run
must end within 15 s with the process named, leave nothing behind, and resumed end with the bits
of the uninterrupted run. Prints a line a time with what the process was doing, and at the end the
counts as JSON; exit code 1 if one did not hold.
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import checks
import runs

from tfunet import exit_codes
from tfunet.files.atomic import PARTIAL
from tfunet.files.table import read_rows
from tfunet.training import checkpoint

MARK = "TFUNET_TEST_MARK"
END_SECONDS = 15.0


def marked(mark):
    """The processes whose environment has the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def workers(mark):
    """The run's own processes by index."""
    found = {}
    for process in marked(mark):
        try:
            if "tfunet.worker" in process.cmdline():
                found[json.loads(process.environ()["TFUNET_LAUNCH"])["process_index"]] = process
        except (psutil.Error, KeyError):
            continue
    return found


def start(folder, settings, mark=""):
    """Start a run that tells its phases in `folder`.phase-<index>."""
    config = folder.with_suffix(".toml")
    config.write_text(runs.to_toml({**runs.BASE, **settings}))
    for index in range(2):
        phase_file(folder, index).unlink(missing_ok=True)
    variables = {
        MARK: mark,
        "TFUNET_CACHE": str(folder.parent / "cache"),
        "TFUNET_TEST_PHASE": str(folder.with_suffix(".phase")),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tfunet", "train", "--config", str(config), "--out", str(folder)],
        cwd=runs.ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def phase_file(folder, index):
    """Where process `index` of a run tells its phase."""
    return folder.with_suffix(f".phase-{index}")


def wait_until(condition, process):
    """Return once it holds or the run is over."""
    while not condition() and process.poll() is None:
        time.sleep(0.05)


def measure(folder, settings):
    """Run it through; (seconds until it traces, seconds in all), since its process is there."""
    mark = uuid.uuid4().hex
    process = start(folder, settings, mark)
    wait_until(lambda: 0 in workers(mark), process)
    since = time.monotonic()
    wait_until(phase_file(folder, 0).exists, process)
    until_traced = time.monotonic() - since
    assert process.wait(timeout=runs.SECONDS) == 0, (folder / "log-0.txt").read_text()
    return until_traced, time.monotonic() - since


def kill_once(folder, index, after, start_seconds, settings):
    """Start a run, kill process `index` `after` seconds into its life; how it ended.

    Moments behind the start-up are counted from its end, which another load of the machine moves.
    None if the run was over before.
    """
    mark = uuid.uuid4().hex
    phase = phase_file(folder, index)
    process = start(folder, settings, mark)
    try:
        wait_until(lambda: index in workers(mark), process)
        victim = workers(mark).get(index)
        if victim is None:
            return None
        if after > start_seconds:
            wait_until(phase.exists, process)
            after -= start_seconds
        time.sleep(after)
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return None
        since = time.monotonic()
        doing = phase.read_text() if phase.exists() else "start-up"
        saving = bool(list(folder.glob(f"{PARTIAL}*{checkpoint.NAME}")))
        code = process.wait(timeout=60)
        seconds = time.monotonic() - since
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    failure = folder / "failure.json"
    named = json.loads(failure.read_text())["process"] if failure.is_file() else None
    return {
        "process": index,
        "phase": doing,
        "half_a_checkpoint": saving,
        "seconds": round(seconds, 2),
        "ended_in_time": seconds < END_SECONDS,
        "named": code == exit_codes.PROCESS_DIED and named == index,
        "nothing_left": not marked(mark),
    }


def is_identical(run, whole):
    """Whether a run that went on has the bits of the uninterrupted one; says why if not."""
    try:
        assert run.exit_code == 0, run.output
        checks.bit_identical(run, whole)
        checks.same_records(run, whole)
    except AssertionError as error:
        print(error)
        return False
    return True


def main():
    """Read the arguments, and kill so many runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=["mirrored", "multiworker", "horovod"])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=4, help="of five steps each")
    parser.add_argument("--seed", type=int, default=0, help="of processes and moments")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    telling = {"name": f"{runs.HERE / 'kill.py'}:TellPhase"}
    settings = {
        "backend": options.backend,
        "num_replicas": 2,
        "model": f"{runs.HERE / 'kill.py'}:build",
        "model_options": {},
        "epochs": options.epochs,
        "callbacks": [{**telling, "checkpoint_steps": runs.BASE["checkpoint_steps"]}],
    }
    num_processes = 1 if options.backend == "mirrored" else 2
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        measure(root / "first", settings)  # Fills the cache of decoded cases.
        start_seconds, seconds = measure(root / "whole", settings)
        print(f"It lives for {seconds:.1f} s, of which start-up {start_seconds:.1f} s.", flush=True)
        whole = runs.Run(root / "whole", 0, "")
        folder = root / "killed"
        while len(rows) < options.times:
            index, after = dice.randrange(num_processes), seconds * dice.random()
            row = kill_once(folder, index, after, start_seconds, settings)
            if row is not None:
                steps = folder / "steps.csv"
                row["steps_recorded"] = len(read_rows(steps)) if steps.exists() else 0
                run = runs.Run(folder, 0, "")
                if not (folder / "result.json").exists():
                    run = runs.train(folder, **settings)
                row["identical"] = is_identical(run, whole)
                rows.append(row)
                print(f"{after:.1f} s: {json.dumps(row)}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    names = ("ended_in_time", "named", "nothing_left", "identical")
    phases = collections.Counter(row["phase"].split(" after")[0].split(" ")[0] for row in rows)
    counts = {
        "backend": options.backend,
        "killed": len(rows),
        **{column: sum(row[column] for row in rows) for column in names},
        "slowest_seconds": max(row["seconds"] for row in rows),
        "phases": dict(phases),
    }
    print(json.dumps(counts))
    sys.exit(any(counts[column] != options.times for column in names))


if __name__ == "__main__":
    main()
