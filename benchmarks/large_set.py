"""Trains on a data set that is larger than the memory and the disk of its store allow.

Volumes of 1024 x 1024 x 1024 in 8 bits are written to FOLDER, then trained on with store = "files":
boxes are read of the files. It prints the size of the set as training sees it (float32), the time
to the first step, the memory of the run in each epoch, and what the store takes on the disk.

    python benchmarks/large_set.py FOLDER [--volumes 50] [--real 40]

Only the first --real volumes take room on the disk; the others are sparse, and read as zeros.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

SIDE = 1024
SMALL = 64
RUN = """
data = "folder"
patch = [64, 64, 64]
patches_per_case = 4
validation_groups = ["small"]
store = "files"
model_options = {{ filters = 4, levels = 3 }}
global_batch = 4
epochs = 2
cache_dir = "{cache}"

[data_options]
root = "{root}"
images = "{{group}}-{{case}}.npy"
masks = "{{group}}-{{case}}_mask.npy"
axes = "zyx"
intensity = [0, 255]
"""


def write_volume(path, shape, *, is_real):
    """Write uint8 noise, or a sparse file of zeros."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    if is_real:
        rng = np.random.default_rng(0)
        plane = rng.integers(0, 256, shape[1:], np.uint8)
        for index in range(len(array)):
            array[index] = np.roll(plane, index, axis=1)
            if index % 64 == 63:
                array.flush()


def write_mask(path, shape):
    """Write a block of ones in the middle of zeros, which take no room."""
    mask = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    mask[tuple(slice(size // 2 - 16, size // 2 + 16) for size in shape)] = 1


def write_set(folder, volumes, real):
    for index in range(volumes):
        image = folder / f"large-{index:03d}.npy"
        if not image.exists():
            write_mask(folder / f"large-{index:03d}_mask.npy", (SIDE,) * 3)
            partial = image.with_suffix(".partial")
            write_volume(partial, (SIDE,) * 3, is_real=index < real)
            partial.rename(image)
    for index in range(2):
        write_volume(folder / f"small-{index}.npy", (SMALL,) * 3, is_real=True)
        write_mask(folder / f"small-{index}_mask.npy", (SMALL,) * 3)


def resident_bytes(process):
    """Memory of a process and its children, pages of files included."""
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--volumes", type=int, default=50)
    parser.add_argument("--real", type=int, default=40)
    options = parser.parse_args()
    data, out, cache = (options.folder / name for name in ("data", "run", "cache"))
    data.mkdir(parents=True, exist_ok=True)
    write_set(data, options.volumes, options.real)
    for folder in (out, cache):
        shutil.rmtree(folder, ignore_errors=True)
    (options.folder / "run.toml").write_text(RUN.format(root=data, cache=cache))
    files = list(data.iterdir())
    seen = sum(file.stat().st_size for file in files if "_mask" not in file.name) * 4
    on_disk = sum(file.stat().st_blocks * 512 for file in files)
    print(f"{len(files)} files, {seen / 1e9:.0f} GB as float32, {on_disk / 1e9:.0f} GB on the disk")
    began = time.time()
    command = [sys.executable, "-m", "tfunet", "train", "--config", "run.toml", "--out", "run"]
    run = subprocess.Popen(
        command, cwd=options.folder, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    memory = []
    is_over = threading.Event()

    def watch():
        while not is_over.wait(0.2):
            memory.append((time.time(), resident_bytes(psutil.Process(run.pid))))

    thread = threading.Thread(target=watch)
    thread.start()
    code = run.wait()
    is_over.set()
    thread.join()
    if code:
        raise SystemExit(f"The run ended with code {code}.")
    result = json.loads((out / "result.json").read_text())
    with (out / "steps.csv").open() as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    first = result["began_unix_seconds"][0][1] + result["start_seconds"] + seconds[0]
    end = memory[-1][0]
    middle = (first + end) / 2
    peaks = [
        max(used for at, used in memory if begin <= at <= end)
        for begin, end in ((0, middle), (middle, end))
    ]
    stored = sum(file.stat().st_blocks * 512 for file in cache.rglob("*") if file.is_file())
    print(f"first step after {first - began:.1f} s; {len(seconds)} steps")
    print(
        f"most memory: {peaks[0] / 2**30:.2f} GiB in the first half, {peaks[1] / 2**30:.2f} after"
    )
    print(f"store on the disk: {stored / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
