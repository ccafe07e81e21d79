"""Stands in for `tfunet train` in tests of the sweep: ends in the way that it is told to."""

import json
import os
import signal
import sys
import time
import tomllib
from pathlib import Path

RESULT = {
    "schema_version": 1,
    "images_per_second": 12.5,
    "elapsed_seconds": 0.5,
    "dice": {"cell": 0.75},
    "checks": {"samples": True},
}


def fail(folder, reason, exit_code):
    failure = {"reason": reason, "exit_code": exit_code, "process": None}
    (folder / "failure.json").write_text(json.dumps(failure))
    sys.exit(exit_code)


def main(behaviour, folder):
    config = tomllib.loads((folder / "config.toml").read_text())
    result = {**RESULT, "num_replicas": config["num_replicas"]}
    if behaviour.startswith("speed "):
        result["images_per_second"] = float(behaviour.split()[1])
    if behaviour == "usage":
        print("some words\nerror: no such data set")
        sys.exit(2)
    if behaviour == "worker died":
        fail(folder, "process 1 of 2 was killed by SIGKILL", 3)
    if behaviour == "disk full":
        fail(folder, "Cannot write steps.csv", 5)
    if behaviour == "killed":
        (folder / "checkpoint.npz").write_text("large")
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "silent":
        sys.exit(0)
    if behaviour == "unlike single":
        result["checks"] = {"scores": False}
    if behaviour in ("slow", "deaf"):
        number = signal.SIG_IGN if behaviour == "deaf" else lambda *_: fail(folder, "Ctrl-C", 130)
        signal.signal(signal.SIGINT, number)
        (folder / "started").write_text(str(os.getpid()))
        time.sleep(600)
    (folder / "result.json").write_text(json.dumps(result))
    sys.exit(4 if behaviour == "unlike single" else 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
