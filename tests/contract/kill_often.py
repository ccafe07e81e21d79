"""Kills one process of a run at a random moment and resumes it, many times over.

`python tests/contract/kill_often.py horovod --times 20`. Each time: the run must end within 15 s
with the process named, leave nothing behind, and resumed end with the bits of the uninterrupted
run. Prints a line a time, and at the end the counts as JSON; exit code 1 if one did not hold.
"""

import argparse
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

import checks
import psutil
import runs

from tfunet import exit_codes

MARK = "TFUNET_TEST_MARK"
END_SECONDS = 15.0


def marked(mark):
    """The processes whose environment has the mark."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get(MARK) == mark and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except psutil.Error:
            continue
    return found


def workers(mark):
    """The run's own processes by index."""
    found = {}
    for one in marked(mark):
        try:
            if "tfunet.worker" in one.cmdline():
                found[json.loads(one.environ()["TFUNET_LAUNCH"])["process_index"]] = one
        except (psutil.Error, KeyError):
            continue
    return found


def kill_once(folder, index, after, settings):
    """Start a run, kill process `index` `after` seconds after it began to live; how it ended.

    None if the run was over before.
    """
    mark = uuid.uuid4().hex
    config = folder.with_suffix(".toml")
    config.write_text(runs.to_toml({**runs.BASE, **settings}))
    process = subprocess.Popen(
        [sys.executable, "-m", "tfunet", "train", "--config", str(config), "--out", str(folder)],
        cwd=runs.ROOT,
        env={**os.environ, MARK: mark, "TFUNET_CACHE": str(folder.parent / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while index not in (found := workers(mark)) and process.poll() is None:
            time.sleep(0.02)
        time.sleep(after)
        if process.poll() is not None:
            return None
        found[index].kill()
        since = time.monotonic()
        code = process.wait(timeout=60)
        seconds = time.monotonic() - since
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    failure = folder / "failure.json"
    named = json.loads(failure.read_text())["process"] if failure.is_file() else None
    return {
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
    except AssertionError as error:
        print(error)
        return False
    return True


def main():
    """Read the arguments, and kill so many runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=["multiworker", "horovod"])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of processes and moments")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    settings = {"backend": options.backend, "num_replicas": 2}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        runs.train(root / "first", **settings)  # Fills the cache of decoded cases.
        since = time.monotonic()
        whole = runs.train(root / "whole", **settings)
        length = time.monotonic() - since
        assert whole.exit_code == 0, whole.output
        while len(rows) < options.times:
            index, after = dice.randrange(2), length * dice.random()
            folder = root / "killed"
            row = kill_once(folder, index, after, settings)
            if row is not None:
                run = runs.Run(folder, 0, "")
                steps = len(run.rows("steps.csv")) if (folder / "steps.csv").exists() else 0
                if not (folder / "result.json").exists():
                    run = runs.train(folder, **settings)
                row["identical"] = is_identical(run, whole)
                rows.append(row)
                print(f"process {index} after {after:.1f} s, {steps} steps: {row}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    names = ("ended_in_time", "named", "nothing_left", "identical")
    counts = {one: sum(row[one] for row in rows) for one in names}
    slowest = max(row["seconds"] for row in rows)
    print(
        json.dumps({"backend": options.backend, "killed": len(rows), **counts, "slowest": slowest})
    )
    sys.exit(any(count != options.times for count in counts.values()))


if __name__ == "__main__":
    main()
