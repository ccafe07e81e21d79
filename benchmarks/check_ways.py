"""Trains small networks by all ways on all backends, and compares each with one device.

    make check-ways
    python benchmarks/check_ways.py --networks unet segnet

Nothing is proved before the first step, so that faults show that the proof would hide. What differs
runs again with the proof: it must say so. The networks are in public_networks.py.

All runs of a backend follow each other in the processes that one launch starts, since a start takes
longer than such a run. Where they end, a new launch goes on with the next run.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import sys
import tempfile
import textwrap
import time
import traceback
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from public_networks import NETWORKS

from tfunet import exit_codes
from tfunet.arguments import from_dict
from tfunet.backend import BACKENDS
from tfunet.bench.launch.launch_run import launch
from tfunet.config.refs import resolve
from tfunet.connection import launch_from
from tfunet.machine.cores import num_threads, pin_and_limit
from tfunet.machine.environment import DEFAULTS
from tfunet.process.watchdog import nobody_asks, pulse_to_supervisor

HERE = Path(__file__).resolve()
PAGE = HERE.parents[1] / "docs/check-ways.md"
BOUND = 1e-5
# Numbers of tensors that are smaller, such as biases, are sums of terms that cancel: rounding is
# that of the terms.
LEAST = 0.1
# A process that ends with an error waits so long for the others to do the same.
SECONDS = 20.0
MOST_LETTERS = 200
HANG_SECONDS = 60.0
SETTINGS = {
    "data_options": {"num_cases": 10, "size": 32},
    "patch": [32, 32],
    "global_batch": 4,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "steps": 2,
    "augmentation": {"flips": False},
    "share_cores": True,
    "hang_seconds": HANG_SECONDS,
}
ALONE, ALONE_TILED = "single", "single, loss of tiles"
TILED = {"loss": "crossentropy"}
STAGES = {"stages": 2, "micro_batches": 2}
SCORES = ("loss", "val_loss", "dice", "iou", "dataset_dice", "dataset_iou")
# By name: the backend, and what it changes.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    ALONE: ("single", {}),
    ALONE_TILED: ("single", TILED),
    "accumulation": ("single", {"accumulation": 2}),
    "tiling": ("single", {**TILED, "tiling": [2, 2]}),
    **{
        f"{backend} {name}": (backend, changes)
        for backend in ("mirrored", "multiworker", "horovod")
        for name, changes in (
            ("x2", {"num_replicas": 2}),
            ("split", {"split": [2, 1]}),
            ("stages", STAGES),
        )
    },
}
HEAD = """# All ways against one device

`make check-ways` writes this page. It trains small networks after public architectures
([public_networks.py](../benchmarks/public_networks.py)) for {steps} steps in every way and with
every backend, and compares losses, scores and all weights with those of one device on the same
samples. These runs do not [prove their step](configuration.md) first. What differs by more than
{bound:g} runs again with the proof. Here are {number} networks, and {runs} runs.

A cell is the largest relative difference, or:

- **refused**: the command ends before its first step and says why.
- **caught**: it differs, and with the proof the run ends before its first step.
- **named**: it differs as the docs say, and the record of the proof names the layers: batch
  normalisation of a part of the batch, or random numbers of each replica's own.
- **SILENT**: it differs, and the proof does not say so. **ENDED**: it ends with an error that is
  not for the user. Both are faults.

"""
Job = tuple[str, str]


def settings_of(job: Job, prove: bool) -> dict[str, Any]:
    """Return the keys of a run."""
    network, way = job
    backend, changes = WAYS[way]
    model = f"{HERE.with_name('public_networks.py')}:{network}"
    return {**SETTINGS, "model": model, "backend": backend, "prove": prove, **changes}


class Started:
    """A backend that stays started from one run to the next."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._topology = backend, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def start(self) -> Any:
        """Start it the first time."""
        self._topology = self._topology or self._backend.start()
        return self._topology

    def stop(self) -> None:
        """Do nothing: the next run goes on."""


def endings(folder: Path) -> list[Path]:
    """Return the files in which processes say how a run ended."""
    return [folder.with_name(f"{folder.name}-{index}.json") for index in range(2)]


