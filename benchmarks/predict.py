"""What `tfunet predict` takes, beside MONAI's inferer with the same network, and in torch.

An image of 4096 x 4096 and a volume that is resampled to 256 x 256 x 256, with 3 classes and with
60: read, normalised, predicted in windows that overlap by half, weighted by a Gaussian, and written
as labels at the size of the file. Ways take turns, each a fresh process on the cores that it is
given. `cold` is a process with one image, `warm` what a second image adds to it. Memory is the
peak of all processes of a way. Labels must be the same before a time counts, but for voxels whose
best two logits are as near as rounding.

    python benchmarks/predict.py [--quick] [--cases plane-3 volume-3]

It needs tfunet, MONAI and torch in one environment, as in requirements-metrics.txt.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import measure
import numpy as np

ROUNDS = 3
WAYS = ("tfunet", "tfunet, two devices", "monai with keras", "monai with torch")
# Labels may differ where logits are summed in another order.
MOST_DIFFERENT = 1e-4
CASES = {
    f"{kind}-{classes}": {"kind": kind, "classes": classes}
    for kind in ("plane", "volume")
    for classes in (3, 60)
}
SHAPES = {
    "plane": {"file": (4096, 4096), "seen": (4096, 4096), "window": (128, 128), "size": (1.0, 1.0)},
    "volume": {
        "file": (128, 256, 256),
        "seen": (256, 256, 256),
        "window": (64, 64, 64),
        "size": (2.0, 1.0, 1.0),
    },
}
NETWORKS = {"plane": {"filters": 8, "levels": 3}, "volume": {"filters": 4, "levels": 2}}


def make_case(kind, classes, folder):
    """Write a run of a network that was trained for one step, and two images."""
    import nibabel
    import tifffile

    from tfunet.backend import Launch
    from tfunet.config.run import RunConfig
    from tfunet.loop import run
    from tfunet.single_device import SingleDevice

    rng = np.random.default_rng(0)
    shape = SHAPES[kind]
    small = tuple(2 * size for size in shape["window"])

    def write(path, array):
        if kind == "plane":
            tifffile.imwrite(path, array, tile=(256, 256), compression="zlib")
        else:
            nibabel.save(nibabel.Nifti1Image(array, np.diag([*shape["size"], 1.0])), path)

    suffix = {"plane": ".tif", "volume": ".nii"}[kind]
    for index in range(3):
        write(folder / f"case{index}_image{suffix}", rng.integers(0, 4000, small, np.uint16))
        write(
            folder / f"case{index}_mask{suffix}", rng.integers(0, classes, small).astype(np.uint8)
        )
    options = {
        "root": str(folder),
        "images": f"{{case}}_image{suffix}",
        "masks": f"{{case}}_mask{suffix}",
        "classes": {f"class{index}": index for index in range(1, classes)},
    }
    if kind == "volume":
        options["target_pixel_size"] = 1.0
    config = RunConfig(
        model_options={**NETWORKS[kind], "normalization": "none"},
        data="folder",
        data_options=options,
        patch=shape["window"],
        replica_batch=1,
        patches_per_case=2,
        epochs=1,
        learning_rate=0.01,
        cache_dir=str(folder / "cache"),
    )
    run(config, SingleDevice(Launch()), folder / "run")
    for name in ("first", "second"):
        axes = [np.linspace(0, 9 + 2 * at, size) for at, size in enumerate(shape["file"])]
        smooth = sum(np.sin(part) for part in np.meshgrid(*axes, indexing="ij", sparse=True))
        noise = rng.normal(0, 300, shape["file"])
        write(folder / f"{name}{suffix}", (2000 + 500 * smooth + noise).astype(np.uint16))


def ours(folder, images, out, devices):
    """Predict with the command."""
    from tfunet.cli import main

    words = ["--no-overlay", "--out", str(out), "--devices", str(devices)]
    return main(["predict", str(folder / "run"), *map(str, images), *words])


def theirs(folder, images, out, kind, with_torch):
    """Predict with MONAI's inferer, and the rest as its users write it."""
    import nibabel
    import tifffile
    import torch
    from monai.inferers import sliding_window_inference

    from tfunet.data.preprocess import resize_linear, resize_nearest
    from tfunet.prediction.network import load_network
    from tfunet.record import RunFolder

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    window = SHAPES[kind]["window"]
    model = load_network(RunFolder(folder / "run")).model(window, "float32")
    if with_torch:
        from torch_twin import twin

        forward = twin(model)
    else:
        import tensorflow as tf

        compiled = tf.function(lambda batch: model(batch, training=False), jit_compile=False)

        def forward(batch):
            logits = compiled(np.moveaxis(batch.numpy(), 1, -1))
            return torch.from_numpy(np.moveaxis(logits.numpy(), -1, 1))

    # Its own Gaussian is no less than 0.001 anywhere, which changes labels near ties.
    weights = torch.ones(())
    for length in window:
        distance = (torch.arange(length) - (length - 1) / 2) / (length / 8)
        weights = weights[..., None] * torch.exp(-0.5 * distance**2)
    inferer = functools.partial(
        sliding_window_inference,
        roi_size=window,
        sw_batch_size=4 if kind == "plane" else 1,
        overlap=0.5,
        roi_weight_map=weights,
    )
    out.mkdir()
    for path in images:
        if kind == "plane":
            image = tifffile.imread(path).astype(np.float32)
        else:
            image = nibabel.load(path).get_fdata(dtype=np.float32)
        before = image.shape
        if before != SHAPES[kind]["seen"]:
            image = resize_linear(image[..., None], SHAPES[kind]["seen"])[..., 0]
        image = (image - image.mean(dtype=np.float64)) / image.std(dtype=np.float64)
        with torch.inference_mode():
            batch = torch.from_numpy(image.astype(np.float32))[None, None]
            labels = inferer(batch, predictor=forward).argmax(1)[0].numpy().astype(np.uint8)
        if labels.shape != before:
            labels = resize_nearest(labels, before)
        if kind == "plane":
            tifffile.imwrite(
                out / path.name, labels, tile=(256, 256), compression="zlib", maxworkers=1
            )
        else:
            like = nibabel.load(path)
            nibabel.save(nibabel.Nifti1Image(labels, like.affine), out / f"{path.name}.gz")


