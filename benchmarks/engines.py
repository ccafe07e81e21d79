"""Runs one ensemble with every engine, compares the results, and measures the time a trial costs.

    make engines
    PATH=$PWD/.venv/engines/bin:$PATH python benchmarks/engines.py

One exported file is run by Maestro, by Merlin without a broker, and by Merlin with Redis and two
workers, one of which is killed on the way. `tfunet sweep run` runs the same study. The results of
each trial must be the same to the bit. With --stand-in, a trial is a program of milliseconds
instead of a training, so that what is left is the engine's own time.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfunet.bench import workflow_step as step
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.one_trial import train_command
from tfunet.bench.launch.workflow_file import engine_command, export_sweep
from tfunet.bench.study.study_file import Study, study_from_dict

ENGINES = ("sweep run", "maestro", "merlin --local", "merlin with Redis")
TRAINED = {
    "data": "cells",
    "data_options": {"num_cases": 4, "size": 32},
    "model_options": {"filters": 2, "levels": 1},
    "cores_per_replica": 1,
    "replica_batch": 2,
    "steps": 2,
}
# Keys of result.json: what a trial computed, and not how long it took.
COMPUTED = ("weights_hash", "samples_hash", "loss", "val_loss", "dice", "iou", "checks")
STAND_IN = Path(__file__).resolve().with_name("stand_in_trial.py")
LIMIT_SECONDS = 1800.0
# After the last trial.
REPORT_SECONDS = 120.0
# Redis gives a killed worker's trial to another one after this time. Merlin's default is a day.
VISIBILITY_SECONDS = 20


def study_of(number: int) -> Study:
    """Return a study with so many samples."""
    space = {
        "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
        "optimizer": ["adam", "sgd"],
    }
    samples = {"method": "latin_hypercube", "number": number, "seed": 25, "space": space}
    return study_from_dict({"name": "engines", "base": TRAINED, "samples": samples})


def stand_in(folder: Path) -> list[str]:
    """Return the command of a trial of some milliseconds."""
    return [sys.executable, "-I", "-S", str(STAND_IN), str(folder)]


def export(study: Study, folder: Path, is_stand_in: bool) -> Path:
    """Write the workflow file; with stand-ins, its step of a trial is that of this script."""
    path = export_sweep(study, folder)
    if is_stand_in:
        text = path.read_text()
        first = text.index("-m tfunet.bench.workflow_step")
        end = text.index("\n", first)
        path.write_text(f"{text[:first]}{Path(__file__).resolve()} --step{text[end:]}")
    return path


def run_step(words: Sequence[str]) -> int:
    """Run a step of a workflow whose trials are stand-ins."""
    if "trial" in words:
        root, name = words[-2:]
        return step.trial(Path(root), name, attempts=2, command=stand_in)
    name, root = words
    return {"prepare": step.prepare, "collect": step.collect, "report": step.report}[name](
        Path(root)
    )


def computed(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what each trial of a sweep computed."""
    plan = json.loads((folder / "plan.json").read_text())
    results = {}
    for trial in plan["trials"]:
        result = json.loads((folder / trial["id"] / "result.json").read_text())
        results[trial["id"]] = {key: result.get(key) for key in COMPUTED}
    return results


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    """Yield a function that starts a process group; end what is left of all groups."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, **options
            )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def num_done(folder: Path) -> int:
    """Return the number of trials with a result."""
    return sum(1 for _ in folder.glob("*/result.json"))


def wait_until(is_true: Any, what: str, limit: float = LIMIT_SECONDS) -> None:
    """Wait; raise TimeoutError after so many seconds."""
    deadline = time.monotonic() + limit
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited in vain for {what}.")
        time.sleep(0.2)


def with_redis(path: Path, number: int, scratch: Path) -> None:
    """Run a workflow with two workers, and kill the first when a third of the trials are done."""
    redis = shutil.which("redis-server")
    if redis is None:
        raise ValueError("redis-server is not installed: sudo apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    password = scratch / "password"
    password.touch(mode=0o600)
    password.write_text(secrets.token_hex(16))
    configuration = scratch / "redis.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(
        f"bind 127.0.0.1\nport {port}\nrequirepass {password.read_text()}\nsave ''\n"
        f"appendonly no\ndir {scratch}\n"
    )
    place = (
        f"  name: redis\n  server: 127.0.0.1\n  port: {port}\n  db_num: 0\n"
        f"  username: default\n  password: {password}\n  encryption_key: {scratch}/encryption_key\n"
    )
    (scratch / "app.yaml").write_text(
        f"broker:\n{place}results_backend:\n{place}celery:\n  override:\n"
        f"    broker_transport_options:\n      visibility_timeout: {VISIBILITY_SECONDS}\n"
        "      unacked_restore_throttle: 1\n"
    )
    # HOME: Merlin remembers its last configuration there. C_FORCE_ROOT: celery refuses root.
    environment = {**os.environ, "HOME": str(scratch), "C_FORCE_ROOT": "1"}
    options = {"cwd": scratch, "env": environment}
    with processes() as start:
        start([redis, str(configuration)], scratch / "redis.txt")
        words = engine_command("merlin", path)
        celery = str(Path(words[0]).with_name("celery"))
        workers = [
            start(
                [
                    *(celery, "-A", "merlin", "worker", "-Q", "[merlin]_merlin", "-l", "INFO"),
                    *("--concurrency", "1", "--prefetch-multiplier", "1", "-O", "fair"),
                    *("-n", f"{name}.%h"),
                ],
                scratch / f"{name}.txt",
                **options,
            )
            for name in ("first", "second")
        ]
        submitted = start([words[0], "run", str(path)], scratch / "merlin.txt", **options)
        if submitted.wait(timeout=LIMIT_SECONDS) or "ERROR" in (scratch / "merlin.txt").read_text():
            raise RuntimeError((scratch / "merlin.txt").read_text())
        wait_until(lambda: num_done(path.parent) >= number // 3, "the first third")
        os.killpg(workers[0].pid, signal.SIGKILL)
        print(f"  killed a worker after {num_done(path.parent)} trials", flush=True)
        wait_until(lambda: num_done(path.parent) == number, "all trials")
        written = path.parent / "report/report.html"
        # Merlin may lose its own step with the worker; the last trial writes the report.
        wait_until(written.is_file, f"{written}, after all {number} trials", REPORT_SECONDS)


def run_with(engine: str, study: Study, folder: Path, number: int, is_stand_in: bool) -> float:
    """Run the ensemble with an engine, and return the seconds that it took."""
    if engine == "sweep run":
        since = time.perf_counter()
        command = stand_in if is_stand_in else train_command
        code = run_sweep(study, folder, command=command, say=lambda line: None)
        if code:
            raise RuntimeError(f"sweep run ended with exit code {code}.")
        return time.perf_counter() - since
    path = export(study, folder, is_stand_in)
    since = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        if engine.endswith("Redis"):
            with_redis(path, number, Path(scratch))
        else:
            with (folder / "engine.txt").open("wb") as log:
                subprocess.run(
                    engine_command(engine.split()[0], path),
                    cwd=scratch,
                    env={**os.environ, "HOME": scratch},
                    stdout=log,
                    stderr=log,
                    check=True,
                    timeout=LIMIT_SECONDS,
                )
    return time.perf_counter() - since


def main() -> int:
    """Run all engines; return 1 if results differ."""
    if sys.argv[1:2] == ["--step"]:
        return run_step(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--stand-in", action="store_true", help="trials of milliseconds")
    parser.add_argument("--out", type=Path, default=Path("logs/engines"))
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that what was started is ended.
    study = study_of(options.samples)
    wanted: dict[str, dict[str, Any]] = {}
    print("| engine | trials | seconds | seconds a trial | results |\n|---|---|---|---|---|")
    differ = False
    for engine in options.engines:
        folder = options.out / engine.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        seconds = run_with(engine, study, folder, options.samples, options.stand_in)
        results = computed(folder)
        wanted = wanted or results
        same = results == wanted
        differ = differ or not same
        print(
            f"| {engine} | {len(results)} | {seconds:.0f} | {seconds / len(results):.2f} | "
            f"{'the same' if same else 'DIFFERENT'} |",
            flush=True,
        )
    return int(differ)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:  # An engine or Redis is missing.
        sys.exit(f"error: {error}")
