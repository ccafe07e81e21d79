"""Input pipelines on the same files and cores, in turns: ours against the loaders of others.

Ours from its cache ("cached") and with the cache yet to be filled ("cold"), ours with
pipeline = "dali", which has none, DALI alone on the CPU,
torch DataLoader, Grain and keras PyDataset, each with its documented fast settings, a worker or
thread on each core, in a process of its own. All do the same for the same samples in the same
order: decode, resample (2D), normalise, crop, flip, rotate image and mask, batch. They show that
they deliver the same pixels before any time counts. A peer that is not installed is named and
left out; how to install them: benchmarks/requirements-pipeline.txt.

DATA is a folder with dsb2018_nuclei256 (334 PNG images of 256 x 256 with 16-bit masks) and
msd_hippocampus (260 NIfTI volumes).

    python benchmarks/pipeline.py DATA [--quick]
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measure
import numpy as np
import pipeline_ways
from pipeline_ways import BATCH, WAYS

PACKAGES = {
    "dali": "nvidia-dali-cuda120",
    "torch": "torch",
    "grain": "grain",
    "keras": "keras",
    "ours": "tensorflow",
    "ours-dali": "nvidia-dali-cuda120",
}
TASKS = {
    "2D": {
        "images": "dsb2018_nuclei256/images/{case}.png",
        "masks": "dsb2018_nuclei256/labels/{case}.png",
        # 256 pixels become 205, of which the crop takes 160.
        "size": [205, 205],
        "patch": [160, 160],
        "source": {"threshold": 0, "pixel_size": 1, "target_pixel_size": 1.25},
        "classes": "nucleus",
        "timed_batches": 40,
    },
    "3D": {
        "images": "msd_hippocampus/imagesTr/hippocampus_{case}.nii.gz",
        "masks": "msd_hippocampus/labelsTr/hippocampus_{case}.nii.gz",
        "size": None,
        "patch": [48, 64, 48],
        "source": {"classes": {"anterior": 1, "posterior": 2}},
        "classes": None,
        "timed_batches": 10,
        # It decodes planes.
        "without": ["ours-dali"],
    },
}
OURS = ("ours", "ours-dali")
# Libraries filter differently when they shrink an image, and round the nearest pixel differently.
IMAGE_TOLERANCE = 0.05  # mean absolute difference; an image has the standard deviation 1
MASK_TOLERANCE = 0.01  # share of pixels
CHECKED_BATCHES = 2
# More than any way makes ahead while the others have their turn: 8, and one in each worker.
WARM_BATCHES = 14


class Way:
    """A pipeline in a process of its own, which waits for commands."""

    def __init__(self, name, task, cache):
        script = Path(__file__).with_name("pipeline_ways.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), name, str(task)],
            env={
                **os.environ,
                "PIPELINE_CACHE": str(cache),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.name = name
        self.missing = self._read()["missing"]

    def ask(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._read()

    def end(self):
        """End it with all that it started; may be called again."""
        if self.process.returncode is not None:
            return
        self.process.stdin.close()
        self.process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; its error stands above.")
        return json.loads(line)


def write_task(name, data, folder):
    """Write what the ways read, the samples as ours draws them; return its path."""
    kind = TASKS[name]
    masks = f"{data}/{kind['masks']}" if kind["classes"] is None else None
    source = {
        "root": str(data),
        "images": kind["images"],
        "masks": kind["masks"] if masks else {kind["classes"]: kind["masks"]},
        "patch": kind["patch"],
        **kind["source"],
    }
    path = folder / f"{name}.json"
    table = {**kind, "source": source, "images": [], "masks": [], "epoch_samples": 0}
    rows = folder / f"{name}.npz"
    np.savez(rows, case=[], start=[], flips=[], matrix=[])
    table["rows"] = str(rows)
    path.write_text(json.dumps(table))
    pipeline = pipeline_ways.our_pipeline(pipeline_ways.Task(path), folder / "cache")
    for part in ("images", "masks"):
        ids = (case.rpartition("_")[2] for case in pipeline.cases.case_ids)
        table[part] = [f"{data}/{kind[part].format(case=case)}" for case in ids]
    table["epoch_samples"] = pipeline.num_samples
    np.savez(rows, **drawn(pipeline, 2 * pipeline.num_samples))
    path.write_text(json.dumps(table))
    return path


def drawn(pipeline, count):
    """Return case, start, flips and map of the first samples of our pipeline."""
    import tensorflow as tf

    from tfunet.data.augmentation.augment import SampleDraws
    from tfunet.data.augmentation.random_streams import CROP_STREAM, random_bits, stream_seed
    from tfunet.data.augmentation.spatial import planes, rotation_matrix
    from tfunet.data.crop import crop_start

    shapes = np.asarray(pipeline.cases.shapes, np.int64)
    rank = shapes.shape[1]
    turned = planes(range(rank))

    def of(epoch, sample):
        draws = SampleDraws(seed=pipeline.seed, epoch=epoch, sample=sample)
        seed = stream_seed(pipeline.seed, epoch, sample, CROP_STREAM)
        angles = draws.amounts("rotation", pipeline.augmentation.rotation, len(turned))[1]
        return {
            "case": sample,
            "start": crop_start(tf.gather(shapes, sample), pipeline.cases.patch, seed),
            "flips": random_bits([rank], draws.seed_of("flips")) < 0,
            "matrix": rotation_matrix(tf.unstack(angles), turned, rank),
        }

    samples = list(pipeline.samples(range(1)).take(count).map(of).as_numpy_iterator())
    return {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}


def same_pixels(ways, task, folder):
    """Compare the first batches of every way with ours; end the benchmark where they differ."""
    delivered = {}
    for way in ways:
        path = folder / f"{way.name}.npz"
        way.ask(f"check {CHECKED_BATCHES} {path}")
        delivered[way.name] = np.load(path)
    ours = delivered["ours"]
    inside = places_inside(pipeline_ways.Task(task), len(ours["mask"]))
    for name, pixels in delivered.items():
        image = np.abs(pixels["image"] - ours["image"])[..., 0][inside].mean()
        mask = (pixels["mask"] != ours["mask"])[inside].mean()
        print(f"  {name}: image differs by {image:.4f}, mask by {mask:.2%}", flush=True)
        if not (image < IMAGE_TOLERANCE and mask < MASK_TOLERANCE):
            raise SystemExit(f"{name} does not deliver our pixels; nothing is timed.")


def places_inside(task, count):
    """Return which pixels show a place within the crop: beyond it, borders are made up."""
    centre = (np.array(task.patch) - 1) / 2
    pixels = np.stack(np.meshgrid(*map(np.arange, task.patch), indexing="ij"), -1) - centre
    inside = []
    for matrix in task.matrix[:count]:
        places = pixels @ matrix.T + centre
        inside.append(((places > 1) & (places < np.array(task.patch) - 2)).all(-1))
    return np.stack(inside)


def cached_rounds(ways, num_rounds, timed, order):
    """Return seconds of a window of batches, a list a way."""
    seconds = {way.name: [] for way in ways}
    for _ in range(num_rounds):
        order.shuffle(ways)
        for way in ways:
            seconds[way.name].append(way.ask(f"window {WARM_BATCHES} {timed}")["seconds"])
    return seconds


def first_rounds(names, task, cache, num_rounds, order):
    """Return seconds of a first epoch from nothing, each in a fresh process, a list a way."""
    seconds = {name: [] for name in names}
    for _ in range(num_rounds):
        order.shuffle(names)
        for name in names:
            way = Way(name, task, cache)
            try:
                seconds[name].append(way.ask("first")["seconds"])
            finally:
                way.end()
    return seconds


def compare(name, data, folder, started, *, quick, order):
    """Return the claims of one task; `started` ends the processes, however this ends."""
    task = write_task(name, data, folder)
    cache = folder / "cache"
    ways = []
    for way in [way for way in WAYS if way not in TASKS[name].get("without", ())]:
        ways.append(Way(way, task, cache))
        started.callback(ways[-1].end)
    for way in [way for way in ways if way.missing]:
        print(f"!!! {way.name} IS LEFT OUT: {', '.join(way.missing)} is not installed.", flush=True)
        ways.remove(way)
        way.end()
    same_pixels(ways, task, folder)
    timed = TASKS[name]["timed_batches"]
    cached = cached_rounds(ways, 2 if quick else 7, timed, order)
    memory = {way.name: way.ask("memory")["bytes"] for way in ways}
    for way in ways:
        way.end()
    cold = first_rounds([way.name for way in ways], task, cache, 1 if quick else 3, order)
    for way in cold:
        rate = timed * BATCH / statistics.median(cached[way])
        print(
            f"  {way}: {rate:.0f} samples/s, first epoch {statistics.median(cold[way]):.2f} s, "
            f"{memory[way] / 2**20:.0f} MiB",
            flush=True,
        )
    return claims(name, cached, cold, memory)


def claims(name, cached, cold, memory):
    """Return what the rounds of one task support or refute."""
    peers = [way for way in cached if way not in OURS]
    packages = [PACKAGES[way] for way in cached]
    verdicts = []
    for peer in peers:
        ratios = [theirs / ours for theirs, ours in zip(cached[peer], cached["ours"], strict=True)]
        samples = {"ours_seconds": cached["ours"], f"{peer}_seconds": cached[peer]}
        verdicts.append(
            measure.verdict(
                f"{name}, samples/s of ours cached / of {peer}",
                ratios,
                bound=1.0,
                most=False,
                samples={**samples, "bytes": {key: memory[key] for key in ("ours", peer)}},
                peers=packages,
            )
        )
    if peers:
        best = [min(pair) for pair in zip(*(cold[peer] for peer in peers), strict=True)]
        verdicts += [
            measure.verdict(
                f"{name}, first epoch of {way} cold / of the best peer",
                [ours / theirs for ours, theirs in zip(cold[way], best, strict=True)],
                bound=1.05,
                most=True,
                samples=cold,
                peers=packages,
            )
            for way in OURS
            if way in cold
        ]
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the two data sets")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, for a look")
    parser.add_argument("--task", choices=TASKS, action="append", help="only this one")
    options = parser.parse_args()
    # So that the processes of the ways end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    order = random.Random(0)
    results = []
    for name in options.task or TASKS:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as started:
            data = options.data.resolve()
            results += compare(name, data, Path(folder), started, quick=options.quick, order=order)
    if not results:
        raise SystemExit("No peer is installed: there is nothing to compare with.")
    measure.show(results)


if __name__ == "__main__":
    main()