def work(way, folder, kind, images, out):
    """Do the work of a way in this process, which was started for it."""
    if way.startswith("tfunet"):
        sys.exit(ours(folder, images, out, 2 if "two" in way else 1))
    theirs(folder, images, out, kind, "torch" in way)


def measured(way, folder, kind, count, out, cores):
    """Return seconds, CPU seconds and the peak of memory (MiB) of a fresh process."""
    import psutil

    suffix = {"plane": ".tif", "volume": ".nii"}[kind]
    images = [folder / f"{name}{suffix}" for name in ("first", "second")[:count]]
    words = [sys.executable, __file__, "--work", way, folder, kind, out, *images]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        ["taskset", "--cpu-list", ",".join(map(str, cores)), *map(str, words)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    peak, ended = [0], threading.Event()
    cpu = {}

    def watch():
        main = psutil.Process(process.pid)
        while not ended.wait(0.5):  # To ask costs time.
            try:
                every = [main, *main.children(recursive=True)]
                # What processes share is counted once.
                held = sum(each.memory_full_info().pss for each in every)
                peak[0] = max(peak[0], held)
                for each in every:
                    taken = each.cpu_times()
                    cpu[each.pid] = taken.user + taken.system
            except psutil.Error:
                pass

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    code = process.wait()
    seconds = time.perf_counter() - begin
    ended.set()
    thread.join()
    if code:
        raise SystemExit(f"{way} ended with exit code {code}.")
    return seconds, sum(cpu.values()), peak[0] / 2**20


def labels_of(out, kind):
    import nibabel
    import tifffile

    if kind == "plane":
        return tifffile.imread(out / "first.tif")
    (path,) = out.glob("first.nii*")
    return np.asarray(nibabel.load(path).dataobj)


def compared(name, kind, classes, rounds, ways):
    """Return the measurements of each way of a case; SystemExit where labels are not the same."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    found = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        maker = [sys.executable, __file__, "--make", kind, str(classes), place]
        subprocess.run(maker, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        truth = None
        for number in range(rounds):
            for way in ways:
                own = cores if "two" in way else cores[:1]
                rows = []
                for count in (1, 2):
                    out = folder / f"{number}-{way}-{count}"
                    rows.append(measured(way, folder, kind, count, out, own))
                    labels = labels_of(out, kind)
                    truth = labels if truth is None else truth
                    different = float((labels != truth).mean())
                    bound = 0 if way.startswith("tfunet") else MOST_DIFFERENT
                    if different > bound or len(np.unique(labels)) < 2:
                        raise SystemExit(f"{name}: {way}: {different:.2%} of the labels differ.")
                (cold, cpu, memory), (both, _, more) = rows
                found[way].append(
                    {"cold": cold, "warm": both - cold, "cpu": cpu, "mib": max(memory, more)}
                )
                print(
                    name,
                    way,
                    {key: round(one, 2) for key, one in found[way][-1].items()},
                    flush=True,
                )
    return found


def claims_of(name, found):
    """Return what is claimed of a case, for each peer that was measured."""
    claims = []
    for peer in [way for way in found if way.startswith("monai")]:
        for key in ("cold", "warm", "mib"):
            pairs = list(zip(found["tfunet"], found[peer], strict=True))
            claims.append(
                measure.verdict(
                    f"{name}: {key} over {peer}",
                    [one[key] / other[key] for one, other in pairs],
                    bound=1.0,
                    most=True,
                    samples={way: found[way] for way in ("tfunet", peer)},
                    peers=["monai", "torch", "tensorflow"],
                )
            )
    two = found["tfunet, two devices"]
    for key in ("cold", "warm"):
        pairs = list(zip(found["tfunet"], two, strict=True))
        claims.append(
            measure.verdict(
                f"{name}: {key} of one device over that of two",
                [one[key] / other[key] for one, other in pairs],
                bound=1.8,
                most=False,
                samples={way: found[way] for way in ("tfunet", "tfunet, two devices")},
                peers=["tensorflow"],
            )
        )
    return claims


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    options = parser.parse_args()
    claims = []
    for name in options.cases:
        case = CASES[name]
        found = compared(
            name, case["kind"], case["classes"], 1 if options.quick else ROUNDS, options.ways
        )
        for way, rows in found.items():
            medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            print(name, way, json.dumps({key: round(one, 2) for key, one in medians.items()}))
        if set(options.ways) == set(WAYS):
            claims += claims_of(name, found)
    if claims:
        measure.show(claims)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make_case(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    elif sys.argv[1:2] == ["--work"]:
        way, folder, kind, out, *images = sys.argv[2:]
        work(way, Path(folder), kind, [Path(image) for image in images], Path(out))
    else:
        main()
