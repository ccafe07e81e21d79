"""Trains on, and predicts, an image of 10,000 x 10,000 x 4 of 16 bits: memory and exactness.

The image is written tile by tile, and never whole in the memory of a process that is measured.
Each process does the same again with an image of 512 x 512: what it takes then is TensorFlow's
own. Resident memory counts the pages of mapped files too, which the system may take back; they
are also given apart. The prediction is compared, at random places and for a whole smaller image,
with the network's output computed from an image in memory.
"""

import json
import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path

import measure
import numpy as np
import tifffile

SMALL = 512
LIMIT_BYTES = 2 * 2**30
TILE = 256
CHANNELS = 4
# Exact for networks without statistics of the whole image.
MODEL = {"filters": 8, "levels": 3, "normalization": "none"}
PATCH = (256, 256)
STEPS = 20
COMPARED_WINDOWS = 20
COMPARED_SIZE = 256
WHOLE_SIZE = 2048
# Logits of two shapes of window are sums in two orders.
LOGIT_TOLERANCE = 1e-4


def tile_at(row, column):
    """Return a tile of the image and of its mask, (TILE, TILE, CHANNELS) and (TILE, TILE)."""
    rows = np.arange(row, row + TILE)[:, None]
    columns = np.arange(column, column + TILE)
    mask = (np.sin(rows / 37) * np.sin(columns / 53) > 0.6).astype(np.uint8)
    noise = np.random.default_rng([row, column]).integers(0, 400, (TILE, TILE, CHANNELS))
    image = 1000 + 100 * noise + 6000 * mask[..., None] * np.arange(1, CHANNELS + 1)
    return image.astype(np.uint16), mask


def write_image(path, size, part):
    """Write one of the two arrays of `tile_at` as a tiled TIFF, tile by tile."""
    corners = ((r, c) for r in range(0, size, TILE) for c in range(0, size, TILE))
    tifffile.imwrite(
        path,
        (tile_at(*corner)[part] for corner in corners),
        shape=(size, size, CHANNELS)[: 3 - part],
        dtype=("uint16", "uint8")[part],
        tile=(TILE, TILE),
        photometric="minisblack",
        planarconfig=None if part else "contig",
        compression="zlib",
        compressionargs={"level": 1},
        maxworkers=1,
    )


class Memory:
    """Keeps the peaks of this process's resident memory while it is entered, in bytes."""

    NAMES = ("VmRSS", "RssAnon", "RssFile")

    def __enter__(self):
        self.peaks = dict.fromkeys(self.NAMES, 0)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        while not self.ended.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in self.peaks:
                    self.peaks[name] = max(self.peaks[name], int(value.split()[0]) * 1024)

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def child(work, arguments, record):
    """Run a piece of work in this fresh process, and send the peaks of its memory and its time."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
    with Memory() as memory:
        since = time.perf_counter()
        work(*arguments)
        seconds = time.perf_counter() - since
    record.send({**memory.peaks, "seconds": seconds})


def measured(work, *arguments):
    spawn = multiprocessing.get_context("spawn")
    receive, send = spawn.Pipe(duplex=False)
    process = spawn.Process(target=child, args=(work, arguments, send))
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        raise SystemExit(f"{work.__name__} failed; nothing is claimed.") from None
    finally:
        process.join()


def train(folder):
    from tfunet.backend import Launch
    from tfunet.config.run import RunConfig
    from tfunet.loop import run
    from tfunet.single_device import SingleDevice

    config = RunConfig(
        model_options=MODEL,
        data="folder",
        data_options={
            "root": str(folder),
            "images": "{case}_image.tif",
            "masks": "{case}_mask.tif",
        },
        patch=PATCH,
        patches_per_case=4 * STEPS,
        foreground_share=0.33,
        validation_groups=("validation",),
        replica_batch=4,
        epochs=1,
        learning_rate=0.01,
        cache_dir=str(folder / "cache"),
    )
    run(config, SingleDevice(Launch()), folder / "run")


def predict(run, image, out, tiles):
    from tfunet.prediction.options import Options
    from tfunet.prediction.run import predict as predict_images

    predict_images(run, [str(image)], out, Options(tiles=tiles))


def logits_of(run, image):
    """Return the network's logits of (rows, columns, channels) at once."""
    from tfunet.models.make import make_model

    model = make_model("unet", image_shape=image.shape, num_classes=2, options=MODEL)
    model.load_weights(run / "model.keras")
    return model(image[np.newaxis], training=False).numpy()[0]