def ended(folder: Path) -> dict[str, Any] | None:
    """Return the error of a run, {} if it has none, and None if it has not ended."""
    told = [json.loads(file.read_text()) for file in endings(folder) if file.exists()]
    errors = [error for error in told if error]
    return errors[0] if errors else {} if told and endings(folder)[0].exists() else None


def work(jobs: Path) -> None:
    """Run these jobs, as one process of a launch."""
    place, pulse = launch_from(os.environ), pulse_to_supervisor()
    pin_and_limit()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    import keras
    import tensorflow as tf

    from tfunet.loop import run

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(num_threads(os.environ))
    tf.config.threading.set_inter_op_parallelism_threads(num_threads(os.environ))
    given = json.loads(jobs.read_text())
    make = resolve("backend", given[0]["settings"]["backend"], BACKENDS)
    backend = Started(make(launch=place))
    begin = pulse.begin if pulse else nobody_asks
    for job in given:
        folder, error = Path(job["folder"]), None
        since = time.monotonic()
        try:
            log = jobs.with_name(f"log-{place.process_index}.txt").open("a")
            with log, contextlib.redirect_stdout(log):
                run(from_dict(job["settings"]), backend, folder, begin=begin)
        except Exception as caught:
            error = {"code": exit_codes.of_error(caught), "text": f"{caught}" or repr(caught)}
            if error["code"] is None:
                traceback.print_exc()
        endings(folder)[place.process_index].write_text(json.dumps(error))
        print(f"{time.monotonic() - since:5.1f} s  {folder.parent.name} {folder.name}", flush=True)
        while error and not all(map(Path.exists, endings(folder)[: place.process_count])):
            if time.monotonic() > since + SECONDS:
                os._exit(exit_codes.PROCESS_DIED)
            time.sleep(0.1)
        keras.backend.clear_session()
    sys.stdout.flush()
    os._exit(exit_codes.OK)


def run_all(jobs: Sequence[Job], root: Path, *, prove: bool) -> dict[Job, Path]:
    """Return the folder of each run, once all have ended."""
    folders = {job: root / f"{prove}" / job[0] / job[1].replace(" ", "-") for job in jobs}
    for backend in dict.fromkeys(WAYS[way][0] for _, way in jobs):
        own = [job for job in jobs if WAYS[job[1]][0] == backend]
        left = [job for job in own if ended(folders[job]) is None]
        config = from_dict(
            {**SETTINGS, "backend": backend, "num_replicas": 1 if backend == "single" else 2}
        )
        while left:
            place = Path(tempfile.mkdtemp(dir=root, prefix=f"{backend}-"))
            given = []
            for job in left:
                folders[job].parent.mkdir(parents=True, exist_ok=True)
                given.append({"folder": str(folders[job]), "settings": settings_of(job, prove)})
            file = place / "jobs.json"
            file.write_text(json.dumps(given))
            command = [sys.executable, str(HERE), "--work", str(file)]
            outcome = launch(config, place / "run", command=command)
            if outcome.exit_code in (exit_codes.INTERRUPTED, exit_codes.TERMINATED):
                sys.exit(outcome.exit_code)
            left = [job for job in left if ended(folders[job]) is None]
            if left:
                # The run in which the processes ended.
                words = outcome.error or outcome.reason or "its processes died"
                error = {"code": None, "text": words}
                endings(folders[left[0]])[0].write_text(json.dumps(error))
                del left[0]
    return folders


def computed(folder: Path) -> dict[str, np.ndarray]:
    """Return the losses, scores and weights of a run, by name."""
    with (folder / "steps.csv").open(newline="") as file:
        found = {"losses": np.array([float(row["loss"]) for row in csv.DictReader(file)])}
    result = json.loads((folder / "result.json").read_text())
    for name in SCORES:
        values = result[name].values() if isinstance(result[name], dict) else [result[name]]
        found[name] = np.array([value for value in values if value is not None])
    weights = zipfile.ZipFile(folder / "model.keras").read("model.weights.h5")
    with h5py.File(io.BytesIO(weights)) as file:

        def note(name: str, node: Any) -> None:
            if isinstance(node, h5py.Dataset) and node.dtype.kind == "f":
                found[name] = node[()]

        file.visititems(note)
    return found


