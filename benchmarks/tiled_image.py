"""Trains on a generated image of 10,000 x 10,000 x 4 by tiles, with one and with two replicas.

Each optimizer step takes the whole image. Two replicas share its tiles. Compared are the weights
after the last step, and, with its bound, the peak of the resident memory of each process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import measure
import numpy as np

HERE = Path(__file__).resolve().parent
SIZE, QUICK_SIZE = 10_000, 1024
STEPS = 2
SECONDS = 900
LIMIT_BYTES = 2 * 2**30
TOLERANCE = 1e-6


def settings(size, tiles, steps, cache):
    """The configuration of a run on one replica, without its backend."""
    return {
        "data": f"{HERE / 'tiled_scene.py'}:open_scene",
        "data_options": {"size": size},
        "validation_groups": ["validation"],
        # Exact on tiles: it has no statistics of whole images.
        "model_options": {"filters": 4, "levels": 1, "convolutions": 1, "normalization": "none"},
        "loss": "crossentropy",
        "tiling": [tiles, tiles],
        "global_batch": 1,
        "epochs": steps,
        "evaluate_every": steps,
        "optimizer": "sgd",
        "optimizer_options": {"momentum": 0.9},
        "learning_rate": 0.05,
        "cores_per_replica": 1,
        "cache_dir": str(cache),
    }


def train(folder, config, **placement):
    """Train in processes of their own, and return what result.json says."""
    arguments = []
    for key, value in {**config, **placement}.items():
        is_table = isinstance(value, dict)
        table = (
            {f"{key}.{name}": item for name, item in value.items()} if is_table else {key: value}
        )
        for name, entry in table.items():
            arguments += [f"--{name}", entry if isinstance(entry, str) else json.dumps(entry)]
    subprocess.run(
        [sys.executable, "-m", "tfunet", "train", "--out", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(HERE.parent), "CUDA_VISIBLE_DEVICES": ""},
        timeout=SECONDS,
        check=True,
    )
    return json.loads((folder / "result.json").read_text())


def weights(folder):
    with np.load(folder / "checkpoint.npz") as file:
        names = sorted(name for name in file.files if name.startswith("variable_"))
        return [file[name] for name in names]


def difference(folder, other):
    """The largest difference of a weight, or of its momentum."""
    pairs = zip(weights(folder), weights(other), strict=True)
    return max(float(np.abs(ours - theirs).max(initial=0)) for ours, theirs in pairs)


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small image, for a look")
    parser.add_argument("--tiles", type=int, default=8, help="along each axis (8)")
    parser.add_argument("--folder", help="for the runs and the decoded image (a temporary one)")
    return parser.parse_args()


def main():
    given = options()
    size = QUICK_SIZE if given.quick else SIZE
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        folder = Path(place)
        config = settings(size, given.tiles, STEPS, folder / "cache")
        alone = train(folder / "alone", config, backend="single")
        shared = train(folder / "shared", config, backend="multiworker", num_replicas=2)
        apart = difference(folder / "alone", folder / "shared")
    peaks = {}
    for name, result in (("1 replica", alone), ("2 replicas", shared)):
        peaks[name] = result["peak_resident_bytes"]
        mebibytes = ", ".join(f"{peak / 2**20:,.0f}" for peak in peaks[name])
        print(
            f"{name}: {size} x {size} x 4 in {given.tiles} x {given.tiles} tiles, "
            f"{result['training_seconds'] / result['steps']:.1f} s a step, loss "
            f"{result['loss']:.6f}, Dice {result['dice']['spot']:.4f}, peak resident memory "
            f"{mebibytes} MiB"
        )
    samples = {
        "weights": apart,
        "samples_hash": [result["samples_hash"] for result in (alone, shared)],
        "peak_resident_bytes": peaks,
        "tiling": alone["tiling"],
    }
    peers = ["tensorflow", "keras"]
    most = max(peak for of_run in peaks.values() for peak in of_run)
    measure.show(
        [
            measure.verdict(
                "largest difference of a weight between 1 and 2 replicas / 1e-6",
                [apart / TOLERANCE],
                bound=1.0,
                most=True,
                samples=samples,
                peers=peers,
            ),
            measure.verdict(
                "peak resident memory of a process / 2 GiB",
                [most / LIMIT_BYTES],
                bound=1.0,
                most=True,
                samples=samples,
                peers=peers,
            ),
        ]
    )


if __name__ == "__main__":
    main()