def compare_windows(run, image_path, prediction_path, report):
    """Compare labels at random places with the network's output for an image in memory."""
    image, labels = tifffile.imread(image_path), tifffile.imread(prediction_path)
    mean, deviation = np.zeros(CHANNELS), np.zeros(CHANNELS)
    for channel in range(CHANNELS):
        mean[channel] = image[..., channel].mean(dtype=np.float64)
        deviation[channel] = image[..., channel].std(dtype=np.float64)
    step, margin = 8, 128
    rng = np.random.default_rng(0)
    counts = {"compared": 0, "differ": 0, "worst_margin": 0.0}
    counts["foreground_share"] = float(np.mean(labels > 0))
    last = (len(image) - COMPARED_SIZE) // step
    for row, column in [(0, 0), (last, last), *rng.integers(0, last, (COMPARED_WINDOWS, 2))]:
        start = np.array([row, column]) * step
        low = np.maximum(start - margin, 0)
        high = np.minimum(start + COMPARED_SIZE + margin, len(image))
        part = image[low[0] : high[0], low[1] : high[1]]
        part = ((part - mean) / deviation).astype(np.float32)
        # The end of the image is padded as for the whole.
        part = np.pad(part, [(0, -size % step) for size in part.shape[:2]] + [(0, 0)])
        inside = tuple(slice(a, a + COMPARED_SIZE) for a in start - low)
        logits = logits_of(run, part)[inside]
        ours = labels[tuple(slice(a, a + COMPARED_SIZE) for a in start)]
        differ = ours != logits.argmax(-1)
        margins = np.abs(logits[..., 0] - logits[..., 1])[differ]
        counts["compared"] += differ.size
        counts["differ"] += int(differ.sum())
        counts["worst_margin"] = max(counts["worst_margin"], float(margins.max(initial=0)))
    report.write_text(json.dumps(counts))


def compare_whole(run, image_path, prediction_path, report):
    """Compare all labels of an image that fits with one pass of the network over all of it."""
    from tfunet.data.image_files import read_image
    from tfunet.data.preprocess import normalise

    logits = logits_of(run, normalise(read_image(image_path), "zscore"))
    differ = tifffile.imread(prediction_path) != logits.argmax(-1)
    margins = np.abs(logits[..., 0] - logits[..., 1])[differ]
    counts = {"compared": differ.size, "differ": int(differ.sum())}
    counts["worst_margin"] = float(margins.max(initial=0))
    report.write_text(json.dumps(counts))


def compared(work, folder, name, run):
    report = folder / "report.json"
    measured(work, run, folder / f"{name}_image.tif", folder / f"halo/{name}_image.tif", report)
    return json.loads(report.read_text())


def images(folder, size):
    folder.mkdir()
    for name, side in (("scene", size), ("validation", SMALL)):
        write_image(folder / f"{name}_image.tif", side, 0)
        write_image(folder / f"{name}_mask.tif", side, 1)


def main():
    size = 3000 if measure.quick_option(__doc__) else 10_000
    with tempfile.TemporaryDirectory() as place:
        peaks = {}
        for name, side in (("small", SMALL), ("large", size)):
            folder = Path(place) / name
            images(folder, side)
            run, scene = folder / "run", folder / "scene_image.tif"
            peaks[name] = {"train": measured(train, folder)}
            for tiles in ("halo", "gaussian"):
                peaks[name][tiles] = measured(predict, run, scene, folder / tiles, tiles)
            print(name, json.dumps(peaks[name]), flush=True)
        windows = compared(compare_windows, folder, "scene", run)
        print("random windows:", json.dumps(windows), flush=True)
        write_image(folder / "whole_image.tif", WHOLE_SIZE, 0)
        measured(predict, run, folder / "whole_image.tif", folder / "halo", "halo")
        whole_image = compared(compare_whole, folder, "whole", run)
        print("a whole image:", json.dumps(whole_image), flush=True)
    claims = []
    for work in ("train", "halo", "gaussian"):
        beyond = {
            name: peaks["large"][work][name] - peaks["small"][work][name] for name in Memory.NAMES
        }
        claims.append(
            measure.verdict(
                f"peak resident memory beyond TensorFlow's own / 2 GiB, {work}",
                [beyond["VmRSS"] / LIMIT_BYTES],
                bound=1.0,
                most=True,
                samples={
                    "small": peaks["small"][work],
                    "large": peaks["large"][work],
                    "beyond_bytes": beyond,
                },
                peers=["tensorflow", "tifffile"],
            )
        )
    for name, results in (("random windows", windows), ("a whole image", whole_image)):
        claims.append(
            measure.verdict(
                f"labels that differ from those computed from memory, beyond ties, {name}",
                [results["differ"] if results["worst_margin"] > LOGIT_TOLERANCE else 0.0],
                bound=0.0,
                most=True,
                samples=results,
                peers=["tensorflow", "tifffile"],
            )
        )
    measure.show(claims)


if __name__ == "__main__":
    main()