def difference(folder: Path, alone: Path) -> float:
    """Return the largest relative difference of two runs; infinite if they hold other numbers."""
    ours, theirs = computed(folder), computed(alone)
    if {name: value.shape for name, value in ours.items()} != {
        name: value.shape for name, value in theirs.items()
    }:
        return float("inf")
    shares = [0.0]
    for name, value in theirs.items():
        if value.size:
            scale = max(LEAST, float(np.abs(value).max()))
            shares.append(float(np.abs(value - ours[name]).max()) / scale)
    return float("inf") if np.isnan(shares).any() else max(shares)


def first_words(text: str) -> str:
    """Return the sentence of an error that says what differs, or its first, for a cell."""
    line = " ".join(text.split()).replace("|", "/").replace(f"{HERE.parents[1]}/", "")
    sentences = line.split(". ")
    told = [one for one in sentences if one.startswith("First of all")] or sentences
    return textwrap.shorten(told[0].rstrip("."), MOST_LETTERS, placeholder=" ...")


def verdict(folder: Path, alone: Path) -> tuple[str, float]:
    """Return the cell of a run without a proof, and how far it differs from one device."""
    error = ended(folder)
    if not error:
        share = difference(folder, alone)
        return f"{share:.0e}" if share else "0", share
    words = first_words(error["text"])
    if error["code"] == exit_codes.BAD_INPUT and not (folder / "steps.csv").exists():
        return f"refused: {words}", 0.0
    return f"ENDED: {words}", float("inf")


def verdict_of_proof(folder: Path, cell: str) -> str:
    """Return the cell of a run that differs without a proof, once it ran again with it."""
    error = ended(folder)
    if error:
        is_caught = error["code"] == exit_codes.CHECK_FAILED and not (folder / "steps.csv").exists()
        return f"{'caught' if is_caught else 'ENDED'}: {first_words(error['text'])} ({cell})"
    proved = json.loads((folder / "result.json").read_text())["proved"]
    if proved["is_proved"] and not proved["left_out"]:
        return f"**SILENT** {cell}"
    if not proved["is_proved"]:
        return f"**SILENT** {cell}, not proved: {first_words(proved['why_not'])}"
    return f"named: {'; '.join(proved['left_out'])} ({cell})"


def page(cells: dict[Job, str], names: Sequence[str]) -> str:
    """Return the page: for each network its ways and what they gave."""
    ways = [way for way in WAYS if way not in (ALONE, ALONE_TILED)]
    text = HEAD.format(number=len(names), runs=len(cells), steps=SETTINGS["steps"], bound=BOUND)
    notes: dict[str, int] = {}
    rows = [["network", *ways], ["---"] * (len(ways) + 1)]
    for name in names:
        row = [name]
        for way in ways:
            kind, colon, reason = cells[name, way].partition(": ")
            if colon:
                number = notes.setdefault(reason.rpartition(" (")[0] or reason, len(notes) + 1)
                kind = f"{kind} [{number}]"
            row.append(kind)
        rows.append(row)
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    listed = "".join(f"{number}. {reason}.\n" for reason, number in notes.items())
    return f"{text}{table}\n{listed}"


def main() -> int:
    """Run all, write the page, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--out", type=Path, help="keeps the runs; the same command goes on")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
    with contextlib.ExitStack() as stack:
        root = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root.mkdir(parents=True, exist_ok=True)
        return check(options.networks, root.resolve(), options.page)


def check(names: Sequence[str], root: Path, file: Path) -> int:
    """Compare the ways of these networks; return 1 if one differs and nothing says so."""
    folders = run_all([(name, way) for name in names for way in WAYS], root, prove=False)
    cells, different = {}, []
    for job, folder in folders.items():
        name, way = job
        alone = folders[name, ALONE_TILED if way == "tiling" else ALONE]
        if way in (ALONE, ALONE_TILED):
            if ended(folder):
                raise RuntimeError(f"{name} does not train on one device: {ended(folder)}")
            continue
        cells[job], share = verdict(folder, alone)
        if not ended(folder) and share > BOUND:
            different.append(job)
    for job, folder in run_all(different, root, prove=True).items():
        cells[job] = verdict_of_proof(folder, cells[job])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(cells, names))
    faults = [
        f"{job}: {cell}" for job, cell in cells.items() if "SILENT" in cell or "ENDED" in cell
    ]
    print("\n".join([f"{len(cells)} runs, {len(faults)} faults. Table: {file}", *faults]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
